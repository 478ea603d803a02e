"""Following a session: everything after a cursor, once each, in order, then whatever comes.

Takes a position; gives pages of stored events for as long as the caller reads. Never queues for a reader, never
evicts one, never delays the session.

Theory of operation
-------------------
A reader is a cursor, nothing else. What is hard is the seam between history and the present: events arrive
while history is read, and a reader may fall behind at any time. The one strategy is that there is no seam. On
every step the cursor asks the ring; if the ring reaches back to it, it takes the slice behind it, and if not,
it reads one page of the log. Both give exactly the events cursor+1, cursor+2 … because the ring is a suffix of
the log (events are published in log order, right after their commit). So a reader moves between the two as
often as it likes, and stalling costs it nothing but reading from disk later.

    F1  A follower gives offsets cursor+1, cursor+2, … without a gap or a repeat, whatever its pace.
    F2  Nothing is given that is not in the log.
    F3  A follower holds one page at most: `page_events` events and `page_bytes` bytes (or one larger event).
    F4  A cursor that cannot be honoured raises `PositionLost` before anything is given; a cursor that becomes
        so later (its events were trimmed while it stalled) raises it at that point, never skipping.
    F5  A follower that is never read costs the publisher nothing: publishing does not know it.
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


async def follow(
    log: EventLog, tail: Tail, session_id: SessionId, after: Position, limits: Limits
) -> AsyncGenerator[Page]:
    """Pages after `after`; ends when the session is over. Raises `PositionLost`. Cancel-safe between pages."""
    check_shown(tail, after)
    cursor = after.offset
    while True:
        frames = tail.frames(cursor, limits.page_events, limits.page_bytes)
        if frames is None:
            page = await log.read(
                session_id,
                Position(after.epoch, cursor),
                max_events=limits.page_events,
                max_bytes=limits.page_bytes,
            )
            frames = [each.body for each in page]
        if frames:
            cursor += len(frames)
            yield Page(cursor, frames)
        elif not await tail.wait(cursor):
            return


def check_shown(tail: Tail, after: Position) -> None:
    """Raises `PositionLost` for a position of another life, or of what nobody has been shown yet."""
    if after.epoch != tail.epoch:
        raise PositionLost("this position is of another life of the session; read from the start", why="epoch")
    if after.offset > tail.head:
        raise PositionLost("this position is beyond the end of the log", why="ahead", head=tail.head)


def start_of(epoch: Epoch) -> Position:
    """The position before the first event."""
    return Position(epoch, 0)
