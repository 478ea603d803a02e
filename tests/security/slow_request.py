"""A request that is sent in pieces, over a socket of its own: HTTP/1.1 or HTTP/2, as a patient attacker does it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
import h2.config
import h2.connection
import h2.events
import h2.exceptions
from anyio.abc import SocketStream
from tests.support.daemons import Running

from turnwire.testing.patience import WAIT_S

FRAME = 16_384
"""The longest frame that everybody takes."""
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Answer(NamedTuple):
    """What came back. Its status is 0 if the connection or the stream was dropped without one."""

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
    """One request, whose body is sent as the test likes."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def send_body(self, part: bytes, *, is_last: bool = False) -> None:
        """A piece of the body. Nothing happens if nobody takes it any more."""
        raise NotImplementedError

    async def answer(self, within_s: float = WAIT_S) -> Answer:
        raise NotImplementedError

    async def begun(self) -> None:
        """Return once some of the answer is here. It is read no further before `answer`."""
        raise NotImplementedError


class SlowHttp1(SlowRequest):
    """Over HTTP/1.1, with a length that is told before."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream)
        self._came = b""

    async def begun(self) -> None:
        with anyio.fail_after(WAIT_S):
            self._came += await self._stream.receive()

    async def begin(self, method: str, path: str, headers: Mapping[str, str], size: int, host: str) -> None:
        lines = {"Host": host, "Content-Length": str(size), "Content-Type": "application/json", **headers}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self._stream.send(head.encode() + b"\r\n")

    async def send_body(self, part: bytes, *, is_last: bool = False) -> None:
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


class SlowHttp2(SlowRequest):
    """Over HTTP/2, as the one stream of a connection."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration())
        self._events: list[h2.events.Event] = []

    async def begun(self) -> None:
        with anyio.fail_after(WAIT_S):
            while not any(isinstance(each, h2.events.ResponseReceived) for each in self._events):
                self._events += self._h2.receive_data(await self._stream.receive())

    async def begin(self, method: str, path: str, headers: Mapping[str, str], size: int, host: str) -> None:
        self._h2.initiate_connection()
        lines = {"content-type": "application/json", **{name.lower(): value for name, value in headers.items()}}
        pseudo = {":method": method, ":scheme": "http", ":authority": host, ":path": path}
        self._h2.send_headers(1, [*pseudo.items(), *lines.items()])
        await self._stream.send(self._h2.data_to_send())

    async def send_body(self, part: bytes, *, is_last: bool = False) -> None:
        with suppress(*GONE, h2.exceptions.ProtocolError):
            for start in range(0, max(len(part), 1), FRAME):
                piece = part[start : start + FRAME]
                self._h2.send_data(1, piece, end_stream=is_last and start + FRAME >= len(part))
            await self._stream.send(self._h2.data_to_send())

    async def answer(self, within_s: float = WAIT_S) -> Answer:
        status, body = 0, b""
        with anyio.fail_after(within_s):
            try:
                while True:
                    events, self._events = self._events, []
                    for event in events:
                        match event:
                            case h2.events.ResponseReceived(headers=headers):
                                status = int(dict(headers or ())[b":status"])
                            case h2.events.DataReceived(data=bytes(data), flow_controlled_length=int(size)):
                                body += data
                                self._h2.acknowledge_received_data(size, 1)
                            case h2.events.StreamEnded():
                                return Answer(status, body)
                            case h2.events.StreamReset():
                                return Answer(status, body, is_whole=False)
                            case _:
                                pass
                    await self._stream.send(self._h2.data_to_send())
                    self._events += self._h2.receive_data(await self._stream.receive())
            except GONE:
                return Answer(status, body, is_whole=False)


@asynccontextmanager
async def slow_request(
    daemon: Running, method: str, path: str, headers: Mapping[str, str] | None = None, *, size: int = 0
) -> AsyncGenerator[SlowRequest]:
    """The head of a request is sent; `size` is the length that its body will have."""
    async with await connect(daemon) as stream:
        request = (SlowHttp2 if daemon.http2 else SlowHttp1)(stream)
        await request.begin(method, path, headers or {}, size, urlsplit(daemon.url).netloc)
        yield request
