"""The event log: its guarantees to the session loop, and the obligations of every engine.

A log stores encoded events of a session at an expected position and returns them in order. It never reads an
event's content, never reorders, never acknowledges an event it could lose. The session loop writes,
`runtime.follow` reads.

Theory of operation
-------------------
A session's log is a list of events numbered 1, 2, 3 … without gaps, permanently. One owner appends. Readers read
any part at any time and never disturb the owner. The hard parts are a crash between "written" and "acknowledged",
and a cursor that outlives the events it points to. Each has one solution. An append names the offset it expects to
follow, so a writer that lost track is rejected instead of forking history. A cursor carries the epoch of the log it
came from, so a cursor into a log that was lost is rejected instead of silently matching other events.

Obligations (the contract kit `turnwire_testing.contracts` checks them against any engine):

L1  Contiguous. Offsets of a session are 1..head; `read` returns them in order, once each, none missing.
L2  Atomic. An append is stored whole or not at all, also over a crash.
L3  Fenced. An append whose `expected` is not the head is rejected with `AppendConflict`, and writes nothing.
L4  Acknowledged means stored. Once `append` returned, the events survive the death of this process; with
    `durable=True` they survive the death of the machine, at every durability level.
L5  Stored before visible. `read` and `head` show nothing that a crash of this process could still undo.
L6  Cancellation is no undo. If `append` is cancelled the events may still be written; the owner calls `head`
    before it continues.
L7  Epochs. A session's epoch is assigned at `create`, never changes while its events live, and a session that
    is deleted and created again gets another one. `read` after a position of another epoch, before the
    oldest stored event, or beyond the head raises `PositionLost` with `why` = `epoch`, `trimmed`, `ahead`.
L8  Snapshots are a cache. `save_snapshot` stores the newest per name; losing one loses nothing but time.
    A snapshot beyond the head is rejected (`LocalProtocolError`).
L9  Trimming removes a prefix and nothing else: the other events have the same offsets, the head stays.
L10 Sessions are independent. A failed append, a delete or a trim in one never shows in another.
L11 Failure is honest. A failure to store raises a `LogError` with the reason, and the log stays usable for all
    operations that still work; it never reports success for events it dropped.

Following is not the log's duty: the publisher wakes the readers after the commit (`runtime.follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from turnwire.ids import Epoch, SessionId


class Position(NamedTuple):
    """A position in a session's log: after the event with this offset, in this epoch."""

    epoch: Epoch
    offset: int


class Stored(NamedTuple):
    """One stored event."""

    offset: int
    body: bytes


class Snapshot(NamedTuple):
    """A fold of the log, and the offset up to which it is folded."""

    name: str
    """Name of the fold: a session has one newest snapshot per name."""
    offset: int
    version: int
    body: bytes


class SessionHead(NamedTuple):
    """The log's entry of a session."""

    session_id: SessionId
    epoch: Epoch
    first: int
    """Offset of the oldest stored event; head + 1 if no event is stored."""
    head: int
    """Offset of the newest event; 0 if there is no event."""
    unsettled: bool
    """True if the owner's last append marked the session as unsettled: a turn is open or prompts are queued."""


@runtime_checkable
class EventLog(Protocol):
    """The store of sessions' events. See the obligations above; every method may raise `LogError`."""

    async def create(self, session_id: SessionId) -> SessionHead:
        """Create an empty log. Raises `SessionExists`."""
        ...

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Return the head of the session's log. Raises `SessionNotFound`.

        `anew`: read it from the store. An owner caches the head, and uses it for a moment even after another
        incarnation took the session over (L12). Pass `anew` before reporting that an event does not exist.
        """
        ...

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """Store `bodies` after offset `expected`; return the new head. Without bodies only `unsettled` is set.

        Raises `AppendConflict`, `SessionNotFound`.
        """
        ...

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        """Return events after a position, oldest first; at least one if there is any, then up to either bound."""
        ...

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        """Return sessions in order of their id, a page at a time."""
        ...

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Save a fold. It is ignored if its offset is lower than that of the stored one of the same name.

        Raises `SessionNotFound`, and `LocalProtocolError` for one beyond the head.
        """
        ...

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        """Return the newest stored snapshot of that name, if any."""
        ...

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Remove events up to an offset, inclusive; return the offset of the oldest remaining event."""
        ...

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it. Raises `SessionNotFound`."""
        ...

    async def aclose(self) -> None:
        """Finish all accepted changes, then release all resources. Idempotent."""
        ...
