"""Duration and failures of a log's calls, for metrics and readiness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from turnwire.errors import LogCorrupt, LogUnavailable, NotOwner
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Stored
from turnwire.log.owners import Claim, Owners

SICK = (LogUnavailable, LogCorrupt)
"""Errors of the log itself. Other errors concern one append and do not predict the next."""


class Trouble(NamedTuple):
    """A failed write."""

    code: str
    size: int
    """Bytes of the largest write that failed."""


class _HookedLog:
    """A log with some calls replaced."""

    def __init__(self, log: EventLog | Owners, **calls: Callable[..., Any]) -> None:
        self._log = log
        self.__dict__ |= calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class LogMeter:
    """The duration of a log's appends, and the log's health."""

    def __init__(self, timer: Callable[[], float], took: Callable[[float], None]) -> None:
        """`took` receives the duration of each append in seconds of `timer`, including failed ones."""
        self.trouble: Trouble | None = None
        """The current trouble; `None` once a write at least as large has succeeded."""
        self.is_damaged = False
        """True if a read found damage. Only a restart with a restored log resets it."""
        self.taken_over = self.fence_refusals = 0
        self._timer = timer
        self._append_took = took

    def counted(self, owners: Owners) -> Owners:
        """Return the same owners, with takeovers counted here."""

        async def steal(life: int, limit: int) -> list[Claim]:
            return self._took(await owners.steal(life, limit))

        async def adopt(limit: int) -> list[Claim]:
            return self._took(await owners.adopt(limit))

        return cast("Owners", _HookedLog(owners, steal=steal, adopt=adopt))

    def _took(self, claims: list[Claim]) -> list[Claim]:
        self.taken_over += len(claims)
        return claims

    def hooked(self, log: EventLog) -> EventLog:
        """Return the same log, with writes observed here."""

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
                # An append without bodies needs no space, so its success proves nothing.
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

        async def read(session_id: SessionId, after: Position, *, max_events: int, max_bytes: int) -> list[Stored]:
            try:
                return await log.read(session_id, after, max_events=max_events, max_bytes=max_bytes)
            except LogCorrupt:
                self.is_damaged = True
                raise

        return cast("EventLog", _HookedLog(log, append=append, create=create, read=read))

    def forget(self, trouble: Trouble) -> None:
        """Reset the trouble: a write at least as large has succeeded since. A newer trouble stays."""
        if self.trouble is trouble:
            self.trouble = None

    def _failed(self, code: str, size: int) -> None:
        self.trouble = Trouble(code, size if self.trouble is None else max(size, self.trouble.size))

    def _stored(self, size: int) -> None:
        # On a nearly full disk small writes still succeed, while the next prompt fails.
        if self.trouble is not None and size >= self.trouble.size:
            self.trouble = None
