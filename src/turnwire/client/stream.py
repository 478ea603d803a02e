"""The events of one session of a daemon, over as many connections as necessary.

Each event after the cursor is delivered once and in order, even if a connection is cut, delayed or silent. Nothing
is skipped: a cursor that the daemon cannot honour raises `PositionLost`.

Theory of operation
-------------------
The cursor is the id of the newest delivered event, so a new connection resumes exactly where the last one was cut,
at whatever byte that was. Repeated events are dropped by their id.

A connection that delivered an event and is then cut is replaced at once. If the next one delivers nothing either,
the wait begins at the time of the daemon's `retry:` and doubles from there, with random jitter. A connection that
lives for a while counts as good even if nothing happened in the session: its heartbeats came.

    E1  Ids are delivered in rising order, and each id once.
    E2  Nothing is delivered twice or omitted because of a cut.
    E3  It ends when the session is closed or gone, and raises when the daemon was away for `reconnect_s`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from turnwire.client.http import Http, is_passing, retry_after_of, segment
from turnwire.errors import DaemonUnreachable, PositionLost, RemoteProtocolError, SessionNotFound, TurnwireError
from turnwire.hosting.backoff import Backoff
from turnwire.wire.sse import SseEvent, SseReader

AS_SAID: Final = "agent"
"""The shape with the agent's updates as sent: an event is one envelope, and reads back as it was."""
SESSION_CLOSED: Final = "session_closed"
RESYNC: Final = "state_resync_required"

_AT_ONCE_S: Final = 0.05
"""Longest wait before the first retry: enough to spread a thousand clients over several milliseconds."""
_RETRY_S: Final = 1.0
"""Initial wait if the daemon has not named one."""
_MOST_S: Final = 30.0

logger = logging.getLogger(__name__)


class _Origin(Struct, rename="camel", gc=False):
    part_of: int | None = None


class _Numbered(Struct, gc=False):
    """The member that is read of every envelope."""

    id: int | None = None
    meta: _Origin = field(name="_meta", default_factory=_Origin)


class _Standing(Struct, rename="camel"):
    is_closed: bool = False


class _Lost(Struct, rename="camel"):
    reason: str = "unknown"
    detail: str | None = None
    last_delivered_id: int | None = None
    earliest_available_id: int | None = None


class _Resync(Struct):
    data: _Lost


_read_numbered = msgspec.json.Decoder(_Numbered).decode
_read_resync = msgspec.json.Decoder(_Resync).decode


class Frame(NamedTuple):
    """One envelope."""

    id: int | None
    """`None` for a frame that was made for one stream only, and for all but the last envelope of an event."""
    type: str
    envelope: str
    """The envelope as JSON."""


class EventStream:
    """One reader of a session's events."""

    def __init__(
        self,
        http: Http,
        session_id: str,
        epoch: str | None,
        after: int,
        *,
        acp: str = AS_SAID,
        failures: int | None = None,
    ) -> None:
        self._http = http
        self._acp = acp
        self._session_id = session_id
        self._epoch = epoch
        self.after = after
        """The id of the newest delivered event."""
        self._failures = failures
        """Give up after this many consecutive connections without data; `None` means after `reconnect_s`."""
        self._backoff = Backoff(_RETRY_S, _MOST_S, http.chance)
        self._empty = 0
        """Consecutive connections without data."""
        self._opened_at = 0.0
        self._away_since: float | None = None
        """Time at which the daemon was lost; `None` while it is connected."""
        self._is_known = False
        """True if the daemon knew the session when it was checked."""
        self._is_closed = False
        self._parts: list[Frame] = []
        """Parts of an event whose last part, with its id, has not arrived."""

    async def frames(self) -> AsyncGenerator[list[Frame]]:
        """Yield the available frames as they arrive. Close it when done (`aclosing`).

        Raises:
            PositionLost: the daemon does not have the events after the cursor.
            DaemonUnreachable: it was away for too long.
            SessionNotFound, Unauthenticated, Forbidden: it rejected the request.
        """
        while True:
            failure: TurnwireError | None = None
            try:
                async with aclosing(self._connection()) as batches:
                    async for batch in batches:
                        yield batch
            except SessionNotFound:
                if not self._is_known:
                    raise
                return
            except TurnwireError as error:
                if not is_passing(error):
                    raise
                failure = error
            if self._is_closed or (failure is None and self._empty and await self._is_over()):
                return
            await self._pause(failure)

    async def _connection(self) -> AsyncGenerator[list[Frame]]:
        """Yield the frames of one connection."""
        reader = SseReader(self._http.limits.frame_bytes)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.after)}
        if self._epoch is not None:
            headers["Turnwire-Epoch"] = self._epoch
        self._empty += 1
        self._opened_at = self._http.clock.monotonic()
        self._parts = []
        path = f"/session/{segment(self._session_id)}/events?{urlencode({'acp': self._acp})}"
        async with aclosing(self._http.stream(path, headers)) as pieces:
            async for piece in pieces:
                if self._away_since is not None:
                    logger.info("the event stream is back", extra={"event": "stream_found"})
                self._is_known, self._away_since = True, None
                events = reader.feed(piece)
                if reader.retry is not None:
                    self._backoff.first_s = reader.retry / 1000
                before, batch = self.after, self._fresh(events)
                if batch:
                    yield batch
                # Frames made for this connection only, such as the end of a replay, are no progress.
                if self.after > before or self._has_lived:
                    self._empty = 0
                    self._backoff.reset()

    @property
    def _has_lived(self) -> bool:
        """Return whether the newest connection was useful, even if it failed afterwards."""
        return self._http.clock.monotonic() - self._opened_at > self._http.limits.heartbeat_s

    def _fresh(self, events: Sequence[SseEvent]) -> list[Frame]:
        """Return the frames that were not delivered before."""
        batch: list[Frame] = []
        for each in events:
            if each.event == RESYNC:
                raise self._lost(each.data)
            envelope = _read(each.data)
            number, frame = envelope.id, Frame(envelope.id, each.event, each.data)
            if envelope.meta.part_of is not None:
                # Delivered with the rest of its event: an event that was cut inside comes again as a whole.
                self._parts.append(frame)
                continue
            if number is not None:
                parts, self._parts = self._parts, []
                if number <= self.after:
                    continue
                self.after = number
                batch += parts
            self._is_closed |= each.event == SESSION_CLOSED
            batch.append(frame)
        return batch

    def _lost(self, envelope: str) -> PositionLost:
        try:
            lost = _read_resync(envelope).data
        except msgspec.DecodeError:
            lost = _Lost()
        return PositionLost(
            "the daemon no longer has what comes after this position; read the session's view and go on from there",
            why=lost.detail or lost.reason,
            after=self.after,
            earliest=lost.earliest_available_id,
        )

    async def _is_over(self) -> bool:
        """Return whether the session is closed or gone, after a stream that ended without data."""
        try:
            answer = await self._http.ask("GET", f"/session/{segment(self._session_id)}", repeatable=True)
        except SessionNotFound:
            return True
        except TurnwireError as error:
            if not is_passing(error):
                raise
            return False
        return answer.read(_Standing).is_closed

    async def _pause(self, failure: TurnwireError | None) -> None:
        http, now = self._http, self._http.clock.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if self._failures is not None and self._empty >= self._failures:
            raise failure or _gives_nothing()
        wait_s = self._backoff.next_s() if self._empty and not self._has_lived else _AT_ONCE_S * http.chance()
        if failure is not None:
            wait_s = max(wait_s, retry_after_of(failure))
        if now + wait_s - self._away_since > http.limits.reconnect_s:
            raise failure or _gives_nothing()
        extra = {"event": "stream_lost", "session": self._session_id, "after": self.after, "wait_s": wait_s}
        logger.info("the event stream was cut; it goes on from its cursor", extra=extra)
        await http.clock.sleep(wait_s)


def _read(envelope: str) -> _Numbered:
    try:
        return _read_numbered(envelope)
    except msgspec.DecodeError:
        raise RemoteProtocolError("an event of the stream is no envelope; is it a turnwire daemon?") from None


def _gives_nothing() -> DaemonUnreachable:
    return DaemonUnreachable(
        "the daemon answers, but its event stream ends at once each time; does a proxy in between hold it back?"
    )
