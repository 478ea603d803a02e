"""Following a session: all events after a cursor, once each and in order, then new events as they arrive.

A follower starts at a position and yields pages of stored events for as long as the caller reads. It never queues
events for a reader, never evicts a reader, and never delays the session.

Theory of operation
-------------------
A reader is a cursor and nothing else. The difficulty is the seam between history and the present: events arrive
while history is being read, and a reader may fall behind at any time. The solution is to have no seam. On every
step the cursor asks the ring. If the ring reaches back to the cursor, it returns the slice after it; if not, the
cursor reads one page of the log. Both yield exactly the events cursor+1, cursor+2 … because the ring is a suffix of
the log (events are published in log order, right after their commit). So a reader may move between the two at any
time, and a stalled reader only has to read from disk later.

    F1  A follower yields offsets cursor+1, cursor+2, … without a gap or a repeat, whatever its pace.
    F2  Every event it yields is in the log.
    F3  A follower holds one page at most: `page_events` events and `page_bytes` bytes (or one larger event).
    F4  A cursor that cannot be honoured raises `PositionLost` before the first page. If a cursor becomes invalid
        later (its events were trimmed while it stalled), it raises at that point and never skips events.
    F5  A follower that is never read costs the publisher nothing: the publisher does not know it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple

from turnwire.errors import PositionLost
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.runtime.tail import Tail


class Page(NamedTuple):
    """Some frames, and the offset of the last one."""

    offset: int
    frames: list[bytes]


class Cursor:
    """A follower's position. The events after it come from the ring without waiting, or from the log."""

    __slots__ = ("_limits", "_log", "_session_id", "offset", "tail")

    def __init__(self, log: EventLog, tail: Tail, session_id: SessionId, after: Position, limits: Limits) -> None:
        """Raises `PositionLost`."""
        check_shown(tail, after)
        self._log = log
        self._session_id = session_id
        self._limits = limits
        self.tail = tail
        self.offset = after.offset
        """Offset of the last event that was returned."""

    def take(self) -> list[bytes] | None:
        """Return a page of the ring, empty if there are no newer events; `None` if the log must be read."""
        frames = self.tail.frames(self.offset, self._limits.page_events, self._limits.page_bytes)
        if frames:
            self.offset += len(frames)
        return frames

    async def read(self) -> list[bytes]:
        """Return a page of the log. Raises `PositionLost`, `SessionNotFound`."""
        page = await self._log.read(
            self._session_id,
            Position(self.tail.epoch, self.offset),
            max_events=self._limits.page_events,
            max_bytes=self._limits.page_bytes,
        )
        self.offset += len(page)
        return [each.body for each in page]


async def follow(
    log: EventLog, tail: Tail, session_id: SessionId, after: Position, limits: Limits
) -> AsyncGenerator[Page]:
    """Yield pages after `after`; end when the session is over. Raises `PositionLost`. Cancel-safe between pages."""
    cursor = Cursor(log, tail, session_id, after, limits)
    while True:
        frames = cursor.take()
        if frames is None:
            frames = await cursor.read()
        if frames:
            yield Page(cursor.offset, frames)
        elif not await tail.wait(cursor.offset):
            return


def check_shown(tail: Tail, after: Position) -> None:
    """Raise `PositionLost` for a position of another epoch, or one after the newest published event."""
    if after.epoch != tail.epoch:
        raise PositionLost("this position is of another life of the session; read from the start", why="epoch")
    if after.offset > tail.head:
        raise PositionLost("this position is beyond the end of the log", why="ahead", head=tail.head)


def start_of(epoch: Epoch) -> Position:
    """Return the position before the first event."""
    return Position(epoch, 0)
