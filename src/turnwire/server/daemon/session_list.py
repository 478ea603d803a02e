"""The list of a daemon's sessions: name, directory, age and state, without opening each session.

Entries are in the order of the session ids, in pages. The part of an entry that the log knows is folded from the
few events about names, clients and agents, and cached. Its current state comes from the session if it is in memory,
or from its shadow if another node owns it and the log shows an open item: every other session has no turn. Never
folds a transcript, and never loads a session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import AgentName, ClientId, Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import SharedLog
from turnwire.projections.view import VIEW_VERSION, Latest, Session, View
from turnwire.projections.view.transcript import Speaker
from turnwire.projections.view.view import StoredView
from turnwire.runtime.folds import VIEW, KeptViews
from turnwire.runtime.node import Node
from turnwire.server.access.tokens import Identity
from turnwire.server.daemon.search import Candidates, Match, Search
from turnwire.session import events as ev
from turnwire.session.codec import STORED_UPDATE, decode, stored_prefix
from turnwire.session.state import NOTHING, Phase, SessionState

MOST_LOOKED_AT = 1000
"""Sessions that one page examines; a page that found too few returns a cursor."""
READ_TOGETHER = 16
"""Sessions whose logs are read concurrently."""
REMEMBERED = 2048
"""Entries in the cache of summaries, most recently used; each takes some kilobytes."""

Standing: TypeAlias = Literal["idle", "running", "requires_action", "cancelling", "closed"]

Archived: TypeAlias = Literal["false", "true", "all"]
"""Treatment of archived sessions in the list: omitted, exclusive, or included."""

Listed: TypeAlias = Callable[[SessionId, Iterable[ClientId]], list[ClientId]]

_STANDINGS: dict[str, Standing] = {
    "running": "running",
    "requires_action": "requires_action",
    "cancelling": "cancelling",
}


class SessionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A session in a list. `title` and `displayName` are the same."""

    session_id: SessionId
    workspace_cwd: str
    cwd: str
    agent: AgentName
    """The name of its agent."""
    fork_of: SessionId | None = None
    title: str | None = None
    display_name: str | None = None
    named: bool = False
    """True if a user set the title; then the agent does not change it."""
    agent_title: str | None = None
    """The title by the agent, if a user set `title`."""
    first_prompt: str | None = None
    """The first line of its first prompt, a name for a session without a title."""
    created_at: str
    updated_at: str
    state: Standing
    has_active_prompt: bool
    active_prompt_id: PromptId | None = None
    """The turn that the agent works on."""
    is_waiting_for_permission: bool
    client_count: int
    """Number of attached clients that are connected or were active in the last 15 minutes, on any node."""
    closed: bool
    archived: bool = False
    additional_directories: list[str] = []
    last_event_id: int
    """The event up to which this entry is current: later events of a stream are news."""
    event_epoch: Epoch
    permission_count: int
    """Number of open permission requests."""
    queued_count: int
    """Number of waiting prompts."""
    queue_held: str | None = None
    """Why no prompt of the queue is started."""
    background_count: int
    """Number of items that the agent continues, whether or not a turn runs."""
    running_child_count: int
    """Number of child sessions that are working or waiting for users."""
    suspected_complete: bool
    """True if the turn seems to be over although its agent has not reported it; `explain` has the evidence."""
    agent_gone: str | None = None
    """Why its agent is gone, until another one comes; the next prompt starts one."""
    matches: list[Match] | None = None
    """Up to three matches in its messages and tool calls, the newest first; absent if there are none."""


class Wanted(NamedTuple):
    """Filter of the list."""

    cwd: str | None = None
    below: bool = False
    """Include sessions in directories below `cwd`."""
    state: Standing | Literal["open"] | None = None
    agent: AgentName | None = None
    archived: Archived = "false"
    words: tuple[str, ...] = ()
    """Each word is in the session's title or directory, or all words are in one message."""

    def takes(self, entry: SessionEntry, *, was_said: bool = False) -> bool:
        """Return whether the entry matches. `was_said`: a message of the session has the words."""
        if self.archived != "all" and entry.archived != (self.archived == "true"):
            return False
        if self.agent is not None and entry.agent != self.agent:
            return False
        if self.words and not was_said and not _has_words(entry, self.words):
            return False
        if self.cwd is not None and entry.cwd != self.cwd and not (self.below and _is_below(entry.cwd, self.cwd)):
            return False
        if self.state is None:
            return True
        return not entry.closed if self.state == "open" else entry.state == self.state


def _has_words(entry: SessionEntry, words: tuple[str, ...]) -> bool:
    text = f"{entry.title or ''}\n{entry.cwd}".casefold()
    return all(each.casefold() in text for each in words)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


class SessionList:
    """The sessions of a log, each as an entry."""

    def __init__(
        self,
        log: EventLog,
        node: Node,
        limits: Limits,
        listed: Listed,
        search: Search,
        shared: SharedLog | None = None,
    ) -> None:
        """`listed` returns those of a session's clients that have not left without detaching.

        `shared`: the log, if other nodes share it.
        """
        self._shared = shared
        self._log = log
        self._node = node
        self._search = search
        self._listed = listed
        self._summaries = _Summaries(log, node.views, limits)
        self._sharing = anyio.Lock()

    async def page(
        self, who: Identity, wanted: Wanted, after: SessionId | None, size: int
    ) -> tuple[list[SessionEntry], SessionId | None]:
        """Return entries after a session id, and the id for the next page, or `None` after the last one."""
        candidates = await self._search.candidates(wanted.words) if wanted.words else None
        found: list[SessionEntry] = []
        said: set[SessionId] = set()
        looked_at, going_on = 0, None
        async with aclosing(self._entries(who, after, candidates)) as entries:
            async for session_id, entry in entries:
                if len(found) == size or looked_at == MOST_LOOKED_AT:
                    going_on = after
                    break
                looked_at += 1
                after = session_id
                if entry is None:
                    continue
                was_said = candidates is not None and self._was_said(entry, candidates)
                if wanted.takes(entry, was_said=was_said):
                    found.append(entry)
                    said.update([session_id] if was_said else ())
        matches = await self._search.matches(wanted.words, said)
        return [replace(each, matches=matches.get(each.session_id)) for each in found], going_on

    def _was_said(self, entry: SessionEntry, candidates: Candidates) -> bool:
        """Return whether the words are in this session, and not in an earlier one with the same id."""
        session_id = entry.session_id
        return session_id in candidates.said and self._search.epoch_of(session_id) == entry.event_epoch

    async def newest(self, who: Identity, wanted: Wanted) -> SessionEntry | None:
        """Return the newest session whose files are at this node's place."""
        found: SessionEntry | None = None
        async for _, entry in self._entries(who, None, None):
            if entry is None or not wanted.takes(entry):
                continue
            if (found is None or entry.created_at >= found.created_at) and await self._has_files(entry.session_id):
                found = entry
        return found

    async def _has_files(self, session_id: SessionId) -> bool:
        """Return whether the session's files are here: nodes of another place have other files."""
        if self._shared is None:
            return True
        try:
            return await self._shared.owners.is_of_place(session_id)
        except SessionNotFound:
            return False

    @asynccontextmanager
    async def sharing(self) -> AsyncGenerator[None]:
        """Hold a lock across all nodes, to look for a session to share and create one if there is none."""
        async with self._sharing:
            if self._shared is None:
                yield
                return
            async with self._shared.exclusively("sharing of sessions"):
                yield

    async def entry(self, session_id: SessionId, head: SessionHead | None = None) -> SessionEntry:
        """Return the entry of one session. `head`: a recent head of its log. Raises `SessionNotFound`."""
        state, head = await self._state(session_id, head)
        offset = head.head
        # Names and clients may be newer than the rest: a client that is notified of them again has them already.
        summary = await self._summaries.of(head)
        session, clients = summary.session, summary.clients
        return SessionEntry(
            session_id=session_id,
            workspace_cwd=session.cwd,
            cwd=session.cwd,
            agent=self._node.agents.name_of(session.agent_name),
            fork_of=session.fork_of,
            title=session.title,
            display_name=session.title,
            named=session.named,
            agent_title=summary.agent_title if session.named else None,
            first_prompt=summary.first_prompt,
            created_at=iso(session.created_at),
            updated_at=iso(summary.updated_at),
            state="closed" if session.phase is Phase.CLOSED else _standing(state),
            has_active_prompt=state.turn is not None,
            active_prompt_id=None if state.turn is None else state.turn.prompt_id,
            is_waiting_for_permission=bool(state.permissions),
            client_count=len(self._listed(session_id, clients)),
            closed=session.phase is Phase.CLOSED,
            archived=session.archived,
            additional_directories=list(session.additional_directories),
            last_event_id=offset,
            event_epoch=summary.epoch,
            permission_count=len(state.permissions),
            queued_count=len(state.queue),
            queue_held=state.held,
            background_count=len(self._node.still_running(state)),
            running_child_count=len(state.running_children),
            # Only the node that runs the turn has the evidence.
            suspected_complete=session_id in self._node.loaded and await self._is_suspected(session_id, state),
            agent_gone=session.agent_gone,
        )

    async def _state(self, session_id: SessionId, head: SessionHead | None) -> tuple[SessionState, SessionHead]:
        """Return a session's state and its log's head. One without open items that is not here is idle."""
        if head is None or session_id in self._node.loaded:
            head = await self._log.head(session_id)
        loaded = self._node.loaded.get(session_id)
        if loaded is not None:
            return loaded.state, head._replace(head=loaded.head)
        if self._shared is not None and head.unsettled:
            peeked = await self._node.peek(session_id)
            return peeked.state, head._replace(epoch=peeked.epoch, head=peeked.head)
        return NOTHING, head

    async def _is_suspected(self, session_id: SessionId, state: SessionState) -> bool:
        return state.turn is not None and (await self._node.agents.explain(session_id)).suspected_complete

    async def _entries(
        self, who: Identity, after: SessionId | None, candidates: Candidates | None
    ) -> AsyncGenerator[tuple[SessionId, SessionEntry | None]]:
        """Yield every candidate session that the caller may access, with `None` for one that is being deleted."""
        few: Collection[SessionId] | None = None if candidates is None else candidates.said | candidates.named
        if who.session_id is not None:
            few = {who.session_id} if few is None or who.session_id in few else ()
        if few is not None:
            for session_id in sorted(each for each in few if after is None or each > after):
                yield session_id, await self._entry_or_none(session_id)
            return
        while heads := await self._log.sessions(after=after):
            for begin in range(0, len(heads), READ_TOGETHER):
                some = heads[begin : begin + READ_TOGETHER]
                await self._summaries.prepare(some)
                for head in some:
                    yield head.session_id, await self._entry_or_none(head.session_id, head)
            after = heads[-1].session_id

    async def _entry_or_none(self, session_id: SessionId, head: SessionHead | None = None) -> SessionEntry | None:
        try:
            return await self.entry(session_id, head)
        except (SessionNotFound, PositionLost):
            return None


def _standing(state: SessionState) -> Standing:
    """Return the current state of the session."""
    if state.phase is Phase.CLOSED:
        return "closed"
    return "idle" if state.turn is None else _STANDINGS.get(state.turn.state.value, "idle")


def iso(at_ms: int) -> str:
    """Return a time in the format of this contract."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- what the log says of a session ------------------------------------------------------------------------


class _Summary(NamedTuple):
    """The part of an entry that the log knows."""

    epoch: Epoch
    session: Session
    agent_title: str | None
    first_prompt: str | None
    updated_at: int
    """Time of its newest event."""
    clients: tuple[ClientId, ...]


class _Known:
    """A summary that is folded up to an offset."""

    def __init__(self, epoch: Epoch, offset: int, view: View) -> None:
        self.epoch = epoch
        self.offset = offset
        self.view = view
        """Correct in `session` and `clients` only, up to `offset`."""
        self.updated_at = 0
        self.first_prompt: str | None = None


class _Summaries:
    """Cached summaries of the sessions' logs; the next lookup reads only newer events.

    A session that is not cached starts from its stored view, of which everything but names and clients is skipped.
    """

    def __init__(self, log: EventLog, views: KeptViews, limits: Limits) -> None:
        self._log = log
        self._views = views
        self._limits = limits
        self._known: dict[SessionId, _Known] = {}

    async def of(self, head: SessionHead) -> _Summary:
        """Return the summary up to this head or further. Raises `SessionNotFound`."""
        session_id = head.session_id
        known = self._known.pop(session_id, None)
        if known is None or known.epoch != head.epoch:
            known = await self._begin(head)
        self._remember(session_id, known)
        while known.offset < head.head or not known.updated_at:
            await self._go_on(known, head)
        session = known.view.session
        if session.phase is Phase.NEW:
            raise SessionNotFound("the session is being created", session_id=session_id)
        view = known.view
        return _Summary(
            known.epoch, session, view.latest.title, known.first_prompt, known.updated_at, tuple(view.clients)
        )

    async def prepare(self, heads: Sequence[SessionHead]) -> None:
        """Read the missing summaries concurrently: one after the other, each would wait for a thread."""
        new = [each for each in heads if each.session_id not in self._known]
        if len(new) > 1:
            async with anyio.create_task_group() as tasks:
                for head in new:
                    tasks.start_soon(self._try, head)

    async def _try(self, head: SessionHead) -> None:
        # A later lookup of this session raises the error.
        with suppress(TurnwireError):
            await self.of(head)

    def _remember(self, session_id: SessionId, known: _Known) -> None:
        self._known[session_id] = known
        while len(self._known) > REMEMBERED:
            self._known.pop(next(iter(self._known)))

    async def _begin(self, head: SessionHead) -> _Known:
        known = await self._begin_at_snapshot(head)
        if known.offset and head.first == 1:
            events = await self._log.read(
                head.session_id,
                Position(known.epoch, 0),
                max_events=FIRST_EVENTS,
                max_bytes=self._limits.page_bytes,
            )
            known.first_prompt = next(filter(None, (_prompt_in(each.body) for each in events)), None)
        return known

    async def _begin_at_snapshot(self, head: SessionHead) -> _Known:
        if head.first == 1 and head.head < self._limits.snapshot_events:
            return _Known(head.epoch, 0, View())  # too short for a view to be kept of it
        kept = await self._log.load_snapshot(head.session_id, VIEW)
        if kept is not None and kept.version == VIEW_VERSION:
            try:
                return _Known(head.epoch, kept.offset, _short(_read_kept(kept.body)))
            except msgspec.DecodeError:
                pass  # the log is folded anew
        view, epoch = await self._views.newest(head.session_id)
        session, clients = copy(view.session), dict(view.clients)
        return _Known(epoch, view.offset, _short(_Kept(session, _Title(view.latest.title), clients)))

    async def _go_on(self, known: _Known, head: SessionHead) -> None:
        """Fold the next page. Concurrent callers share the summary, so only later events are folded."""
        after = known.offset if known.offset < head.head else head.head - 1
        if after < head.first - 1:
            known.updated_at = known.view.session.created_at or 1  # every event is forgotten
            return
        events = await self._log.read(
            head.session_id,
            Position(head.epoch, after),
            max_events=self._limits.page_events,
            max_bytes=self._limits.page_bytes,
        )
        for each in events:
            known.first_prompt = known.first_prompt or _prompt_in(each.body)
            if each.offset > known.offset and _tells(each.body):
                known.view.apply(decode(each.body))
        known.offset = max(known.offset, events[-1].offset)
        known.updated_at = max(known.updated_at, decode(events[-1].body).at, 1)


# -- a view of names and clients only ------------------------------------------------------------------------


class _Title(Struct):
    title: str | None = None


class _Kept(Struct):
    """The parts of a stored view that are needed here; the rest is skipped unread."""

    session: Session
    latest: _Title
    clients: dict[ClientId, ev.ClientAttached] = {}


_read_kept = msgspec.json.Decoder(_Kept).decode


def _short(kept: _Kept) -> View:
    return View(StoredView(kept.session, Speaker(), Latest(title=kept.latest.title), clients=kept.clients))


_TELLING = tuple(
    stored_prefix(each)
    for each in (
        *(ev.SessionCreated, ev.SetupChanged, ev.SessionRenamed, ev.SessionClosed),
        *(ev.SessionArchived, ev.SessionUnarchived),
        *(ev.ClientAttached, ev.ClientDetached, ev.AgentStarted, ev.AgentExited),
    )
)
_PROMPTING = tuple(stored_prefix(each) for each in (ev.PromptAccepted, ev.PromptQueued, ev.UserMessage))
FIRST_EVENTS = 32
"""Events of a long log among which its first prompt is looked for."""
FIRST_LINE = 80
"""Maximum length of `first_prompt` in characters."""
_NAMES_SESSION = b'"session_info_update"'
_HEAD_BYTES = 128
"""The kind of a stored update is within this many bytes."""


def _tells(body: bytes) -> bool:
    """Return whether an event changes names, directories, clients, the agent's state or the session's end."""
    if body.startswith(STORED_UPDATE):
        return _NAMES_SESSION in body[:_HEAD_BYTES]
    return body.startswith(_TELLING)


def _prompt_in(body: bytes) -> str | None:
    """Return the first line of the prompt in an event; `None` if there is none."""
    if not body.startswith(_PROMPTING):
        return None
    event = decode(body)
    if not isinstance(event, ev.PromptAccepted | ev.PromptQueued | ev.UserMessage) or event.content is UNSET:
        return None
    with suppress(msgspec.DecodeError):
        for block in msgspec.json.decode(event.content, type=list[_Block]):
            if text := block.text.strip():
                return text.splitlines()[0][:FIRST_LINE]
    return None


class _Block(Struct):
    text: str = ""
