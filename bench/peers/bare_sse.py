"""The least that a burst to many subscribers can cost: a server that only writes pages it has in memory.

Runs as a program; takes a port. It speaks as much of the daemons' HTTP as the measurement needs and does nothing of
what they are for: no agent, no log, no parsing. A subscriber that has no room is written to when it has.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

MOST = 20_000
PAGE = 250
"""Events in one write: about what a pipe hands over at once."""
ROOM_BYTES = 256 * 1024
JSON_REPLY = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 3000\n\n"
END = b'id: 0\nevent: turn_complete\ndata: {"v":1}\n\n'


def frame(number: int) -> bytes:
    """An event as long as the daemons' own."""
    content = {"type": "text", "text": f"piece {number:08d} of an answer"}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    envelope = {
        "id": number,
        "v": 1,
        "type": "session_update",
        "data": {"sessionId": "bench-1", "update": update},
        "promptId": "00000000-0000-0000-0000-000000000000",
        "_meta": {"serverTimestamp": 1_700_000_000_000},
    }
    return b"id: %d\nevent: session_update\ndata: %s\n\n" % (number, json.dumps(envelope).encode())


class Connection(asyncio.Protocol):
    """One client. Requests come whole: the one who asks is the measurement."""

    def __init__(self, pages: list[bytes], subscribers: set[Connection]) -> None:
        self._pages = pages
        self._subscribers = subscribers
        self._left: Iterator[bytes] = iter(())
        self._has_room = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=ROOM_BYTES)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /health"):
            self._answer(200, b"{}")
        elif data.startswith(b"GET"):
            self._transport.write(STREAM_HEAD)
            self._subscribers.add(self)
        elif data.startswith(b"POST /session "):
            self._answer(200, b'{"sessionId":"bench-1"}')
        else:
            self._answer(202, b"{}")
            asked = re.search(rb"burst (\d+)", data)
            for subscriber in self._subscribers:
                subscriber.begin([*self._pages[: int(asked[1]) // PAGE if asked else 1], END])

    def connection_lost(self, exc: Exception | None) -> None:
        self._subscribers.discard(self)

    def pause_writing(self) -> None:
        self._has_room = False

    def resume_writing(self) -> None:
        self._has_room = True
        self._write()

    def begin(self, pages: list[bytes]) -> None:
        self._left = iter(pages)
        self._write()

    def _write(self) -> None:
        while self._has_room and (page := next(self._left, None)) is not None:
            self._transport.write(page)

    def _answer(self, status: int, body: bytes) -> None:
        self._transport.write(JSON_REPLY % (status, len(body), body))


async def main() -> None:
    frames = [frame(number) for number in range(1, MOST + 1)]
    pages = [b"".join(frames[start : start + PAGE]) for start in range(0, MOST, PAGE)]
    subscribers: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(pages, subscribers), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
