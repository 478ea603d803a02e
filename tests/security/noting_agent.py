"""An agent on stdin and stdout that records the name of every method it receives, in the given file.

It has a login, answers every vendor method, and sends its own vendor message to every client when it is prompted.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def send(**members: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")
    sys.stdout.flush()


def main(path: str) -> None:
    count = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        with open(path, "a", encoding="utf-8") as notes:
            notes.write(f"{method}\n")
        result: Any = {}
        if method == "initialize":
            logins = [{"id": "key", "name": "Key"}]
            result = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": logins}
        elif method == "session/new":
            count += 1
            result = {"sessionId": f"noted-{count}"}
        elif method == "session/prompt":
            send(method="_noting/account", params={"balance": 7})
            result = {"stopReason": "end_turn"}
        if request_id is not None and method is not None:
            send(id=request_id, result=result)


if __name__ == "__main__":
    main(sys.argv[1])
