"""A raw ACP v2 agent that delegates work to child sessions; written from the text of ACP alone.

`two` has two children, of which the first announces a child of its own and asks for permission; `long` has one that
asks and runs until it is cancelled; `old` sends under the first child's id without announcing it again. Every
request and notification that it gets is a line in the file that it is started with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEARD = Path(sys.argv[1])
ROOT, FIRST, SECOND, DEEP = "root 1", "first/child ä", "second", "deep"
WAITING: dict[str, Callable[[dict[str, Any]], None]] = {}
COUNT = {"messages": 0}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(session: str, kind: str, /, **members: Any) -> None:
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": kind, **members}})


def state(session: str, name: str, /, **members: Any) -> None:
    update(session, "state_update", state=name, **members)


def announce(parent: str, child: str, /, **members: Any) -> None:
    update(parent, "subagent_update", sessionId=child, **members)


def say(session: str, text: str, message: str = "1") -> None:
    update(session, "agent_message_chunk", messageId=message, content={"type": "text", "text": text})


def ask(session: str, call: str, then: Callable[[dict[str, Any]], None]) -> None:
    name = f"ask {call}"
    WAITING[name] = then
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    subject = {"type": "tool_call", "toolCall": {"toolCallId": call, "title": "write a file", "status": "pending"}}
    params = {"sessionId": session, "title": "Write?", "subject": subject, "options": options}
    send(id=name, method="session/request_permission", params=params)


def begin(request: Any, prompt: list[dict[str, Any]]) -> None:
    COUNT["messages"] += 1
    message = f"u{COUNT['messages']}"
    send(id=request, result={"messageId": message})
    update(ROOT, "user_message", messageId=message, content=prompt)


def two() -> None:
    state(ROOT, "running", background=[])
    say(ROOT, "I ask two others. ", "root")
    announce(ROOT, FIRST, title="search", description="looks for it", state={"state": "running"})
    update(ROOT, "session_message", messageId="s1", senderSessionId=ROOT, recipientSessionId=FIRST)
    state(FIRST, "running")
    announce(FIRST, DEEP, title="read", cwd="/tmp")
    say(DEEP, "read it", "1")
    state(DEEP, "idle", stopReason="end_turn")
    say(FIRST, "found ")
    announce(ROOT, SECOND, title="test", capabilities={"cancel": {}})
    state(ROOT, "running", background=[{"type": "subagent", "sessionId": SECOND}])
    state(SECOND, "running")
    say(SECOND, "testing")
    say(FIRST, "something")
    update(FIRST, "tool_call_update", toolCallId="t1", title="write a file", kind="edit", status="pending")
    ask(FIRST, "t1", after_two)


def after_two(result: dict[str, Any]) -> None:
    outcome = result["outcome"]
    update(FIRST, "tool_call_update", toolCallId="t1", status="completed")
    say(FIRST, f" and {outcome.get('optionId', outcome['outcome'])}")
    state(FIRST, "idle", stopReason="end_turn")
    announce(ROOT, FIRST, state={"state": "idle", "stopReason": "end_turn"})
    state(SECOND, "idle", stopReason="end_turn")
    state(ROOT, "running", background=[])
    say(ROOT, "Both are done.", "root")
    state(ROOT, "idle", stopReason="end_turn", background=[])


def long() -> None:
    state(ROOT, "running")
    announce(ROOT, FIRST, title="dig", capabilities={"cancel": {}})
    state(FIRST, "running")
    say(FIRST, "digging", "2")
    send(method="_dig/depth", params={"sessionId": FIRST, "metres": 3})
    ask(FIRST, "t2", lambda result: say(FIRST, f" {result['outcome']['outcome']}", "2"))


def old() -> None:
    state(ROOT, "running")
    say(FIRST, "back again", "3")
    state(ROOT, "idle", stopReason="end_turn")


PLAYS = {"two": two, "long": long, "old": old}


def cancel(session: str) -> None:
    state(session, "idle", stopReason="cancelled")
    if session == ROOT:
        state(FIRST, "idle", stopReason="cancelled")


def take(message: dict[str, Any]) -> None:
    method, params = message.get("method"), message.get("params", {})
    if method is None:
        WAITING.pop(message["id"])(message["result"])
        return
    with HEARD.open("a") as heard:
        heard.write(f"{method} {params.get('sessionId', '')}\n")
    if method == "session/cancel":
        cancel(params["sessionId"])
    elif method == "initialize":
        capabilities: dict[str, Any] = {"session": {}}
        info = {"name": "parent", "version": "1"}
        send(id=message["id"], result={"protocolVersion": 2, "info": info, "capabilities": capabilities})
    elif method == "session/prompt":
        begin(message["id"], params["prompt"])
        PLAYS[params["prompt"][0]["text"]]()
    elif "id" in message:
        send(id=message["id"], result={"sessionId": ROOT} if method == "session/new" else {})


for line in sys.stdin:
    take(json.loads(line))
