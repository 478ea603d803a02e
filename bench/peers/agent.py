"""The agent of the stdio measurement: costs next to nothing, so that the client is what is measured.

Takes a number of chunks; runs as a program. Answers the handshake of v1 and every prompt; to a prompt `go` it first
writes that many message chunks, encoded beforehand, 64 KB at a time.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

WRITE_BYTES = 64 * 1024
SESSION = "agent-session"
ANSWERS: dict[str, Any] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
    "session/new": {"sessionId": SESSION},
    "session/prompt": {"stopReason": "end_turn"},
}


def line(frame: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **frame}, separators=(",", ":")).encode() + b"\n"


def chunk(number: int) -> bytes:
    """About 200 bytes, as an agent writes them."""
    text = f"piece {number:08d} of an answer"
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})


def write(everything: bytes) -> None:
    view = memoryview(everything)
    while view:
        view = view[os.write(1, view[:WRITE_BYTES]) :]


def main() -> None:
    turn = b"".join(chunk(number) for number in range(int(sys.argv[1])))
    for asked in map(json.loads, sys.stdin.buffer):
        if "id" in asked:
            answer = line({"id": asked["id"], "result": ANSWERS[asked["method"]]})
            is_go = asked["params"].get("prompt") == [{"type": "text", "text": "go"}]
            write(turn + answer if is_go else answer)


main()
