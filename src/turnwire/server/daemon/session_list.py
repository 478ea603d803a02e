"""The sessions of a daemon as a list: name, directory, age and standing, without opening each of them.

Entries come in the order of the session ids, a page at a time. What the log knows of a session is folded from the
few events that tell of names, clients and agents, and remembered; what it does now is asked of the session, if it
is in memory, or of its shadow, if another node has it and the log says that something is open there: any other one
has no turn. Never folds a transcript, and never loads a session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import STORED_UPDATE, decode, stored_prefix
from turnwire.core.state import NOTHING, Phase, SessionState
from turnwire.core.view import PAGED_VERSION, VIEW_VERSION, Latest, Session, View
from turnwire.core.view.transcript import Speaker
from turnwire.core.view.view import StoredView
from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import AgentName, ClientId, Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import SharedLog
from turnwire.runtime.folds import VIEW, KeptViews
from turnwire.runtime.node import Node
from turnwire.server.access.identity import Identity
from turnwire.server.daemon.search import Candidates, Match, Search

MOST_LOOKED_AT = 1000
"""Sessions that one page looks at; a page that found too few says where to go on."""
READ_TOGETHER = 16
"""Sessions of which the log is read side by side."""
REMEMBERED = 2048
"""Summaries that are kept, those asked for last; each takes some kilobytes."""

Standing: TypeAlias = Literal["idle", "running", "requires_action", "cancelling", "closed"]

Archived: TypeAlias = Literal["false", "true", "all"]
"""Whether sessions that were put away are listed: not, only they, or as the others are."""

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
    """A user gave the title, so the agent does not change it."""
    agent_title: str | None = None
    """What the agent calls it, if a user gave the title."""
    created_at: str
    updated_at: str
    state: Standing
    has_active_prompt: bool
    active_prompt_id: PromptId | None = None
    """The turn that the agent works on."""
    is_waiting_for_permission: bool
    client_count: int
    """Attached clients that are connected, or were heard of in the last quarter of an hour, on whichever node."""
    closed: bool
    archived: bool = False
    additional_directories: list[str] = []
    last_event_id: int
    """The event up to which all of this is true: what a stream tells after it is news."""
    event_epoch: Epoch
    permission_count: int
    """Open permission requests: what it needs of its users."""
    queued_count: int
    """Prompts that wait."""
    queue_held: str | None = None
    """Why nothing starts from the queue."""
    background_count: int
    """What the agent goes on with, whether a turn runs or not."""
    running_child_count: int
    """Child sessions that are at work, or wait for users."""
    suspected_complete: bool
    """The turn seems to be over, and its agent has not said so; `explain` has the evidence."""
    agent_gone: str | None = None
    """Why its agent is gone, as long as no other has come; the next prompt brings one."""
    matches: list[Match] | None = None
    """Where the words of the search were said in it, the newest first, three at most; none if they were not."""


class Wanted(NamedTuple):
    """Which sessions are listed."""

    cwd: str | None = None
    below: bool = False
    """Also those in directories below `cwd`."""
    state: Standing | Literal["open"] | None = None
    agent: AgentName | None = None
    archived: Archived = "false"
    words: tuple[str, ...] = ()
    """Each of them is in its title or its directory, or all were said in one message."""

    def takes(self, entry: SessionEntry, *, was_said: bool = False) -> bool:
        """`was_said`: the words were, in this session."""
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
        """`listed`: those of a session's clients who have not left without a word.

        `shared`: the log, where other nodes have it too.
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
        """Entries after a session id, and the id to go on after; none when there are no more."""
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
        """Whether the words were said in this session, and not in one that had its id before."""
        session_id = entry.session_id
        return session_id in candidates.said and self._search.epoch_of(session_id) == entry.event_epoch

    async def newest(self, who: Identity, wanted: Wanted) -> SessionEntry | None:
        """The one that was created last, of those whose directories are those of this node."""
        found: SessionEntry | None = None
        async for _, entry in self._entries(who, None, None):
            if entry is None or not wanted.takes(entry):
                continue
            if (found is None or entry.created_at >= found.created_at) and await self._has_files(entry.session_id):
                found = entry
        return found

    async def _has_files(self, session_id: SessionId) -> bool:
        """Whether a path in the session names the same here: nodes of another place have other files."""
        if self._shared is None:
            return True
        try:
            return await self._shared.owners.is_of_place(session_id)
        except SessionNotFound:
            return False

    @asynccontextmanager
    async def sharing(self) -> AsyncGenerator[None]:
        """Held while somebody looks for a session to share, and makes one if there is none: on any node."""
        async with self._sharing:
            if self._shared is None:
                yield
                return
            async with self._shared.exclusively("sharing of sessions"):
                yield

    async def entry(self, session_id: SessionId, head: SessionHead | None = None) -> SessionEntry:
        """One session in short. `head`: where its log stood a moment ago. Raises `SessionNotFound`."""
        state, head = await self._state(session_id, head)
        offset = head.head
        # Names and clients may be newer than the rest: whoever is told of them again has them already.
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
        """What a session does now, and where its log is then. One that owes nothing and is not here is idle."""
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
        """Every session that the caller may touch, of the candidates; none for one that is being deleted."""
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
    """What the session does now."""
    if state.phase is Phase.CLOSED:
        return "closed"
    return "idle" if state.turn is None else _STANDINGS.get(state.turn.state.value, "idle")


def iso(at_ms: int) -> str:
    """A time as clients of this contract read it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- what the log says of a session ------------------------------------------------------------------------


class _Summary(NamedTuple):
    """What the log says of a session, in short."""

    epoch: Epoch
    session: Session
    agent_title: str | None
    updated_at: int
    """When its newest event happened."""
    clients: tuple[ClientId, ...]


class _Known:
    """A summary as far as it is folded."""

    def __init__(self, epoch: Epoch, offset: int, view: View) -> None:
        self.epoch = epoch
        self.offset = offset
        self.view = view
        """Right in `session` and `clients` only; `offset` says how far."""
        self.updated_at = 0


class _Summaries:
    """What the log says of each session in short, remembered, so that the next look reads only what came since.

    A session that is looked at for the first time starts from the view that is kept of it, of which everything but
    names and clients is skipped.
    """

    def __init__(self, log: EventLog, views: KeptViews, limits: Limits) -> None:
        self._log = log
        self._views = views
        self._limits = limits
        self._known: dict[SessionId, _Known] = {}

    async def of(self, head: SessionHead) -> _Summary:
        """The summary up to this place or further. Raises `SessionNotFound`."""
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
        return _Summary(known.epoch, session, view.latest.title, known.updated_at, tuple(view.clients))

    async def prepare(self, heads: Sequence[SessionHead]) -> None:
        """Read what is not known of some of them side by side: one after the other each waits for a thread."""
        new = [each for each in heads if each.session_id not in self._known]
        if len(new) > 1:
            async with anyio.create_task_group() as tasks:
                for head in new:
                    tasks.start_soon(self._try, head)

    async def _try(self, head: SessionHead) -> None:
        # Whoever asks for this one hears why it has none.
        with suppress(TurnwireError):
            await self.of(head)

    def _remember(self, session_id: SessionId, known: _Known) -> None:
        self._known[session_id] = known
        while len(self._known) > REMEMBERED:
            self._known.pop(next(iter(self._known)))

    async def _begin(self, head: SessionHead) -> _Known:
        if head.first == 1 and head.head < self._limits.snapshot_events:
            return _Known(head.epoch, 0, View())  # too short for a view to be kept of it
        kept = await self._log.load_snapshot(head.session_id, VIEW)
        if kept is not None and kept.version in (VIEW_VERSION, PAGED_VERSION):
            try:
                return _Known(head.epoch, kept.offset, _short(_read_kept(kept.body)))
            except msgspec.DecodeError:
                pass  # the log is folded anew
        view, epoch = await self._views.newest(head.session_id)
        session, clients = copy(view.session), dict(view.clients)
        return _Known(epoch, view.offset, _short(_Kept(session, _Title(view.latest.title), clients)))

    async def _go_on(self, known: _Known, head: SessionHead) -> None:
        """Fold the next page. Whoever else asks folds the same summary, so only what still follows is taken."""
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
            if each.offset > known.offset and _tells(each.body):
                known.view.apply(decode(each.body))
        known.offset = max(known.offset, events[-1].offset)
        known.updated_at = max(known.updated_at, decode(events[-1].body).at, 1)


# -- a view of names and clients only ------------------------------------------------------------------------


class _Title(Struct):
    title: str | None = None


class _Kept(Struct):
    """The parts of a kept view that are needed here; the rest is skipped unread."""

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
_NAMES_SESSION = b'"session_info_update"'
_HEAD_BYTES = 128
"""Where the kind of a stored update is, at the latest."""


def _tells(body: bytes) -> bool:
    """Whether an event is about names, directories, clients, the agent's coming and going or the session's end."""
    if body.startswith(STORED_UPDATE):
        return _NAMES_SESSION in body[:_HEAD_BYTES]
    return body.startswith(_TELLING)
