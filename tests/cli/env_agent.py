"""A raw ACP agent that reports its environment, written from the text of ACP v1 alone.

Each word of a prompt is the name of a variable; the answer is one line for each. After `die` they are written to
stderr, and the agent ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def told(names: list[str]) -> str:
    return "\n".join(f"{name}={os.environ.get(name, '(none)')}" for name in names)


RESULTS: dict[str, Any] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
    "session/new": {"sessionId": "the-one"},
}

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "session/prompt":
        first, *names = request["params"]["prompt"][0]["text"].split()
        if first == "die":
            sys.stderr.write(told(names) + "\n")
            sys.exit(3)
        text = {"type": "text", "text": told([first, *names])}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        send(method="session/update", params={"sessionId": "the-one", "update": update})
        send(id=request["id"], result={"stopReason": "end_turn"})
    elif request["method"] in RESULTS:
        send(id=request["id"], result=RESULTS[request["method"]])
    elif "id" in request:
        send(id=request["id"], error={"code": -32601, "message": "no such method"})
