"""A small MCP server by hand, from before `server/discover`, with bad habits to choose from.

`python -I -S mcp_old_server.py HABIT`: `good`; `noisy` prints to the wrong stream; `stubborn` ignores the end of
its input and every polite signal, and has a child in a session of its own; `dies` ends at once; `mute` never
answers; `careless` has a schema with a fault. Its one tool says a word. Some words do more: `die`, `learn`, `wait`
for ever, or tell of the `cancelled`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, TextIO

HABIT = sys.argv[1]

tools: list[dict[str, Any]] = [
    {"name": "say it", "description": "Says its word.", "inputSchema": {"type": "object", "required": ["word"]}}
]


if HABIT == "careless":
    tools[0]["inputSchema"] = {"type": "object", "required": None}

waiting: list[object] = []
cancelled: list[object] = []


def put(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(text + "\n")
    stream.flush()


def send(**message: object) -> None:
    put(json.dumps({"jsonrpc": "2.0", **message}))


def answer(method: str, params: dict[str, Any]) -> dict[str, object] | None:
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        version = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "old", "version": "1"}}
        return {"capabilities": capabilities, **version}
    if method == "tools/list":
        # One tool a page.
        at = int(str(params.get("cursor") or 0))
        more = {"nextCursor": str(at + 1)} if at + 1 < len(tools) else {}
        return {"tools": tools[at : at + 1], **more}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"{os.getpid()} {say(params['arguments']['word'])}"}]}
    return None


def say(word: str) -> str:
    if word == "die":
        put("my last words", sys.stderr)
        os._exit(7)
    if word == "learn":
        tools.append({**tools[0], "name": "say.it"})
        send(method="notifications/tools/list_changed")
    return str(waiting == cancelled != []) if word == "cancelled" else word


def take(frame: dict[str, Any]) -> None:
    params: dict[str, Any] = frame.get("params") or {}
    if frame["method"] == "notifications/cancelled":
        cancelled.append(params["requestId"])
    elif params.get("arguments") == {"word": "wait"}:
        waiting.append(frame["id"])
        progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1, "message": "waiting"}
        send(method="notifications/progress", params=progress)
    elif "id" in frame:
        found = answer(frame["method"], params)
        if found is None:
            send(id=frame["id"], error={"code": -32601, "message": "not found"})
        else:
            send(id=frame["id"], result=found)


if HABIT == "dies":
    put("cannot find my settings", sys.stderr)
    sys.exit(3)
if HABIT == "stubborn":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        signal.pause()
if HABIT == "noisy":
    put("Listening on stdio! {")
for line in sys.stdin:
    if HABIT != "mute":
        take(json.loads(line))
if HABIT == "stubborn":
    signal.pause()
