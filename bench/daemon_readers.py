"""Many subscribers of one session, in a process of their own: they wait for the ends of turns and do nothing else.

Runs as a program; takes one JSON object. Prints `ready` when all streams are open, then one line per turn: when the
last subscriber had its end, and how many events the first one counted. The others do not count: on few cores the
reading would be what is measured. A stream that is closed before the end is cut.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import cast

import msgspec
import uvloop

from bench.daemon_http import HOST, WAIT_S

BUFFER_BYTES = 256 * 1024
AT_ONCE = 50
"""Streams that are opened at the same time."""
NEWLINE = 10
LAST_BYTES = 4096
"""Where the end of a turn is looked for in what arrives: little comes after it."""
END = b"event: turn_complete"


class Wanted(msgspec.Struct):
    """What to read."""

    port: int
    request: str
    subscribers: int
    turns: int
    """Each ends with one `turn_complete`."""


class Turn(msgspec.Struct):
    """What arrived of one turn."""

    at: float
    """When the last subscriber had the end of it, by `time.perf_counter`."""
    events: int
    """Of the turn, as the first subscriber counted them."""
    cut: int
    """Subscribers whose stream was closed before the end."""


class Readers:
    """What all subscribers share: the buffer they are read into, and the count."""

    def __init__(self, subscribers: int) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.events = 0
        self.cut = 0
        self._subscribers = subscribers
        self.begin()

    def begin(self) -> None:
        self._ended = 0
        self.all_ended = asyncio.Event()
        self._check()

    def end(self) -> None:
        self._ended += 1
        self._check()

    def lose(self) -> None:
        self.cut += 1
        self._check()

    def _check(self) -> None:
        if self._ended + self.cut >= self._subscribers:
            self.all_ended.set()


class Reader(asyncio.BufferedProtocol):
    """One subscriber."""

    def __init__(self, readers: Readers, request: bytes, counts: bool) -> None:
        self._readers = readers
        self._counts = counts
        self._request = request
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
            # An event ends with an empty line, and that may come in two pieces.
            readers.events += buffer.count(b"\n\n", 0, nbytes) + (tail[-1:] == b"\n" and buffer[0] == NEWLINE)
        has_end = buffer.rfind(END, max(0, nbytes - LAST_BYTES), nbytes) >= 0
        has_end = has_end or END in tail + buffer[: min(nbytes, len(END) - 1)]
        self._tail = bytes(buffer[max(0, nbytes - len(END) + 1) : nbytes])
        if not self.opened.done() and buffer.find(b"retry:", 0, nbytes) >= 0:
            self.opened.set_result(None)
        if has_end:
            readers.end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("the server refused a stream"))
        self._readers.lose()


async def read(wanted: Wanted) -> None:
    readers = Readers(wanted.subscribers)
    loop = asyncio.get_running_loop()
    request = wanted.request.encode()
    for start in range(0, wanted.subscribers, AT_ONCE):
        together = [
            loop.create_connection(partial(Reader, readers, request, number == 0), HOST, wanted.port)
            for number in range(start, min(start + AT_ONCE, wanted.subscribers))
        ]
        opening = [reader.opened for _, reader in await asyncio.gather(*together)]
        await asyncio.wait_for(asyncio.gather(*opening), WAIT_S)
    print("ready", flush=True)
    for _ in range(wanted.turns):
        readers.events = 0
        await asyncio.wait_for(readers.all_ended.wait(), WAIT_S)
        turn = Turn(at=time.perf_counter(), events=readers.events, cut=readers.cut)
        readers.begin()
        print(msgspec.json.encode(turn).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(read(msgspec.json.decode(sys.argv[1], type=Wanted)))
