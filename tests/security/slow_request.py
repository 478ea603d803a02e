"""A request that is sent in chunks, over a separate socket, as a patient attacker does it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream
from tests.support.daemons import Running

from turnwire_testing.patience import WAIT_S

GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Answer(NamedTuple):
    """The response. Its status is 0 if the connection was dropped without one."""

    status: int
    body: bytes
    is_whole: bool = True


async def connect(daemon: Running) -> SocketStream:
    parts = urlsplit(daemon.url)
    return await anyio.connect_tcp(parts.hostname or "", parts.port or 80)


async def until_closed(stream: SocketStream, within_s: float = WAIT_S) -> bytes:
    """All that comes until the other side ends or drops the connection."""
    came = b""
    with anyio.fail_after(within_s):
        try:
            while True:
                came += await stream.receive()
        except GONE:
            return came


class SlowRequest:
    """One request, whose body is sent at the test's pace."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._came = b""

    async def begun(self) -> None:
        """Return once some of the answer is here. It is read no further before `answer`."""
        with anyio.fail_after(WAIT_S):
            self._came += await self._stream.receive()

    async def begin(self, method: str, path: str, headers: Mapping[str, str], size: int, host: str) -> None:
        lines = {"Host": host, "Content-Length": str(size), "Content-Type": "application/json", **headers}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self._stream.send(head.encode() + b"\r\n")

    async def send_body(self, part: bytes) -> None:
        """Send a chunk of the body. Does nothing if the connection is gone."""
        with suppress(*GONE):
            await self._stream.send(part)

    async def answer(self, within_s: float = WAIT_S) -> Answer:
        came = self._came
        with anyio.fail_after(within_s):
            try:
                while b"\r\n\r\n" not in came:
                    came += await self._stream.receive()
                head, _, body = came.partition(b"\r\n\r\n")
                told = (line for line in head.lower().splitlines() if line.startswith(b"content-length"))
                size = next((int(line.split(b":")[1]) for line in told), None)
                # Without a length it is chunked, and ends with an empty chunk.
                while not (body.endswith(b"0\r\n\r\n") if size is None else len(body) >= size):
                    body += await self._stream.receive()
            except GONE:
                return Answer(0, came, is_whole=False)
        return Answer(int(head.split(b" ", 2)[1]), body)


@asynccontextmanager
async def slow_request(
    daemon: Running, method: str, path: str, headers: Mapping[str, str] | None = None, *, size: int = 0
) -> AsyncGenerator[SlowRequest]:
    """The head of a request is sent; `size` is the length that its body will have."""
    async with await connect(daemon) as stream:
        request = SlowRequest(stream)
        await request.begin(method, path, headers or {}, size, urlsplit(daemon.url).netloc)
        yield request
