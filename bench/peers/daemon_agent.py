"""The agent of every measured daemon. It costs next to nothing and follows the prompt.

`one` is one chunk; `burst N` is N chunks, written 64 KB at a time; `stamp N` is N chunks 3 ms apart, each with the
time of its write; `stream N` is N chunks of markdown, 500 a second; `wait` is one chunk without an end. Needs only
the standard library.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

WRITE_BYTES = 64 * 1024
PACE_S = 0.003
STREAM_S = 0.002
WORDS = [
    *("The ", "turn ", "ends ", "**once**", ", ", "with ", "`turn_complete`", ".\n\n", "- first\n", "- second\n\n"),
    *("```python\n", "for event in log:\n", "    print(event)\n", "```\n\n"),
]
"""The words of `stream`, repeated."""
METHOD_NOT_FOUND = -32601
INITIALIZED: dict[str, Any] = {
    "protocolVersion": 1,
    "agentCapabilities": {},
    "authMethods": [],
    # One of the daemons rejects agents without this member.
    "_meta": {"qwen-code/external-tool-guard-ready": "required-v1"},
}


def line(frame: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **frame}, separators=(",", ":")).encode() + b"\n"


def chunk(session_id: str, text: str) -> bytes:
    """About 200 bytes, as an agent writes them."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line({"method": "session/update", "params": {"sessionId": session_id, "update": update}})


def write(everything: bytes) -> None:
    view = memoryview(everything)
    while view:
        view = view[os.write(1, view[:WRITE_BYTES]) :]


def burst(session_id: str, count: int) -> bytes:
    before, after = chunk(session_id, "piece % of an answer").split(b"%")
    return b"".join(b"%s%08d%s" % (before, number, after) for number in range(count))


def stream(session_id: str, count: int) -> None:
    """Stream at an even pace: delays are caught up."""
    begun = time.monotonic()
    for number in range(count):
        select.select([], [], [], max(0.0, begun + number * STREAM_S - time.monotonic()))
        write(chunk(session_id, WORDS[number % len(WORDS)]))
    write(chunk(session_id, "the last piece"))


def take_turn(session_id: str, text: str) -> None:
    word, _, count = text.partition(" ")
    if word == "burst":
        write(burst(session_id, int(count)))
    elif word == "stamp":
        for _ in range(int(count)):
            select.select([], [], [], PACE_S)
            write(chunk(session_id, f"written @{time.monotonic_ns()}@"))
    elif word == "stream":
        stream(session_id, int(count))
    else:
        write(chunk(session_id, "one piece"))


def answer(asked: dict[str, Any], sessions: int) -> dict[str, Any] | None:
    """Return the result or the error of a request, after any preceding updates; None if the turn never ends."""
    match asked["method"]:
        case "initialize":
            return {"result": INITIALIZED}
        case "session/new":
            return {"result": {"sessionId": f"bench-{sessions}"}}
        case "session/prompt":
            text = asked["params"]["prompt"][0]["text"]
            take_turn(asked["params"]["sessionId"], text)
            return None if text == "wait" else {"result": {"stopReason": "end_turn"}}
        case _:
            return {"error": {"code": METHOD_NOT_FOUND, "message": "this agent does not do that"}}


def main() -> None:
    sessions = 0
    for asked in map(json.loads, sys.stdin.buffer):
        if "id" in asked and "method" in asked:
            sessions += asked["method"] == "session/new"
            if (answered := answer(asked, sessions)) is not None:
                write(line({"id": asked["id"], **answered}))


if __name__ == "__main__":
    main()
