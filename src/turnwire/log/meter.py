"""How long the writes of a log take, and whether it takes any: a hook before those calls alone.

All other calls are the log's own, so nothing stands before its readers. What the numbers are for is not known here:
metrics show them, and whoever asks whether the daemon is ready hears of the trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from turnwire.errors import LogCorrupt, LogUnavailable, NotOwner
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead
from turnwire.log.owners import Claim, Owners

SICK = (LogUnavailable, LogCorrupt)
"""What the log itself suffers from. Other refusals are about one append and say nothing of the next."""


class Trouble(NamedTuple):
    """What the log could not take."""

    code: str
    size: int
    """Bytes of the largest write among those that failed."""


class _HookedLog:
    """A log of which some calls are others. All else is the log's own, so nothing stands before its readers."""

    def __init__(self, log: EventLog | Owners, **calls: Callable[..., Any]) -> None:
        self._log = log
        self.__dict__ |= calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class LogMeter:
    """How long a log's appends take, and whether it takes anything."""

    def __init__(self, timer: Callable[[], float], took: Callable[[float], None]) -> None:
        """`took` hears of each append how many seconds of `timer` it took, also if it failed."""
        self.trouble: Trouble | None = None
        """What the log could not take; none once something as large was taken again."""
        self.taken_over = self.fence_refusals = 0
        self._timer = timer
        self._append_took = took

    def counted(self, owners: Owners) -> Owners:
        """The same owners; what is taken over is counted here."""

        async def steal(life: int, limit: int) -> list[Claim]:
            return self._took(await owners.steal(life, limit))

        async def adopt(limit: int) -> list[Claim]:
            return self._took(await owners.adopt(limit))

        return cast("Owners", _HookedLog(owners, steal=steal, adopt=adopt))

    def _took(self, claims: list[Claim]) -> list[Claim]:
        self.taken_over += len(claims)
        return claims

    def hooked(self, log: EventLog) -> EventLog:
        """The same log, whose writes are seen here."""

        async def append(
            session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
        ) -> int:
            began = self._timer()
            try:
                head = await log.append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)
            except SICK as error:
                self._failed(error.code, sum(map(len, bodies)))
                raise
            except NotOwner:
                self.fence_refusals += 1
                raise
            finally:
                self._append_took(self._timer() - began)
            if bodies and self.trouble is not None:
                # One without bodies needs no room, so it says nothing.
                self._stored(sum(map(len, bodies)))
            return head

        async def create(session_id: SessionId) -> SessionHead:
            try:
                created = await log.create(session_id)
            except SICK as error:
                self._failed(error.code, 0)
                raise
            self._stored(0)
            return created

        return cast("EventLog", _HookedLog(log, append=append, create=create))

    def forget(self, trouble: Trouble) -> None:
        """Something as large was written since. A newer trouble stays."""
        if self.trouble is trouble:
            self.trouble = None

    def _failed(self, code: str, size: int) -> None:
        self.trouble = Trouble(code, size if self.trouble is None else max(size, self.trouble.size))

    def _stored(self, size: int) -> None:
        # On a disk that is nearly full small things still fit, and the prompt after them does not.
        if self.trouble is not None and size >= self.trouble.size:
            self.trouble = None
