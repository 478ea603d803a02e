"""Webhooks: receivers elsewhere are told how turns end and what waits for an answer, whoever else is there.

Takes the operator's entries and the log; sends each event that an entry names as one signed request, and keeps in
the log how far it is. Never holds an event, never delays a session, never follows a redirect.

Theory of operation
-------------------
The hard part is a daemon or a receiver that dies between "sent" and "written down". The strategy is that there is
no queue: a receiver is a cursor in each session's log, as every other reader is (`runtime.follow`). The cursor is
kept in the log itself, as a snapshot of the session under the receiver's name: it comes with the session and goes
with it. It moves after the receiver has said that it took the event. What is in memory is only which sessions may
have something to tell; that is heard from the node, and found again by a look through the log: at the start, and
where nodes share the log whenever one is gone, because it tells no more of the sessions that it had.

No cursor means that the session began after the receiver did. So a new receiver first gets a cursor at the end of
every session, and is then noted as begun in a small file. One that leaves the settings leaves the file, too, and
would begin anew.

What fails is of two sorts. A receiver that is away (no answer, a gateway's word for it, "too many requests") is
held off as a whole. A receiver that refuses one event is asked again about that session only. Neither is ever given
up: the event stays in the log. One that says that it is gone is left alone until the daemon starts again.

    W1  At least once: the cursor passes an event only after a 2xx, also over SIGKILL. A repeat has the same id.
    W2  In order: of one session, an event is sent only after the one before was taken.
    W3  A new receiver is told of what happens after it began, and of nothing before.
    W4  Independent: receivers never wait for each other, sessions of one only for its `CONCURRENT` slots, and the
        node waits for none of them.
    W5  Bounded: in memory are at most `MOST_BEHIND` ids of sessions for each receiver, and a page of a log for each
        slot. What did not fit is found in the log later.
    W6  Patient: waits double up to `MOST_S` and are spread by chance; `Retry-After` is kept, up to a day.
    W7  Signed: by HMAC-SHA256 over id, time and body, in the headers of the Standard Webhooks convention. Nothing
        of the secret, and of the address only its origin, is told to anybody.

If cursors are lost (a snapshot is a cache, L8), events come again; none is lost by it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from turnwire import __version__
from turnwire.core.codec import STORED_UPDATE, decode
from turnwire.core.envelope import Envelopes
from turnwire.core.events import AnyEvent, Event, PermissionRequested
from turnwire.core.parties import Parties
from turnwire.core.translate.permissions import translate_permission_request
from turnwire.errors import ConfigError, PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.link.address import is_loopback
from turnwire.link.backoff import Backoff, Chance, random
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.log.bell import SharedLog
from turnwire.log.owners import Owners, SoleOwner
from turnwire.runtime.clock import Clock
from turnwire.server.access.token_file import write_private
from turnwire.server.settings.webhooks import EVENTS, WebhookEntry
from turnwire.server.telemetry.metrics import WebhookLevel

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

CONCURRENT: Final = 8
"""Sessions that one receiver is told of at the same time."""
AT_ONCE: Final = 16
"""Events of one session before another one gets its slot."""
MOST_BEHIND: Final = 10_000
"""Sessions that may be known to be behind, for each receiver."""
SKIPPED: Final = 4096
"""A cursor moves over so many events at most without being kept: reading them again takes some milliseconds."""
ANSWER_S: Final = 15.0
FIRST_S, MOST_S = 1.0, 300.0
LONGEST_S: Final = 86_400.0
"""A receiver that wants to be left alone for longer is asked after a day all the same."""

_FORM: Final = 1
_ANSWER_BYTES: Final = 65_536
"""An answer is read so far, for the sake of its connection. Nobody looks at it."""
_GONE: Final = 410
_AWAY: Final = frozenset({408, 425, 429, 502, 503, 504})
SHOWN_VERSION: Final = 1
"""Permission requests are told in v1's words, as REST does without being asked."""


class Answer(NamedTuple):
    """What a receiver said."""

    status: int
    retry_after: str | None = None


Post: TypeAlias = Callable[[WebhookEntry, Mapping[str, str], bytes], Awaitable[Answer | None]]
"""Sends a request. None if nobody answered."""


class Standing(StrEnum):
    """How a receiver is doing."""

    WORKING = "working"
    FAILING = "failing"
    """The last attempt failed; there will be another."""
    GONE = "gone"
    """It said so; there will be none before the next start."""


class _Verdict(Enum):
    TAKEN = auto()
    REFUSED = auto()
    """This event."""
    AWAY = auto()
    """Everything, for now."""
    GONE = auto()


class _Attempt(NamedTuple):
    verdict: _Verdict
    retry_after_s: float = 0.0


@dataclass
class _Behind:
    """A session that may have something to tell."""

    since: float
    backoff: Backoff
    has_more: bool = False
    """Something happened since its log was looked at."""
    has_failed: bool = False
    """The next attempt is a second one."""


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
        self.standing = Standing.WORKING
        self.delivered = self.failed = self.retried = 0
        self.last_status: int | None = None
        """Of the last attempt; none if nobody answered."""
        self.kinds = frozenset(EVENTS[each] for each in entry.events)
        self._log = log
        self._clock = clock
        self._limits = limits
        self._post = post
        self._chance = chance
        self._cursors = f"webhook:{entry.name}"
        self._behind: dict[SessionId, _Behind] = {}
        self._queue: deque[SessionId] = deque()
        """Those that can be looked at now; the others are being looked at, or wait for another attempt."""
        self._news = anyio.Event()
        self._slots = anyio.Semaphore(CONCURRENT)
        self._backoff = Backoff(FIRST_S, MOST_S, chance)
        self._gate = _opened()
        """Closed while the receiver is held off."""
        self._is_swept = False
        """Every session that is behind is known."""
        self._swept_to: SessionId | None = None
        self._has_missed = False
        """One of them did not fit since the sweep began."""

    @property
    def behind(self) -> int:
        """Sessions that may have something to tell."""
        return len(self._behind)

    @property
    def lag_s(self) -> float:
        """How long the one that waits longest has been waiting."""
        oldest = min((each.since for each in self._behind.values()), default=None)
        return 0.0 if oldest is None else max(self._clock.monotonic() - oldest, 0.0)

    def notice(self, session_id: SessionId) -> None:
        """A session may have something to tell."""
        known = self._behind.get(session_id)
        if known is not None:
            known.has_more = True
        elif self.standing is not Standing.GONE:
            self._add(session_id)

    def look_again(self) -> None:
        """Any session may have something to tell that another node has told of until now."""
        # A sweep that is under way may have been there already.
        self._has_missed |= not self._is_swept
        self._is_swept = False
        self._news.set()

    async def begin(self) -> None:
        """It is new: nothing that has happened is for it (W3)."""
        after: SessionId | None = None
        while heads := await self._log.sessions(after=after, limit=100):
            for head in heads:
                await self._keep(head.session_id, head.head, Parties())
            after = heads[-1].session_id

    async def run(self) -> None:
        """Tell it, until it is gone."""
        async with anyio.create_task_group() as tasks:
            while True:
                session_id = await self._next()
                await self._slots.acquire()
                await self._gate.wait()
                tasks.start_soon(self._serve, session_id, tasks)

    # -- which session is next -----------------------------------------------------------------------------

    def _add(self, session_id: SessionId) -> None:
        if len(self._behind) >= MOST_BEHIND:
            self._is_swept, self._has_missed = False, True
            return
        self._behind[session_id] = _Behind(self._clock.monotonic(), Backoff(FIRST_S, MOST_S, self._chance))
        self._enqueue(session_id)

    def _enqueue(self, session_id: SessionId) -> None:
        self._queue.append(session_id)
        self._news.set()

    async def _next(self) -> SessionId:
        while not self._queue:
            # Not for each one that becomes free: a sweep goes through the whole log.
            if not self._is_swept and len(self._behind) <= MOST_BEHIND // 2:
                await self._sweep()
                continue
            self._news = anyio.Event()
            await self._news.wait()
        return self._queue.popleft()

    async def _sweep(self) -> None:
        """Find some more sessions that are behind."""
        try:
            heads = await self._log.sessions(after=self._swept_to, limit=100)
            for head in heads:
                snapshot = await self._log.load_snapshot(head.session_id, self._cursors)
                if snapshot is None or snapshot.offset < head.head:
                    self.notice(head.session_id)
        except SessionNotFound:
            return  # it was deleted meanwhile; the same page comes again
        except TurnwireError as error:
            logger.warning("a webhook cannot read the log", extra=self._told(code=error.code))
            await self._clock.sleep(self._backoff.first_s)
            return
        if heads:
            self._swept_to = heads[-1].session_id
        else:
            # What did not fit meanwhile may be behind where this one has been.
            self._is_swept, self._has_missed = not self._has_missed, False
            self._swept_to = None

    # -- one session ---------------------------------------------------------------------------------------

    async def _serve(self, session_id: SessionId, tasks: TaskGroup) -> None:
        behind, gate = self._behind[session_id], self._gate
        behind.has_more = False
        try:
            attempt = await self._tell(session_id, behind)
        except SessionNotFound:
            attempt = _Attempt(_Verdict.TAKEN)
        except TurnwireError as error:
            logger.warning("a webhook cannot read a session", extra=self._told(session=session_id, code=error.code))
            attempt = _Attempt(_Verdict.REFUSED)
        finally:
            self._slots.release()
        match attempt.verdict:
            case _Verdict.TAKEN if behind.has_more:
                self._enqueue(session_id)
            case _Verdict.TAKEN:
                del self._behind[session_id]
                self._news.set()
            case _Verdict.REFUSED:
                tasks.start_soon(self._ask_later, session_id, max(behind.backoff.next_s(), attempt.retry_after_s))
            case _Verdict.AWAY:
                self._enqueue(session_id)
                # Others that were under way when it was held off say nothing new.
                if self._gate is gate:
                    self._gate = anyio.Event()
                    seconds = max(self._backoff.next_s(), attempt.retry_after_s)
                    tasks.start_soon(self._hold_off, self._gate, seconds)
            case _Verdict.GONE:
                self._behind.clear()
                self._queue.clear()
                tasks.cancel_scope.cancel()

    async def _ask_later(self, session_id: SessionId, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._enqueue(session_id)

    async def _hold_off(self, gate: anyio.Event, seconds: float) -> None:
        await self._clock.sleep(seconds)
        gate.set()

    async def _tell(self, session_id: SessionId, behind: _Behind) -> _Attempt:
        """Tell what is behind the cursor, some of it at most. Raises `SessionNotFound`, `LogError`."""
        if not self._owners.is_sole and await self._owners.owner(session_id) not in (None, self._owners.life):
            return _Attempt(_Verdict.TAKEN)  # its node tells
        head = await self._log.head(session_id)
        place = await self._place(head)
        kept, told = place.offset, 0
        while page := await self._read(place):
            for stored in page:
                body = place.take(stored, self.kinds)
                if body is None:
                    continue
                attempt = await self._send(place, body, behind)
                if attempt.verdict is not _Verdict.TAKEN:
                    return attempt
                await self._keep(session_id, place.offset, place.parties)
                kept, told = place.offset, told + 1
                behind.since = self._clock.monotonic()
                if told == AT_ONCE:
                    behind.has_more = True
                    return attempt
            if place.offset - kept >= SKIPPED:
                await self._keep(session_id, place.offset, place.parties)
                kept = place.offset
        return _Attempt(_Verdict.TAKEN)

    async def _place(self, head: SessionHead) -> Place:
        snapshot = await self._log.load_snapshot(head.session_id, self._cursors)
        if snapshot is None:
            return Place(head.session_id, head.epoch, head.first - 1, Parties())
        return Place(head.session_id, head.epoch, snapshot.offset, _read_parties(snapshot.body))

    async def _read(self, place: Place) -> list[Stored]:
        limits, after = self._limits, Position(place.epoch, place.offset)
        try:
            return await self._log.read(
                place.session_id, after, max_events=limits.page_events, max_bytes=limits.page_bytes
            )
        except PositionLost:
            head = await self._log.head(place.session_id)
            extra = self._told(session=place.session_id, after=place.offset, first=head.first)
            logger.warning("events were trimmed before a webhook was told of them", extra=extra)
            place.offset = head.first - 1
            return await self._read(place)

    async def _keep(self, session_id: SessionId, offset: int, parties: Parties) -> None:
        body = msgspec.json.encode(parties)
        await self._log.save_snapshot(session_id, Snapshot(self._cursors, offset, _FORM, body))

    # -- one request ---------------------------------------------------------------------------------------

    async def _send(self, place: Place, body: bytes, behind: _Behind) -> _Attempt:
        self.retried += behind.has_failed
        seconds = self._clock.now_ms() // 1000
        answer = await self._post(self.entry, signed(self.entry.key, place.message_id, seconds, body), body)
        verdict = _verdict(answer)
        self.last_status = None if answer is None else answer.status
        self._note(verdict)
        behind.has_failed = verdict is not _Verdict.TAKEN
        if verdict is _Verdict.TAKEN:
            self.delivered += 1
            self._backoff.reset()
            behind.backoff.reset()
            return _Attempt(verdict)
        self.failed += 1
        wait_s = 0.0 if answer is None else read_retry_after(answer.retry_after, self._clock.now_ms())
        return _Attempt(verdict, wait_s)

    def _note(self, verdict: _Verdict) -> None:
        """Say it once when the standing changes."""
        standing = _STANDINGS[verdict]
        # Others may have been answered in the same moment in which it said that it is gone.
        if self.standing in (standing, Standing.GONE):
            return
        self.standing = standing
        level, words = _WORDS[standing]
        logger.log(level, words, self.entry.name, extra=self._told(status=self.last_status))

    def _told(self, **more: object) -> dict[str, object]:
        return {"event": "webhook", "webhook": self.entry.name, "to": self.entry.origin, **more}


_STANDINGS: Final = {
    _Verdict.TAKEN: Standing.WORKING,
    _Verdict.REFUSED: Standing.FAILING,
    _Verdict.AWAY: Standing.FAILING,
    _Verdict.GONE: Standing.GONE,
}
_WORDS: Final = {
    Standing.WORKING: (logging.INFO, "webhook %s takes events again"),
    Standing.FAILING: (logging.WARNING, "webhook %s did not take an event; it is tried again until it does"),
    Standing.GONE: (logging.ERROR, "webhook %s says that it is gone; it is told nothing until the next start"),
}


def _verdict(answer: Answer | None) -> _Verdict:
    if answer is None or answer.status in _AWAY:
        return _Verdict.AWAY
    if answer.status == _GONE:
        return _Verdict.GONE
    return _Verdict.TAKEN if 200 <= answer.status < 300 else _Verdict.REFUSED


def _opened() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


_read_parties = msgspec.json.Decoder(Parties).decode


class Place:
    """Where a receiver is in one session: behind this event, with who took part there."""

    def __init__(self, session_id: SessionId, epoch: Epoch, offset: int, parties: Parties) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.offset = offset
        self.parties = parties
        self._envelopes = Envelopes(session_id)

    @property
    def message_id(self) -> str:
        """The same for the same event for ever, and of no other: a session that comes again has another epoch."""
        named = f"{self.session_id}\0{self.epoch}\0{self.offset}".encode("utf-8", "surrogatepass")
        return f"msg_{hashlib.sha256(named).hexdigest()[:32]}"

    def take(self, stored: Stored, kinds: Collection[type[Event]]) -> bytes | None:
        """Go behind the next event; gives its envelope if it is of these kinds.

        Raises `LogCorrupt`, `LogTooNew`.
        """
        self.offset = stored.offset
        if stored.body.startswith(STORED_UPDATE):
            return None
        event = decode(stored.body)
        envelope = self._envelope(event) if type(event) in kinds else None
        # Behind it: who prompted a turn is forgotten with its end.
        self.parties.take(event)
        return envelope

    def _envelope(self, event: AnyEvent) -> bytes:
        version = self.parties.agent_version
        if isinstance(event, PermissionRequested) and version is not None and version != SHOWN_VERSION:
            asker = event.child or self.session_id
            params = translate_permission_request(event.method, event.params, version, SHOWN_VERSION, asker)
            event = replace(event, params=params)
        prompt_id: PromptId | None = getattr(event, "prompt_id", None)
        prompter = None if prompt_id is None else self.parties.prompters.get(prompt_id)
        return self._envelopes.of_event(self.offset, event, prompter)


# -- the convention ------------------------------------------------------------------------------------------


def signed(key: bytes, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of a request at this time."""
    content = b"%b.%d.%b" % (message_id.encode(), seconds, body)
    signature = b64encode(hmac.digest(key, content, "sha256")).decode()
    return {
        "content-type": "application/json",
        "user-agent": f"turnwire/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{signature}",
    }


def read_retry_after(text: str | None, now_ms: int) -> float:
    """The seconds that a receiver wants to be left alone, up to a day; 0 if it does not say."""
    if text is None:
        return 0.0
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_S)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
    return min(max(at - now_ms / 1000, 0.0), LONGEST_S)


@asynccontextmanager
async def open_post(entries: Iterable[WebhookEntry]) -> AsyncGenerator[Post]:
    """The way to the receivers over HTTP. Each has connections of its own."""
    async with AsyncExitStack() as stack:
        clients = {each.name: await stack.enter_async_context(_client(each.url)) for each in entries}

        async def post(entry: WebhookEntry, headers: Mapping[str, str], body: bytes) -> Answer | None:
            import httpx

            try:
                with anyio.fail_after(ANSWER_S):
                    return await _ask(clients[entry.name], entry.url, headers, body)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
                # Whose words may have the address in them.
                return None

        yield post


def _client(url: str) -> httpx.AsyncClient:
    # Imported here: most daemons have no receiver, and all would start later for it.
    import httpx

    return httpx.AsyncClient(
        # No certificates are read for plain HTTP: that takes longer than the request.
        verify=httpx.create_ssl_context() if url.startswith("https:") else False,
        trust_env=not is_loopback(url),
        follow_redirects=False,
        timeout=ANSWER_S,
        limits=httpx.Limits(max_connections=CONCURRENT),
    )


async def _ask(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    async with client.stream("POST", url, headers=headers, content=body) as response:
        answer = Answer(response.status_code, response.headers.get("retry-after"))
        size = 0
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > _ANSWER_BYTES:
                break
        return answer


# -- all of them ---------------------------------------------------------------------------------------------


class _Begun(msgspec.Struct):
    """The file that says which receivers have begun."""

    version: int
    webhooks: list[str]


class Webhooks:
    """The receivers of one daemon."""

    def __init__(self, hooks: Sequence[Webhook]) -> None:
        self.hooks = hooks
        self._kinds: frozenset[type[Event]] = frozenset().union(*(each.kinds for each in hooks))

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """A session has new events. A node's `watch`; nearly all of them are for nobody."""
        kinds = self._kinds and self._kinds.intersection(map(type, events))
        if kinds:
            for each in self.hooks:
                if not kinds.isdisjoint(each.kinds):
                    each.notice(session_id)

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Other nodes have appended to these sessions, and tell of it themselves. A `Listener` of the bell."""

    def missed(self) -> None:
        """One of them may be gone."""
        for each in self.hooks:
            each.look_again()

    def levels(self) -> list[WebhookLevel]:
        """For the metrics."""
        return [
            WebhookLevel(each.entry.name, each.delivered, each.failed, each.retried, each.behind, each.lag_s)
            for each in self.hooks
        ]

    async def begin(self, path: Path | None, shared: SharedLog | None = None) -> None:
        """Let those that are new begin here. `path`: the file that remembers which are not; none forgets.

        `shared`: the log, which remembers it where several nodes have it: one that another node has told of things
        is not new. Raises `ConfigError`, `LogError`.
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
            content = msgspec.json.format(msgspec.json.encode(_Begun(_FORM, names)), indent=2)
            try:
                write_private(path, content)
            except OSError as error:
                raise ConfigError(f"cannot write {path} ({type(error).__name__}); make room for it") from None

    async def run(self) -> None:
        """Tell all of them, for ever."""
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
            f"cannot read {path} ({type(error).__name__}); mend it, or remove it so that all webhooks begin anew"
        ) from None
    if stored.version > _FORM:
        raise ConfigError(f"{path} was written by a newer turnwire; use that one, or another data directory")
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
    """The receivers, begun and not told anything yet. `shared`: see `Webhooks.begin`.

    Raises `ConfigError`, `LogError`.
    """
    owners = None if shared is None else shared.owners
    async with open_post(entries) as post:
        webhooks = Webhooks([Webhook(each, log, clock, limits, post, owners=owners) for each in entries])
        await webhooks.begin(path, shared)
        yield webhooks
