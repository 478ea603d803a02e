"""An agent that costs nothing: a link that hands over prepared lines as fast as they are read.

Takes the lines of one turn; gives a `FrameLink` that answers the handshake and then streams them in bursts of
the size that a pipe hands over at once.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from turnwire.errors import LinkClosed
from turnwire.runtime.source import LinkedAgent

BURST_BYTES = 64 * 1024
SESSION = "agent-session"


def update_line(number: int) -> bytes:
    """One chunk of text as an agent writes it, about 200 bytes."""
    update = {
        "sessionUpdate": "agent_message_chunk",
        "messageId": "message-1",
        "content": {"type": "text", "text": f"piece {number:08d} of an answer"},
    }
    params = {"sessionId": SESSION, "update": update}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "session/update", "params": params})


def bursts(lines: list[bytes]) -> deque[list[bytes]]:
    """The lines as a pipe would hand them over."""
    per_burst = max(1, BURST_BYTES // (len(lines[0]) + 1))
    return deque(lines[start : start + per_burst] for start in range(0, len(lines), per_burst))


_ANSWERS: dict[str, dict[str, object]] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
    "session/new": {"sessionId": SESSION},
    "session/prompt": {"stopReason": "end_turn"},
}


class _Request(msgspec.Struct):
    method: str
    id: int | None = None


class FeedLink:
    """The link of such an agent."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._ready: deque[list[bytes]] = deque()
        self._wanted: asyncio.Future[None] | None = None
        self._is_closed = False

    async def connect(self) -> LinkedAgent:
        return LinkedAgent(self)

    async def receive(self) -> list[bytes]:
        while not self._ready:
            if self._is_closed:
                raise LinkClosed("closed")
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        return self._ready.popleft()

    def send_nowait(self, frame: bytes) -> None:
        request = msgspec.json.decode(frame, type=_Request)
        answer = _ANSWERS[request.method]
        if request.method == "session/prompt":
            self._ready.extend(bursts(self._lines))
        self._ready.append([msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": answer})])
        self._wake()

    async def send(self, frame: bytes) -> None:
        self.send_nowait(frame)

    async def aclose(self) -> None:
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
