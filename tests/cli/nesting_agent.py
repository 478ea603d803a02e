"""A raw ACP v1 agent that has no child sessions and nests by tool call instead, in `_meta`, as some agents do."""

from __future__ import annotations

import json
import sys
from typing import Any

INSIDE = {"_meta": {"claudeCode": {"parentToolUseId": "task"}}}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(kind: str, /, **members: Any) -> None:
    send(method="session/update", params={"sessionId": "one", "update": {"sessionUpdate": kind, **members}})


def say(text: str, **members: Any) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text}, **members)


def work() -> None:
    say("I look. ")
    update("tool_call", toolCallId="task", title="Task", status="in_progress")
    say("inside", **INSIDE)
    update("tool_call", toolCallId="read", title="Read", status="pending", **INSIDE)
    update("tool_call_update", toolCallId="read", status="completed", **INSIDE)
    say("Found.")
    update("tool_call_update", toolCallId="task", status="completed")


for line in sys.stdin:
    asked: dict[str, Any] = json.loads(line)
    match asked.get("method"):
        case "initialize":
            send(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
        case "session/new":
            send(id=asked["id"], result={"sessionId": "one"})
        case "session/prompt":
            work()
            send(id=asked["id"], result={"stopReason": "end_turn"})
        case _:
            pass
