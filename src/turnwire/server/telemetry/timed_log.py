"""An event log that tells how long its appends take.

Takes a log and a clock; gives the same log. Only `append` is looked at, and a failed one counts too: its caller
waited as well. Never changes what the log does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.runtime.clock import Clock


class TimedLog:
    """An `EventLog` over another."""

    def __init__(self, log: EventLog, clock: Clock, took: Callable[[float], None]) -> None:
        self._log = log
        self._clock = clock
        self._took = took

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """As the log does, with its time told in seconds."""
        began = self._clock.monotonic()
        try:
            return await self._log.append(
                session_id, bodies, expected=expected, unsettled=unsettled, durable=durable
            )
        finally:
            self._took(self._clock.monotonic() - began)

    async def create(self, session_id: SessionId) -> SessionHead:
        return await self._log.create(session_id)

    async def head(self, session_id: SessionId) -> SessionHead:
        return await self._log.head(session_id)

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        return await self._log.read(session_id, after, max_events=max_events, max_bytes=max_bytes)

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        return await self._log.sessions(unsettled_only=unsettled_only, after=after, limit=limit)

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        await self._log.save_snapshot(session_id, snapshot)

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        return await self._log.load_snapshot(session_id, name)

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        return await self._log.trim(session_id, upto=upto)

    async def delete(self, session_id: SessionId) -> None:
        await self._log.delete(session_id)

    async def aclose(self) -> None:
        await self._log.aclose()
