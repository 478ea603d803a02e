"""Just enough of an HTTP client to measure with: it takes the time when bytes arrive, and adds little to it.

Gives `Connection` for requests, one after the other, and `Stream` for one event stream. Knows only what the
measured servers send: bodies with a length, and streams.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec

HOST = "127.0.0.1"
WAIT_S = 60.0
"""Nothing that is measured takes as long."""
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Reply(NamedTuple):
    """A whole response."""

    status: int
    body: bytes
    at: float
    """When its last byte had arrived, by `time.perf_counter`."""


def request(method: str, path: str, headers: dict[str, str], body: Any = None) -> bytes:
    """The bytes of a request. `headers` has the host, as it must."""
    sent = b"" if body is None else msgspec.json.encode(body)
    shown = dict(headers)
    if body is not None:
        shown |= {"Content-Type": "application/json", "Content-Length": str(len(sent))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in shown.items())]
    return "\r\n".join(lines).encode() + _HEAD_END + sent


async def pause(seconds: float) -> None:
    """Let some time pass: between two questions, never to wait for something."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


class Connection(asyncio.Protocol):
    """A connection that is kept, with one request at a time."""

    def __init__(self) -> None:
        self._came = bytearray()
        self._reply: asyncio.Future[Reply] | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, sent: bytes) -> Reply:
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        return await asyncio.wait_for(self._reply, WAIT_S)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        self._came += data
        head, found, body = bytes(self._came).partition(_HEAD_END)
        if not found:
            return
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(body) >= size and self._reply is not None:
            self._came.clear()
            self._reply.set_result(Reply(int(head[9:12]), body[:size], at))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionError("the server closed the connection"))


class Stream(asyncio.Protocol):
    """One event stream. `heard` gets what arrives, with the time."""

    def __init__(self, sent: bytes, heard: Callable[[bytes, float], None]) -> None:
        self._sent = sent
        self._heard = heard
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, port: int, sent: bytes, heard: Callable[[bytes, float], None]) -> Stream:
        """Returns once the first bytes of the body are here."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: cls(sent, heard), HOST, port)
        await asyncio.wait_for(stream._opened, WAIT_S)
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        if not self._opened.done() and b"retry:" in data:
            self._opened.set_result(None)
        self._heard(data, at)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionError("the server closed the stream"))

    def close(self) -> None:
        self._transport.close()
