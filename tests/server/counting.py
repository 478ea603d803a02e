"""Cheap readers for many streams at a time: they count events and decode only the relevant ones.

The input is addresses; the result is `Counter`s that read on the running loop at full speed. Decoding every event
of a thousand streams would measure the test instead of the daemon.
"""

from __future__ import annotations

import asyncio
import re
import socket
from urllib.parse import urlsplit

import anyio

_MARK = b"\nid: "
_ID = re.compile(rb"\nid: (\d+)\nevent: ")
_END = b"\nevent: turn_complete\n"
_OVERLAP = max(len(_MARK), len(_END)) - 1


class Counter(asyncio.Protocol):
    """One stream over HTTP/1.1. Frames are never split by the server's chunks, so counting needs no parsing."""

    def __init__(self, request: bytes, ends: int, *, close: bool) -> None:
        self._request = request
        self._wanted = ends
        self._looks = close
        self._tail = b""
        self._kept = bytearray()
        self.transport: asyncio.Transport | None = None
        self.frames = -1
        """Events so far; the first id is the position at which the stream begins."""
        self.ends = 0
        self.bytes = 0
        self.begun = anyio.Event()
        self.done = anyio.Event()
        """Set when all ends have come, or the connection is lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if self._looks:
            self._kept += data
        joined = self._tail + data
        self.frames += joined.count(_MARK)
        self.ends += joined.count(_END)
        self._tail = _rest(joined)
        if self.frames >= 0:
            self.begun.set()
        if self.ends >= self._wanted:
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.begun.set()
        self.done.set()

    def expect(self, ends: int) -> None:
        """`done` shall wait for this many ends more."""
        self._wanted = self.ends + ends
        self.done = anyio.Event()

    def ids(self) -> list[int]:
        """Every event's id, of a reader that looks closely."""
        return [int(each) for each in _ID.findall(bytes(self._kept))]

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _rest(joined: bytes) -> bytes:
    """Return bytes that may be the beginning of a mark that the next bytes complete, without any whole one."""
    tail = joined[-_OVERLAP:]
    for mark in (_MARK, _END):
        tail = tail[tail.rfind(mark) + 1 :]
    return tail


async def count_stream(
    url: str, path: str, headers: dict[str, str], *, ends: int, close: bool = False, buffer: int | None = None
) -> Counter:
    """Open a stream that has begun."""
    address = urlsplit(url)
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {address.netloc}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    request = "\r\n".join([*lines, "", ""]).encode()
    assert address.hostname
    connection = socket.socket()
    connection.setblocking(False)
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (address.hostname, address.port))
    _, counter = await loop.create_connection(lambda: Counter(request, ends, close=close), sock=connection)
    await counter.begun.wait()
    return counter
