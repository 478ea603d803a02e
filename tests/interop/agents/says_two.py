"""An agent without any SDK that answers version 2 and speaks v1 in every other way, as one released agent does.

It has no arguments and runs as a program on standard input and output until the input ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": 2,
        "agentCapabilities": {"loadSession": False},
        "agentInfo": {"name": "says-two", "version": "1"},
        "authMethods": [],
    },
    "session/new": {"sessionId": "only-one"},
    "session/prompt": {"stopReason": "end_turn"},
}


def send(frame: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "session/prompt":
        for text in ("one ", "two"):
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
            send({"method": "session/update", "params": {"sessionId": "only-one", "update": update}})
    send({"id": asked["id"], "result": ANSWERS[asked["method"]]})
