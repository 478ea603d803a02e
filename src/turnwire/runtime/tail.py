"""The newest events of a session, in memory, shared by all followers.

A `Ring` receives frames in log order and returns slices of them; it stores a bounded number of events and bytes.
The `Tail` is the ring of the stored events: it receives them after their commit and wakes waiting readers. It never
waits for a reader and knows none: each reader has its own cursor.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from turnwire.ids import Epoch
from turnwire.limits import Limits
from turnwire.projections.envelope import Parties


class Ring:
    """A buffer with one frame for each of the newest events."""

    def __init__(self, limits: Limits, head: int) -> None:
        self.head = head
        """Offset of the newest event."""
        self.first = head + 1
        """Offset of the oldest event in the ring."""
        self._limits = limits
        self._frames: list[bytes] = []
        self._ends: list[int] = []
        """End of each frame, counted in bytes since the ring began, so that a page is found by bisection, without
        adding.
        """
        self._size = 0
        """End of the newest frame."""

    def add(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Append frames; return the oldest ones that are dropped to stay within the bounds."""
        ends = list(accumulate(map(len, frames), initial=self._size))
        self._frames += frames
        self._ends += ends[1:]
        self._size = ends[-1]
        self.head += len(frames)
        return self._shorten()

    def skip_to(self, head: int) -> None:
        """Start over after an event."""
        self._frames.clear()
        self._ends.clear()
        self.head, self.first = head, head + 1

    def frames(self, after: int, max_events: int, max_bytes: int) -> list[bytes] | None:
        """Return frames after an offset, at least one if there is any; `None` if the ring does not reach back to
        it.
        """
        start = after + 1 - self.first
        if start < 0:
            return None
        if start >= len(self._frames):
            return []
        before = self._ends[start] - len(self._frames[start])
        end = bisect_right(self._ends, before + max_bytes, lo=start + 1)
        return self._frames[start : min(end, start + max_events)]

    def page(self, after: int) -> list[bytes] | None:
        """Return the same, up to one page."""
        return self.frames(after, self._limits.page_events, self._limits.page_bytes)

    def _shorten(self) -> Sequence[bytes]:
        """Drop the oldest in large steps, so that dropping costs O(1) per event."""
        limits, kept = self._limits, len(self._frames)
        begin = self._ends[0] - len(self._frames[0]) if kept else self._size
        if kept <= 2 * limits.ring_events and self._size - begin <= 2 * limits.ring_bytes:
            return ()
        by_bytes = bisect_left(self._ends, self._size - limits.ring_bytes) + 1
        drop = max(kept - limits.ring_events, by_bytes if self._size - begin > limits.ring_bytes else 0)
        dropped = self._frames[:drop]
        del self._frames[:drop]
        del self._ends[:drop]
        self.first += drop
        return dropped


class Tail(Ring):
    """The ring of one session's newest stored events."""

    def __init__(self, limits: Limits, epoch: Epoch, head: int, parties: Parties | None = None) -> None:
        super().__init__(limits, head)
        self.epoch = epoch
        self.parties = parties or Parties()
        """Participants of the session before the first event in the ring."""
        self.is_over = False
        self.walks = 0
        """Number of tasks that are about to notify readers of new events. Readers that accept nothing do
        not count.
        """
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Readers waiting for more events, each with a separate future: a shared one needs a shield around it,
        which adds another event loop round to each wake-up.
        """
        self._watching: dict[Callable[[], None], None] = {}
        """Callbacks for the next events: for readers without a task."""

    def publish(self, bodies: Sequence[bytes]) -> None:
        """Publish events that are in the log. Its session's loop calls this right after the commit, or its shadow
        if the loop runs elsewhere.
        """
        dropped = self.add(bodies)
        if dropped:
            self.parties.pass_over(dropped)
        self._wake()

    def reopen(self, head: int, parties: Parties) -> None:
        """The session is opened again. If the log is ahead of this ring, start over after the log's head."""
        if head > self.head:
            self.skip_to(head)
            self.parties = parties
            self._wake()

    def end(self) -> None:
        """There will be no more: followers read to the head and stop."""
        self.is_over = True
        self._wake()

    async def wait(self, after: int) -> bool:
        """Return true when there are events after `after`; false if there never will be. Cancel-safe."""
        while self.head <= after:
            if self.is_over:
                return False
            more = asyncio.get_running_loop().create_future()
            self._waiting[more] = None
            try:
                await more
            except BaseException:
                self._waiting.pop(more, None)
                raise
        return True

    def watch(self, call: Callable[[], None]) -> None:
        """Call a function once, at the next events or at the end. It must be cheap, because the publisher
        calls it.
        """
        self._watching[call] = None

    def watch_no_more(self, call: Callable[[], None]) -> None:
        """Remove a callback, if it is set."""
        self._watching.pop(call, None)

    def _wake(self) -> None:
        watching, self._watching = self._watching, {}
        for call in watching:
            call()
        waiting, self._waiting = self._waiting, {}
        for more in waiting:
            if not more.done():
                more.set_result(None)
