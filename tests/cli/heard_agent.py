"""A raw ACP v1 agent that records every prompt it gets, written from the text of ACP alone.

Each prompt is a line in the file that it is started with: its content blocks. It answers with its name, the second
argument; at `die` it ends. A third argument makes it accept embedded resources.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HEARD, NAME = Path(sys.argv[1]), sys.argv[2]


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def keep(prompt: list[dict[str, Any]]) -> None:
    with HEARD.open("a") as heard:
        heard.write(json.dumps(prompt) + "\n")


CAPABILITIES = {"promptCapabilities": {"embeddedContext": "resources" in sys.argv}}
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": 1,
        "agentCapabilities": CAPABILITIES,
        "agentInfo": {"name": NAME, "version": "1.2.3"},
        "authMethods": [],
    },
}
opened = 0

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "session/prompt":
        prompt = request["params"]["prompt"]
        keep(prompt)
        if prompt[-1]["text"] == "die":
            sys.exit(3)
        text = {"type": "text", "text": f"I am {NAME}."}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        send(method="session/update", params={"sessionId": request["params"]["sessionId"], "update": update})
        send(id=request["id"], result={"stopReason": "end_turn"})
    elif request["method"] == "session/new":
        opened += 1
        send(id=request["id"], result={"sessionId": f"{NAME}-{os.getpid()}-{opened}"})
    elif request["method"] in RESULTS:
        send(id=request["id"], result=RESULTS[request["method"]])
    elif "id" in request:
        send(id=request["id"], error={"code": -32601, "message": "no such method"})
