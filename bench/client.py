"""The measuring client: raw HTTP, event streams and WebSockets with little overhead.

Times are recorded when bytes arrive. The client knows only the formats that the measured servers send: bodies with
a length, and streams whose chunks and ends are found by their names in the bytes.

Run as a program (`python -m bench.client`) it is a set of subscribers in a separate process: it reads `Wanted` as
JSON, prints `ready` when all streams are open, then one `Turn` for each turn.
"""

from __future__ import annotations

import asyncio
import re
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import uvloop

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
WAIT_S = 60.0
"""Timeout of every wait; every measurement is shorter."""
SSE_OPEN = b"retry:"
TURN_END = b"event: turn_complete"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "bm90IGEgc2VjcmV0ISEhIQ==",
}
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def request(method: str, path: str, headers: dict[str, str], body: Any = None) -> bytes:
    """Return the bytes of a request; `headers` include the host."""
    content = b"" if body is None else msgspec.json.encode(body)
    if body is not None:
        headers = headers | {"Content-Type": "application/json", "Content-Length": str(len(content))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + _HEAD_END + content


def text_frame(body: dict[str, Any]) -> bytes:
    """Return a WebSocket text frame of a client, masked with zeros."""
    content = msgspec.json.encode(body)
    size = bytes([0x80 | len(content)]) if len(content) < 126 else struct.pack("!BH", 0x80 | 126, len(content))
    return b"\x81" + size + bytes(4) + content


async def pause(seconds: float) -> None:
    """Let time pass between two requests."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


class Reply(NamedTuple):
    status: int
    body: bytes
    at: float
    """Arrival time of its last byte, by `time.perf_counter`."""


class Connection(asyncio.Protocol):
    """A connection for requests, one at a time, or for a stream: it stores all bytes until `on_data` is set."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent
        self._waiting: asyncio.Future[None] | None = None
        self._is_met: Callable[[], bool] = bool
        self._at = 0.0
        self.received = bytearray()
        self.on_data: Callable[[bytes, float], None] | None = None

    @classmethod
    async def open(cls, port: int, sent: bytes = b"", until: bytes = _HEAD_END) -> Connection:
        """Connect; with a request, send it and wait for some bytes of its answer."""
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(sent), HOST, port)
        if sent:
            await connection.until(lambda: until in connection.received)
            if int(connection.received[9:12]) not in (101, 200, 202):
                raise ConnectionError(f"the server answers {connection.received[-1000:]!r}")
        return connection

    async def ask(self, sent: bytes) -> Reply:
        self.received.clear()
        self.write(sent)
        await self.until(self._has_reply)
        head, _, body = bytes(self.received).partition(_HEAD_END)
        return Reply(int(head[9:12]), body, self._at)

    def _has_reply(self) -> bool:
        head, has_head, body = bytes(self.received).partition(_HEAD_END)
        length = _LENGTH.search(head)
        return bool(has_head) and len(body) >= (int(length[1]) if length else 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._sent)

    def write(self, sent: bytes) -> None:
        self._transport.write(sent)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        if self.on_data is None:
            self.received += data
        else:
            self.on_data(data, self._at)
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait for a condition that is checked whenever bytes arrive."""
        self._is_met = is_met
        self._waiting = asyncio.get_running_loop().create_future()
        self._check()
        await asyncio.wait_for(self._waiting, WAIT_S)

    def _check(self) -> None:
        if self._waiting is not None and not self._waiting.done() and self._is_met():
            self._waiting.set_result(None)


class Chunks:
    """Count the chunks of a turn in the bytes of a stream, and note when its end arrived."""

    NAME = b'"agent_message_chunk"'

    def __init__(self, end: bytes = b'"result"') -> None:
        self._end = end
        self._tail = b""
        self.count = 0
        self.ended_at = 0.0

    def __call__(self, data: bytes, at: float) -> None:
        # A name may be split. The tail is too short for a whole one, so none is counted twice.
        joined = self._tail + data
        self.count += joined.count(self.NAME)
        if self._end in joined:
            self.ended_at = at
        self._tail = joined[1 - max(len(self.NAME), len(self._end)) :]


# -- subscribers in a separate process -----------------------------------------------------------------------


class Wanted(msgspec.Struct):
    port: int
    request: str
    subscribers: int
    turns: int


class Turn(msgspec.Struct):
    at: float
    """Time at which the last subscriber received the end of the turn, by `time.perf_counter`."""
    events: int
    """Events of the turn, counted by the first subscriber."""
    cut: int
    """Subscribers whose stream was closed before the end."""


class _Readers:
    """State that all subscribers share: only the first counts, because on few cores reading would be measured."""

    def __init__(self, subscribers: int) -> None:
        self.buffer = bytearray(256 * 1024)
        self.view = memoryview(self.buffer)
        self.events = self.cut = 0
        self._subscribers = subscribers
        self.begin()

    def begin(self) -> None:
        self.ended = 0
        self.all_ended = asyncio.Event()

    def check(self) -> None:
        if self.ended + self.cut >= self._subscribers:
            self.all_ended.set()


class _Reader(asyncio.BufferedProtocol):
    def __init__(self, readers: _Readers, request: bytes, counts: bool) -> None:
        self._readers, self._request, self._counts = readers, request, counts
        self._tail = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._readers.view

    def buffer_updated(self, nbytes: int) -> None:
        readers, tail = self._readers, self._tail
        buffer = readers.buffer
        if self._counts:
            # An event ends with an empty line, which may be split.
            readers.events += buffer.count(b"\n\n", 0, nbytes) + (tail[-1:] == b"\n" and buffer[0] == ord("\n"))
        # Little comes after the end of a turn, so only the last bytes are searched.
        has_end = buffer.rfind(TURN_END, max(0, nbytes - 4096), nbytes) >= 0
        has_end = has_end or TURN_END in tail + buffer[: min(nbytes, len(TURN_END) - 1)]
        self._tail = bytes(buffer[max(0, nbytes - len(TURN_END) + 1) : nbytes])
        if not self.opened.done() and buffer.find(SSE_OPEN, 0, nbytes) >= 0:
            self.opened.set_result(None)
        if has_end:
            readers.ended += 1
            readers.check()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("the server refused a stream"))
        self._readers.cut += 1
        self._readers.check()


async def _read(wanted: Wanted) -> None:
    readers, loop = _Readers(wanted.subscribers), asyncio.get_running_loop()
    sent = wanted.request.encode()
    for first in range(0, wanted.subscribers, 50):
        batch = range(first, min(first + 50, wanted.subscribers))
        opening = [
            loop.create_connection(lambda number=number: _Reader(readers, sent, number == 0), HOST, wanted.port)
            for number in batch
        ]
        opened = [reader.opened for _, reader in await asyncio.gather(*opening)]
        await asyncio.wait_for(asyncio.gather(*opened), WAIT_S)
    print("ready", flush=True)
    for _ in range(wanted.turns):
        readers.events = 0
        await asyncio.wait_for(readers.all_ended.wait(), WAIT_S)
        turn = Turn(at=time.perf_counter(), events=readers.events, cut=readers.cut)
        readers.begin()
        print(msgspec.json.encode(turn).decode(), flush=True)


@asynccontextmanager
async def subscribers(wanted: Wanted) -> AsyncGenerator[Callable[[], Awaitable[Turn]]]:
    """Open subscribers in another process; yields a function that waits for the end of the next turn."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.client", msgspec.json.encode(wanted).decode()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    stdout = process.stdout
    assert stdout is not None

    async def next_turn() -> Turn:
        return msgspec.json.decode(await asyncio.wait_for(stdout.readline(), WAIT_S), type=Turn)

    try:
        ready = await asyncio.wait_for(stdout.readline(), WAIT_S)
        assert ready == b"ready\n", f"the subscribers could not begin: {ready!r}"
        yield next_turn
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    uvloop.run(_read(msgspec.json.decode(sys.argv[1], type=Wanted)))
