"""What waits to be sent to one client, in order.

Takes frames and never waits; gives them to the link as fast as the client reads. `room` is where a speaker waits
for a slow client, and `check_room` where one that never waits is stopped. Never reorders, never drops a frame of
a client that is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from turnwire.errors import LimitExceeded, LinkError
from turnwire.link.base import FrameLink

HARD = 4
"""Answers and ends are always taken. A client that asks and never reads is no longer read itself at this many times
the bound."""


class Outbox:
    """The frames for one client. `run` it beside the reader."""

    def __init__(self, link: FrameLink, max_bytes: int) -> None:
        self._link = link
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self.is_broken = False
        """The client reads no more; what it is sent is dropped."""

    def put(self, frame: bytes) -> None:
        """Send this after everything that was put before."""
        if self.is_broken:
            return
        if not self._frames:
            try:
                self._link.send_nowait(frame)
            except LimitExceeded:
                pass
            except LinkError:
                self.end()
                return
            else:
                return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()

    def check_room(self) -> None:
        """Raise `LimitExceeded` if too much waits already."""
        if self._bytes >= self._max_bytes:
            raise LimitExceeded(
                "the client does not read what it was told; await what you say, so that it waits for the client",
                limit="max_unsent",
                value=self._max_bytes,
            )

    async def room(self) -> None:
        """Return once the link has taken everything. Gives others a chance to run, even if it has already."""
        await checkpoint()
        while self._frames and not self.is_broken:
            await self._emptied.wait()

    async def bearable(self) -> None:
        """Return unless far too much waits: the place where reading from the client stops."""
        while self._bytes >= HARD * self._max_bytes and not self.is_broken:
            await self._emptied.wait()

    async def run(self) -> None:
        """Write until the client reads no more."""
        try:
            while not self.is_broken:
                while self._frames:
                    await self._link.send(self._frames[0])
                    self._bytes -= len(self._frames.popleft())
                self._emptied.set()
                self._emptied, self._filled = anyio.Event(), anyio.Event()
                await self._filled.wait()
        except LinkError:
            self.end()

    def end(self) -> None:
        """Nothing can be sent any more: wake everybody."""
        self.is_broken = True
        self._frames.clear()
        self._bytes = 0
        self._emptied.set()
        self._filled.set()


class Sent:
    """Something was said. `await` it to wait until the client takes more."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox

    def __await__(self) -> Generator[Any, Any, None]:
        return (checkpoint() if self._outbox is None else self._outbox.room()).__await__()
