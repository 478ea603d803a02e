"""Webhooks: send the events that an operator chose to other servers, each as one signed HTTP request.

Theory of operation
-------------------
There is no queue: a receiver is a cursor in each session's log. The cursor is stored in the log as a snapshot of
the session under the receiver's name, so it is copied and deleted with the session, and nodes that share a log
share it. It moves after the receiver has answered with 2xx. Memory holds only the sessions that may have events
after their cursor: the node reports new events (`take`), and a sweep of the log finds the rest, at the start and,
where nodes share the log, whenever a node is gone.

Each such session is served by a task. A delivery that fails is retried with back-off until it succeeds; the other
sessions of the receiver are not affected.

A session without a cursor is younger than the receiver. So a new receiver first gets a cursor at the end of every
session, and its name is then stored in a small file, or in the shared log.

    W1  At least once: the cursor passes an event only after a 2xx, also over SIGKILL. A repeat has the same id.
    W2  In order: of one session, an event is sent only after the one before was accepted.
    W3  A new receiver gets events from its first start on, none from before.
    W4  Independent: receivers never wait for each other, and the node waits for none of them.
    W5  Retries wait twice as long each time, up to `MAX_RETRY_S`, with random jitter.
    W6  Signed by HMAC-SHA256 over id, time and body, in the headers of the Standard Webhooks convention. Redirects
        are not followed. The secret, and the address except for its origin, are never shown.

If cursors are lost (a snapshot is a cache, L8), events are sent again; none is lost.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup

from turnwire import __version__
from turnwire.clock import Clock
from turnwire.errors import ConfigError, PositionLost, SessionNotFound, TurnwireError
from turnwire.hosting.address import is_loopback
from turnwire.hosting.backoff import Backoff, Chance, random
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, Snapshot, Stored
from turnwire.log.bell import SharedLog
from turnwire.log.owners import Owners, SoleOwner
from turnwire.projections.envelope import Parties
from turnwire.projections.webhook import WebhookProjection
from turnwire.server.access.token_file import write_private
from turnwire.server.settings.webhooks import EVENTS, WebhookEntry
from turnwire.server.telemetry.metrics import WebhookLevel
from turnwire.session.events import AnyEvent, Event

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

CONCURRENT: Final = 8
"""Requests to one receiver at the same time."""
RESPONSE_S: Final = 15.0
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 300.0
SKIPPED: Final = 4096
"""Maximum number of events between two stored cursors, even if none of these events is sent."""

_VERSION: Final = 1
_RESPONSE_BYTES: Final = 65_536
"""Bytes of a response that are read, so that its connection can be reused. The content is ignored."""
Post: TypeAlias = Callable[[WebhookEntry, Mapping[str, str], bytes], Awaitable[int | None]]
"""A function that sends a request and returns the status of the response, or None without a response."""


class WebhookState(StrEnum):
    """The state of a receiver."""

    WORKING = "working"
    FAILING = "failing"
    """The last attempt failed; there will be another."""


class Webhook:
    """One receiver."""

    def __init__(
        self,
        entry: WebhookEntry,
        log: EventLog,
        clock: Clock,
        limits: Limits,
        post: Post,
        chance: Chance = random,
        owners: Owners | None = None,
    ) -> None:
        self._owners = owners or SoleOwner(log)
        self.entry = entry
        self.state = WebhookState.WORKING
        self.delivered = self.failed = self.retried = 0
        self.last_status: int | None = None
        """Status of the last response; None if there was none."""
        self.kinds = frozenset(EVENTS[each] for each in entry.events)
        self._log = log
        self._clock = clock
        self._limits = limits
        self._post = post
        self._chance = chance
        self._snapshot_name = f"webhook:{entry.name}"
        self._behind: dict[SessionId, float] = {}
        """Sessions being served, with the time since when each waits for a delivery."""
        self._noticed: set[SessionId] = set()
        """Sessions to look at, or to look at again."""
        self._must_sweep = True
        """True if any session may have events after its cursor."""
        self._work = anyio.Event()
        self._slots = anyio.CapacityLimiter(CONCURRENT)

    @property
    def behind(self) -> int:
        """Number of sessions that may have events after their cursor."""
        return len(self._noticed | self._behind.keys())

    @property
    def lag_s(self) -> float:
        """Waiting time of the session that waits longest."""
        oldest = min(self._behind.values(), default=None)
        return 0.0 if oldest is None else max(self._clock.monotonic() - oldest, 0.0)

    def notice(self, session_id: SessionId) -> None:
        """Mark a session as having new events."""
        self._noticed.add(session_id)
        self._work.set()

    def look_again(self) -> None:
        """Request a sweep of all sessions: another node that served some of them may be gone."""
        self._must_sweep = True
        self._work.set()

    async def begin(self) -> None:
        """Skip everything that has happened so far (W3)."""
        after: SessionId | None = None
        while heads := await self._log.sessions(after=after, limit=100):
            for head in heads:
                await self._save(head.session_id, head.head, Parties())
            after = heads[-1].session_id

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                if self._must_sweep:
                    await self._sweep()
                for session_id in self._noticed - self._behind.keys():
                    self._start(session_id, tasks)
                await self._work.wait()
                self._work = anyio.Event()

    async def _sweep(self) -> None:
        """Notice sessions whose cursor is not at their head."""
        self._must_sweep = False
        after: SessionId | None = None
        try:
            while heads := await self._log.sessions(after=after, limit=100):
                for head in heads:
                    snapshot = await self._log.load_snapshot(head.session_id, self._snapshot_name)
                    if snapshot is None or snapshot.offset < head.head:
                        self.notice(head.session_id)
                after = heads[-1].session_id
        except SessionNotFound:
            self.look_again()  # deleted in the meantime
        except TurnwireError as error:
            logger.warning("a webhook cannot read the log", extra=self._extra(code=error.code))
            await self._clock.sleep(FIRST_RETRY_S)
            self.look_again()

    def _start(self, session_id: SessionId, tasks: TaskGroup) -> None:
        self._behind[session_id] = self._clock.monotonic()
        tasks.start_soon(self._serve, session_id)

    async def _serve(self, session_id: SessionId) -> None:
        """Deliver the events after a session's cursor, with retries, until there are no more."""
        backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S, self._chance)
        while session_id in self._noticed:
            self._noticed.discard(session_id)
            try:
                is_done = await self._deliver(session_id, backoff)
            except SessionNotFound:
                break
            except TurnwireError as error:
                extra = self._extra(session=session_id, code=error.code)
                logger.warning("a webhook cannot read a session", extra=extra)
                is_done = False
            if not is_done:
                self._noticed.add(session_id)
                await self._clock.sleep(backoff.next_s())
        del self._behind[session_id]
        # The session may have been noticed again after the last check.
        self._work.set()

    async def _deliver(self, session_id: SessionId, backoff: Backoff) -> bool:
        """Send the events after the cursor; return False if the receiver did not accept one.

        Raises `SessionNotFound`, `LogError`.
        """
        if not self._owners.is_sole and await self._owners.owner(session_id) not in (None, self._owners.life):
            return True  # the owner delivers
        head = await self._log.head(session_id)
        snapshot = await self._log.load_snapshot(session_id, self._snapshot_name)
        offset, parties = head.first - 1, Parties()
        if snapshot is not None:
            offset, parties = snapshot.offset, _decode_parties(snapshot.body)
        events = WebhookProjection(session_id, self.kinds, offset, parties)
        saved = offset
        while page := await self._read(session_id, head.epoch, events):
            for stored in page:
                # Projected one at a time, because the state stored with the cursor must be the state after that
                # event.
                (body,) = events.project((stored.body,))
                if not body:
                    continue
                message = message_id(session_id, Position(head.epoch, events.offset))
                if not await self._send(message, body, is_retry=backoff.failures > 0):
                    return False
                backoff.reset()
                await self._save(session_id, events.offset, events.parties)
                saved = events.offset
                self._behind[session_id] = self._clock.monotonic()
            if events.offset - saved >= SKIPPED:
                await self._save(session_id, events.offset, events.parties)
                saved = events.offset
        return True

    async def _read(self, session_id: SessionId, epoch: Epoch, events: WebhookProjection) -> list[Stored]:
        limits, after = self._limits, Position(epoch, events.offset)
        try:
            return await self._log.read(
                session_id, after, max_events=limits.page_events, max_bytes=limits.page_bytes
            )
        except PositionLost:
            head = await self._log.head(session_id)
            extra = self._extra(session=session_id, after=events.offset, first=head.first)
            logger.warning("events were trimmed before they were sent to a webhook", extra=extra)
            events.offset = head.first - 1
            return await self._read(session_id, epoch, events)

    async def _save(self, session_id: SessionId, offset: int, parties: Parties) -> None:
        body = msgspec.json.encode(parties)
        await self._log.save_snapshot(session_id, Snapshot(self._snapshot_name, offset, _VERSION, body))

    async def _send(self, message: str, body: bytes, *, is_retry: bool) -> bool:
        self.retried += is_retry
        seconds = self._clock.now_ms() // 1000
        headers = signed(self.entry.key, message, seconds, body)
        async with self._slots:
            self.last_status = status = await self._post(self.entry, headers, body)
        is_accepted = status is not None and 200 <= status < 300
        self.delivered += is_accepted
        self.failed += not is_accepted
        if is_accepted != (self.state is WebhookState.WORKING):
            self.state = WebhookState.WORKING if is_accepted else WebhookState.FAILING
            level, text = _CHANGES[self.state]
            logger.log(level, text, self.entry.name, extra=self._extra(status=status))
        return is_accepted

    def _extra(self, **more: object) -> dict[str, object]:
        return {"event": "webhook", "webhook": self.entry.name, "to": self.entry.origin, **more}


_CHANGES: Final = {
    WebhookState.WORKING: (logging.INFO, "webhook %s accepts events again"),
    WebhookState.FAILING: (logging.WARNING, "webhook %s did not accept an event; it is retried until it does"),
}

_decode_parties = msgspec.json.Decoder(Parties).decode


def message_id(session_id: SessionId, position: Position) -> str:
    """Return the id of an event, the same for every attempt. A session that is created again has another epoch."""
    named = f"{session_id}\0{position.epoch}\0{position.offset}".encode("utf-8", "surrogatepass")
    return f"msg_{hashlib.sha256(named).hexdigest()[:32]}"


# -- the convention ------------------------------------------------------------------------------------------


def signed(key: bytes, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a request sent at this time."""
    content = b"%b.%d.%b" % (message_id.encode(), seconds, body)
    signature = b64encode(hmac.digest(key, content, "sha256")).decode()
    return {
        "content-type": "application/json",
        "user-agent": f"turnwire/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{signature}",
    }


@asynccontextmanager
async def open_post(entries: Iterable[WebhookEntry]) -> AsyncGenerator[Post]:
    """Open HTTP clients for the receivers. Each has its own connections."""
    async with AsyncExitStack() as stack:
        clients = {each.name: await stack.enter_async_context(_client(each.url)) for each in entries}

        async def post(entry: WebhookEntry, headers: Mapping[str, str], body: bytes) -> int | None:
            import httpx

            try:
                with anyio.fail_after(RESPONSE_S):
                    return await _request(clients[entry.name], entry.url, headers, body)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
                # The error's text may contain the address, so it is not logged.
                return None

        yield post


def _client(url: str) -> httpx.AsyncClient:
    # Imported here, because it would slow the start of all daemons, and most have no receiver.
    import httpx

    return httpx.AsyncClient(
        # No certificates are loaded for plain HTTP: that would take longer than the request.
        verify=httpx.create_ssl_context() if url.startswith("https:") else False,
        trust_env=not is_loopback(url),
        # A redirect would let a receiver choose another address inside of our network.
        follow_redirects=False,
        timeout=RESPONSE_S,
        limits=httpx.Limits(max_connections=CONCURRENT),
    )


async def _request(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> int:
    async with client.stream("POST", url, headers=headers, content=body) as response:
        size = 0
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > _RESPONSE_BYTES:
                break
        return response.status_code


# -- all receivers -------------------------------------------------------------------------------------------


class _Begun(msgspec.Struct):
    """The file with the names of receivers that are not new."""

    version: int
    webhooks: list[str]


class Webhooks:
    """The receivers of one daemon."""

    def __init__(self, hooks: Sequence[Webhook]) -> None:
        self.hooks = hooks
        self._kinds: frozenset[type[Event]] = frozenset().union(*(each.kinds for each in hooks))

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """Notice new events of a session. A `Watch` of the node."""
        kinds = self._kinds and self._kinds.intersection(map(type, events))
        if kinds:
            for each in self.hooks:
                if not kinds.isdisjoint(each.kinds):
                    each.notice(session_id)

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Do nothing: the node that appended to these sessions delivers. Part of `HeadListener`."""

    def missed(self) -> None:
        """Sweep all sessions, because another node may be gone. Part of `HeadListener`."""
        for each in self.hooks:
            each.look_again()

    def levels(self) -> list[WebhookLevel]:
        """Return the values of the metrics."""
        return [
            WebhookLevel(each.entry.name, each.delivered, each.failed, each.retried, each.behind, each.lag_s)
            for each in self.hooks
        ]

    async def begin(self, path: Path | None, shared: SharedLog | None = None) -> None:
        """Let new receivers skip the past.

        `path`: the file with the receivers that are not new; None for a log in memory. `shared`: the log that
        stores this instead, where several nodes use it. Raises `ConfigError`, `LogError`.
        """
        if shared is not None:
            for each in self.hooks:
                async with shared.once(f"webhook {each.entry.name}") as is_new:
                    if is_new:
                        await each.begin()
            return
        begun = [] if path is None else _read_begun(path)
        for each in self.hooks:
            if each.entry.name not in begun:
                await each.begin()
        names = [each.entry.name for each in self.hooks]
        if path is not None and sorted(names) != sorted(begun):
            content = msgspec.json.format(msgspec.json.encode(_Begun(_VERSION, names)), indent=2)
            try:
                write_private(path, content)
            except OSError as error:
                raise ConfigError(f"cannot write {path} ({type(error).__name__}); make room for it") from None

    async def run(self) -> None:
        """Deliver to all receivers until cancelled."""
        async with anyio.create_task_group() as tasks:
            for each in self.hooks:
                tasks.start_soon(each.run)


def _read_begun(path: Path) -> list[str]:
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Begun)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"cannot read {path} ({type(error).__name__}); fix it, or remove it so that all webhooks start from now"
        ) from None
    if stored.version != _VERSION:
        raise ConfigError(f"{path} was written by another version of turnwire; use that, or another data directory")
    return stored.webhooks


@asynccontextmanager
async def open_webhooks(
    entries: Sequence[WebhookEntry],
    log: EventLog,
    clock: Clock,
    limits: Limits,
    path: Path | None,
    shared: SharedLog | None = None,
) -> AsyncGenerator[Webhooks]:
    """Open the receivers; `run` starts to deliver. See `Webhooks.begin`.

    Raises `ConfigError`, `LogError`.
    """
    owners = None if shared is None else shared.owners
    async with open_post(entries) as post:
        webhooks = Webhooks([Webhook(each, log, clock, limits, post, owners=owners) for each in entries])
        await webhooks.begin(path, shared)
        yield webhooks
