"""An event log that tells how long its appends take, and whether it takes anything.

Takes a log and a clock; gives the same log. Only `append` is timed, and a failed one counts too: its caller waited
as well. What `append` and `create` could not write is kept as `trouble`. Never changes what the log does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnwire.errors import LogCorrupt, LogUnavailable
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.runtime.clock import Clock

SICK = (LogUnavailable, LogCorrupt)
"""What the log itself suffers from. Other refusals are about one append and say nothing of the next."""


class Trouble(NamedTuple):
    """What the log could not take."""

    code: str
    size: int
    """Bytes of the largest write among those that failed."""


class TimedLog:
    """An `EventLog` over another."""

    def __init__(self, log: EventLog, clock: Clock, took: Callable[[float], None]) -> None:
        self._log = log
        self._clock = clock
        self._took = took
        self.trouble: Trouble | None = None
        """None once something as large was taken again."""

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """As the log does, with its time told in seconds."""
        began = self._clock.monotonic()
        try:
            head = await self._log.append(
                session_id, bodies, expected=expected, unsettled=unsettled, durable=durable
            )
        except SICK as error:
            self._failed(error.code, sum(map(len, bodies)))
            raise
        finally:
            self._took(self._clock.monotonic() - began)
        if bodies and self.trouble is not None:
            # One without bodies needs no room, so it says nothing.
            self._stored(sum(map(len, bodies)))
        return head

    def forget(self, trouble: Trouble) -> None:
        """Something as large was written since. A newer trouble stays."""
        if self.trouble is trouble:
            self.trouble = None

    async def create(self, session_id: SessionId) -> SessionHead:
        try:
            created = await self._log.create(session_id)
        except SICK as error:
            self._failed(error.code, 0)
            raise
        self._stored(0)
        return created

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

    def _failed(self, code: str, size: int) -> None:
        self.trouble = Trouble(code, size if self.trouble is None else max(size, self.trouble.size))

    def _stored(self, size: int) -> None:
        # On a disk that is nearly full small things still fit, and the prompt after them does not.
        if self.trouble is not None and size >= self.trouble.size:
            self.trouble = None
