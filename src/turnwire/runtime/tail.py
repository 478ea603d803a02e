"""The newest events of a session, in memory, shared by everybody who follows it.

Takes stored events after their commit; gives slices of frames, each encoded once per projection however many
read it. Keeps a bounded number of events and bytes. Never waits for a reader and knows none: a reader is a
cursor of its own that waits here for more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import TypeAlias

from turnwire.ids import Epoch
from turnwire.limits import Limits

Projection: TypeAlias = Callable[[int, bytes], bytes]
"""An event as one kind of client reads it: (offset, stored form) → frame."""


def stored(offset: int, body: bytes) -> bytes:
    """The projection that changes nothing."""
    return body


class Tail:
    """A ring over the end of one session's log."""

    def __init__(self, limits: Limits, epoch: Epoch, head: int) -> None:
        self.epoch = epoch
        self._limits = limits
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._first = head + 1
        self._channels: dict[Projection, Channel] = {}
        self._more: asyncio.Future[None] | None = None
        self.head = head
        """Offset of the newest event."""
        self.is_over = False

    @property
    def first(self) -> int:
        """Offset of the oldest event kept here."""
        return self._first

    def publish(self, bodies: Sequence[bytes]) -> None:
        """Show events that are in the log. Only the session's loop calls this, right after the commit."""
        self._bodies.extend(bodies)
        self._bytes += sum(map(len, bodies))
        self.head += len(bodies)
        self._shorten()
        self._wake()

    def skip_to(self, head: int) -> None:
        """The log is further than this ring knows: start over behind its head. The log has the rest."""
        if head > self.head:
            self._bodies.clear()
            self._bytes = 0
            self.head = head
            self._first = head + 1
            for channel in self._channels.values():
                channel.forget(self._first)
            self._wake()

    def end(self) -> None:
        """There will be no more: followers read to the head and stop."""
        self.is_over = True
        self._wake()

    def channel(self, projection: Projection) -> Channel:
        """Frames of one projection."""
        channel = self._channels.get(projection)
        if channel is None:
            channel = self._channels[projection] = Channel(self, projection)
        return channel

    async def wait(self, after: int) -> bool:
        """Return when there are events after `after`; False if there never will be. Cancel-safe."""
        while self.head <= after:
            if self.is_over:
                return False
            if self._more is None or self._more.done():
                self._more = asyncio.get_running_loop().create_future()
            # One future wakes all; shielded, so that one reader's cancellation is not the others'.
            await asyncio.shield(self._more)
        return True

    def bodies(self, after: int, count: int) -> list[bytes]:
        """Up to `count` stored events after an offset that is still kept here."""
        start = after + 1 - self._first
        assert start >= 0, "the caller checked that the ring reaches back this far"
        return self._bodies[start : start + count]

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _shorten(self) -> None:
        """Drop the oldest in large steps, so that dropping costs O(1) per event."""
        limits, kept = self._limits, len(self._bodies)
        if kept <= 2 * limits.ring_events and self._bytes <= 2 * limits.ring_bytes:
            return
        size = self._bytes
        drop = max(0, kept - limits.ring_events)
        size -= sum(map(len, self._bodies[:drop]))
        while size > limits.ring_bytes and drop < kept:
            size -= len(self._bodies[drop])
            drop += 1
        del self._bodies[:drop]
        self._first += drop
        self._bytes = size
        for channel in self._channels.values():
            channel.forget(self._first)


class Channel:
    """The ring in one projection. A frame is encoded when the first reader needs it, then shared."""

    def __init__(self, tail: Tail, projection: Projection) -> None:
        self._tail = tail
        self._project = projection
        self._frames: list[bytes] = []
        self._ends: list[int] = []
        """Where each frame ends, counted in bytes since the channel began: a page is cut by looking, not adding."""
        self._first = tail.head + 1

    def frames(self, after: int, max_events: int, max_bytes: int) -> list[bytes] | None:
        """Frames after an offset, at least one if there is any; none if the ring does not reach back to it."""
        tail = self._tail
        if after + 1 < tail.first:
            return None
        self._reach(after + 1)
        start = after + 1 - self._first
        if start >= len(self._frames):
            return []
        before = self._ends[start] - len(self._frames[start])
        end = bisect_right(self._ends, before + max_bytes, lo=start + 1)
        return self._frames[start : min(end, start + max_events)]

    def forget(self, first: int) -> None:
        """The ring dropped what is before `first`."""
        if first > self._first:
            del self._frames[: first - self._first]
            del self._ends[: first - self._first]
            self._first = first

    def _reach(self, offset: int) -> None:
        """Encode what is missing between `offset` and the head."""
        tail, project = self._tail, self._project
        if offset < self._first:
            # Somebody came from further back than anybody before.
            older = tail.bodies(offset - 1, self._first - offset)
            self._frames[:0] = (
                older if project is stored else [project(offset + i, body) for i, body in enumerate(older)]
            )
            self._ends = list(accumulate(map(len, self._frames)))
            self._first = offset
        end = self._first + len(self._frames)
        if end <= tail.head:
            newer = tail.bodies(end - 1, tail.head + 1 - end)
            frames = newer if project is stored else [project(end + i, body) for i, body in enumerate(newer)]
            self._frames.extend(frames)
            size = self._ends[-1] if self._ends else 0
            self._ends.extend(islice(accumulate(map(len, frames), initial=size), 1, None))
