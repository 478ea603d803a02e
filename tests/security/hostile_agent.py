"""An agent that sends thousands of permission and file requests at once, at each prompt, and waits for its
cancel.
"""

from __future__ import annotations

import json
import sys
from typing import Any

OPTIONS = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
PERMISSIONS, FILES = 5_000, 5_000


def send(**members: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")


def flood(session: str) -> None:
    for number in range(PERMISSIONS):
        call = {"toolCallId": f"t{number}", "title": "Run it", "kind": "execute"}
        params = {"sessionId": session, "toolCall": call, "options": OPTIONS}
        send(id=f"p{number}", method="session/request_permission", params=params)
    for number in range(FILES):
        params = {"sessionId": session, "path": __file__}
        send(id=f"f{number}", method="fs/read_text_file", params=params)


def main() -> None:
    prompt, count = None, 0
    for line in sys.stdin:
        frame = json.loads(line)
        match frame.get("method"):
            case "initialize":
                send(id=frame["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                count += 1
                send(id=frame["id"], result={"sessionId": f"h{count}"})
            case "session/prompt":
                prompt = frame["id"]
                flood(frame["params"]["sessionId"])
            case "session/cancel" if prompt is not None:
                send(id=prompt, result={"stopReason": "cancelled"})
                prompt = None
            case _:
                pass
        sys.stdout.flush()


if __name__ == "__main__":
    main()
