"""The event log: what it promises to the session loop, and what every engine must keep.

Takes encoded events of a session at an expected position; gives them back in order. Never looks into an
event, never reorders, never acknowledges what it could lose. The session loop writes, `runtime.follow` reads.

Theory of operation
-------------------
A session's log is a list of events numbered 1, 2, 3 … without gaps, for ever. One owner appends. Readers read
any part at any time and never disturb the owner. The hard parts are a crash between "written" and
"acknowledged", and a cursor that outlived what it points to. One strategy for each: an append names the
offset it expects to follow, so a writer that lost track is refused instead of forking history; and a cursor
carries the epoch of the log it came from, so a cursor into a log that was lost is refused instead of
silently matching other events.

Obligations (the contract kit `turnwire.testing.contracts` checks them against any engine):

L1  Contiguous. Offsets of a session are 1..head; `read` returns them in order, once each, none missing.
L2  Atomic. An append is stored whole or not at all, also over a crash.
L3  Fenced. An append whose `expected` is not the head is refused with `AppendConflict`, and writes nothing.
L4  Acknowledged is kept. Once `append` returned, the events survive the death of this process; with
    `durable=True` they survive the death of the machine, at every durability level.
L5  Not visible before kept. `read` and `head` show nothing that a crash of this process could still undo.
L6  Cancellation is no undo. If `append` is cancelled the events may still be written; the owner that goes on
    asks `head` first.
L7  Epochs. A session's epoch is given at `create`, never changes while its events live, and a session that
    is deleted and created again gets another one. `read` after a position of another epoch, before the
    oldest kept event, or beyond the head raises `PositionLost` with `why` = `epoch`, `trimmed`, `ahead`.
L8  Snapshots are a cache. `save_snapshot` keeps the newest per name; losing one loses nothing but time.
    A snapshot beyond the head is refused (`LocalProtocolError`).
L9  Trimming removes a prefix and nothing else: the rest keeps its offsets, the head stays.
L10 Sessions are independent. A failed append, a delete or a trim in one never shows in another.
L11 Failure is honest. What cannot be stored raises a `LogError` that says why, and the log stays usable for
    everything that still works; it never reports success for what it dropped.

Following is not the log's duty: the publisher wakes the readers after the commit (`runtime.follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from turnwire.ids import Epoch, SessionId


class Position(NamedTuple):
    """A place in a session's log: after the event with this offset, in this epoch."""

    epoch: Epoch
    offset: int


class Stored(NamedTuple):
    """One event as the log keeps it."""

    offset: int
    body: bytes


class Snapshot(NamedTuple):
    """Something folded from the log, and the offset up to which it is folded."""

    name: str
    """Which fold: a session has one newest snapshot per name."""
    offset: int
    version: int
    body: bytes


class SessionHead(NamedTuple):
    """A session as the log knows it."""

    session_id: SessionId
    epoch: Epoch
    first: int
    """Offset of the oldest kept event; head + 1 when none is kept."""
    head: int
    """Offset of the newest event; 0 when there is none."""
    unsettled: bool
    """The owner said at its last append that the session owes something: a turn is open or prompts wait."""


@runtime_checkable
class EventLog(Protocol):
    """Where sessions' events are kept. See the obligations above; every method may raise `LogError`."""

    async def create(self, session_id: SessionId) -> SessionHead:
        """Begin an empty log. Raises `SessionExists`."""
        ...

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Where the session's log stands. Raises `SessionNotFound`.

        `anew`: as it is stored now. An owner knows the head by heart, also for a moment after another life took the
        session over (L12): whoever is about to say that there is no such event asks this way.
        """
        ...

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """Store `bodies` after offset `expected`; returns the new head. No bodies only set `unsettled`.

        Raises `AppendConflict`, `SessionNotFound`.
        """
        ...

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        """Events after a position, oldest first; at least one if there is any, then up to either bound."""
        ...

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        """Sessions in order of their id, a page at a time."""
        ...

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Keep a fold; one at a lower offset than what is kept under its name is ignored.

        Raises `SessionNotFound`, and `LocalProtocolError` for one beyond the head.
        """
        ...

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        """The newest kept snapshot of that name, if any."""
        ...

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Forget events up to an offset, inclusive; returns the offset of the oldest kept event."""
        ...

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it. Raises `SessionNotFound`."""
        ...

    async def aclose(self) -> None:
        """Finish what was accepted, then release everything. Idempotent."""
        ...
