"""The event log in memory: the reference engine, for tests and for sessions that need not be stored.

It follows `turnwire.log.base`. It never touches a disk, so nothing outlives the process. No method waits, so each
one is atomic on its event loop, and a cancelled call has either not begun or is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead, Snapshot, Stored


@dataclass
class _Session:
    epoch: Epoch
    first: int = 1
    bodies: list[bytes] = field(default_factory=list[bytes])
    """The stored events; `bodies[0]` has the offset `first`."""
    unsettled: bool = False
    snapshots: dict[str, Snapshot] = field(default_factory=dict[str, Snapshot])


class MemoryEventLog:
    """An `EventLog` that stores everything in lists."""

    def __init__(self, epochs: Callable[[], Epoch] = rules.random_epoch) -> None:
        self._epochs = epochs
        self._sessions: dict[SessionId, _Session] = {}
        self._closed = False

    async def create(self, session_id: SessionId) -> SessionHead:
        """Create an empty log. Raises `SessionExists`."""
        return await self.restore(session_id, self._epochs(), 1)

    async def restore(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        """Create a log that continues another one: see `turnwire.log.copying`. Raises `SessionExists`."""
        self._check_open()
        rules.check_session_id(session_id)
        if session_id in self._sessions:
            raise rules.exists(session_id)
        self._sessions[session_id] = _Session(epoch, first)
        return self._head(session_id)

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Return the head of the session's log. Raises `SessionNotFound`."""
        self._find(session_id)
        return self._head(session_id)

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """Store `bodies` after `expected`. `durable` has no effect: memory dies with its machine."""
        session = self._find(session_id)
        rules.check_append(self._head(session_id), expected)
        session.bodies.extend(bodies)
        session.unsettled = unsettled
        return expected + len(bodies)

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        """Return events after a position, oldest first. Raises `PositionLost`, `SessionNotFound`."""
        session = self._find(session_id)
        rules.check_position(self._head(session_id), after)
        page: list[Stored] = []
        size = 0
        start = after.offset + 1 - session.first
        for offset, body in enumerate(islice(session.bodies, start, None), after.offset + 1):
            size += len(body)
            # The first event is returned whatever its size: a reader has to get past it.
            if page and (len(page) >= max_events or size > max_bytes):
                break
            page.append(Stored(offset, body))
        return page

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        """Return sessions in order of their id, a page at a time."""
        self._check_open()
        wanted = sorted(
            session_id
            for session_id, session in self._sessions.items()
            if (session.unsettled or not unsettled_only) and (after is None or session_id > after)
        )
        return [self._head(session_id) for session_id in wanted[:limit]]

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Save a fold unless a newer one is stored. Raises `SessionNotFound`, `LocalProtocolError`."""
        session = self._find(session_id)
        rules.check_snapshot(self._head(session_id), snapshot)
        kept = session.snapshots.get(snapshot.name)
        if kept is None or kept.offset <= snapshot.offset:
            session.snapshots[snapshot.name] = snapshot

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        """Return the newest stored snapshot of that name, if any. Raises `SessionNotFound`."""
        return self._find(session_id).snapshots.get(name)

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Remove a prefix; return the offset of the oldest remaining event. Raises `SessionNotFound`."""
        session = self._find(session_id)
        forgotten = min(max(upto - session.first + 1, 0), len(session.bodies))
        del session.bodies[:forgotten]
        session.first += forgotten
        return session.first

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it. Raises `SessionNotFound`."""
        self._find(session_id)
        del self._sessions[session_id]

    async def aclose(self) -> None:
        """Reject all calls from now on. Idempotent."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise rules.closed()

    def _find(self, session_id: SessionId) -> _Session:
        self._check_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise rules.not_found(session_id)
        return session

    def _head(self, session_id: SessionId) -> SessionHead:
        session = self._sessions[session_id]
        head = session.first + len(session.bodies) - 1
        return SessionHead(session_id, session.epoch, session.first, head, session.unsettled)
