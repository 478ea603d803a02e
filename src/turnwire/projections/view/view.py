"""The view: the state of a session for its clients, folded event by event from its log.

It has the transcript, the latest value of each state-like update, the turns, background work, open permission
requests, attached clients, and the child sessions, each with a separate view. Deterministic: the same events
produce the same view, even if a part of them was replaced by a snapshot. It makes no decisions and never raises for
a payload: an update of an unknown kind, or without a member that its kind requires (an id, a content block, a
list), is stored as an `Unknown` item; an optional field of a wrong type reads as omitted. Kinds of both ACP
versions are accepted from every agent; the meaning of `null` follows the agent's version.

The view deliberately excludes notices (live only), the agent's copies of prompts, and markers and foreground states
of the agent, whose meaning the turn's events carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnwire.errors import PartNeeded
from turnwire.ids import AgentName, ChildId, ClientId, PermissionId, PromptId, SessionId
from turnwire.limits import REMEMBERED_CLIENTS
from turnwire.projections.view import messages, tools, turns
from turnwire.projections.view.latest import LATEST_FOLDS, Latest, take_offers
from turnwire.projections.view.paged import StoredPages
from turnwire.projections.view.patch import Patch
from turnwire.projections.view.tools import Terminal
from turnwire.projections.view.transcript import (
    AnyItem,
    ChildSession,
    Message,
    MessageRole,
    Speaker,
    Transcript,
    Unfinished,
    join_text,
    pages_of_items,
)
from turnwire.projections.view.turns import Place, TurnRecord
from turnwire.session import events as ev
from turnwire.session.background import ids, read_list
from turnwire.session.child_names import ANNOUNCES, read_announcement, read_state, renamed
from turnwire.session.events import SessionUpdated
from turnwire.session.json_members import read_entries, read_members
from turnwire.session.state import ChildState, Phase
from turnwire.session.turn import TurnState
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import MARKERS, STATES, TOOL_CALLS


class ChildRecord(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A child session. Its updates are in a separate view; its state is unknown once its agent is gone."""

    child_id: ChildId
    parent_id: ChildId | None = None
    """The child that announced it; `None` for the session itself."""
    prompt_id: PromptId | None = None
    """The turn in which it was announced."""
    announced_at: int = 0
    title: str | None = None
    description: str | None = None
    state: ChildState = ChildState.UNKNOWN
    can_cancel: bool = False
    cwd: str | None = None
    """The child's directory; `None` for its parent's."""
    additional_directories: Raw | UnsetType = UNSET
    meta: dict[str, Raw] = {}

    def announce(self, event: SessionUpdated) -> None:
        """Apply a `subagent_update` about it."""
        said, patch = read_announcement(event.update), Patch(read_members(event.update) or {}, null_clears=True)
        self.title = patch.text("title", self.title)
        self.description = patch.text("description", self.description)
        self.cwd = patch.text("cwd", self.cwd)
        self.additional_directories = patch.raw("additionalDirectories", self.additional_directories)
        self.meta = patch.meta(self.meta)
        self.state = said.state_after(self.state)
        self.can_cancel = said.can_cancel_after(self.can_cancel)

    def announcement(self) -> dict[str, object]:
        """Return the complete record as one `subagent_update` with our id."""
        known: dict[str, object] = {
            "title": self.title,
            "description": self.description,
            "capabilities": {"cancel": {}} if self.can_cancel else None,
            "state": None if self.state is ChildState.UNKNOWN else {"state": self.state.value},
            "cwd": self.cwd,
            "additionalDirectories": self.additional_directories,
            "_meta": self.meta or None,
        }
        told = {name: value for name, value in known.items() if value is not None and value is not UNSET}
        return {"sessionUpdate": "subagent_update", "sessionId": self.child_id, **told}


Foreground: TypeAlias = Literal["idle", "running", "requires_action", "cancelling"]

KEPT_ITEMS: Final = 64
"""Items at the end of a transcript that stay in memory, so that most continuing work needs no page."""
KEPT_TURNS: Final = 64
"""Turns at the end that stay in memory."""

_FOREGROUND: Mapping[TurnState, Foreground] = {
    TurnState.RUNNING: "running",
    TurnState.REQUIRES_ACTION: "requires_action",
    TurnState.CANCELLING: "cancelling",
}


class Session(Struct, omit_defaults=True, rename="camel"):
    """The metadata of the session."""

    session_id: SessionId = SessionId("")
    cwd: str = ""
    title: str | None = None
    """The name that a user gave it, else the agent's."""
    named: bool = False
    """True if a user chose the title, so that the agent does not change it."""
    phase: Phase = Phase.NEW
    created_at: int = 0
    additional_directories: tuple[str, ...] = ()
    agent_name: AgentName | None = None
    fork_of: SessionId | None = None
    archived: bool = False
    agent_gone: str | None = None
    """The exit reason of its agent, until another one starts."""


class StoredView(Struct, omit_defaults=True, rename="camel"):
    """The complete view in a snapshot."""

    session: Session
    speaker: Speaker
    latest: Latest
    items: list[AnyItem] = []
    turns: dict[PromptId, TurnRecord] = {}
    active: PromptId | None = None
    terminals: dict[str, Terminal] = {}
    background: Raw | UnsetType = UNSET
    permissions: dict[PermissionId, ev.PermissionRequested] = {}
    clients: dict[ClientId, ev.ClientAttached] = {}
    children: dict[ChildId, StoredChild] = {}
    offset: int = 0
    item_pages: StoredPages | None = None
    """The pages of earlier items; `None` if `items` is complete."""
    turn_pages: StoredPages | None = None
    unfinished: list[Unfinished] = []


class StoredChild(Struct, omit_defaults=True, rename="camel"):
    """A child session in a snapshot."""

    record: ChildRecord
    view: StoredView


class ChildView(Struct, frozen=True):
    """A child session as clients see it."""

    record: ChildRecord
    view: View


class View:
    """A session as clients see it. Change it through `apply` only."""

    __slots__ = (
        "active",
        "background",
        "children",
        "clients",
        "latest",
        "offset",
        "past",
        "permissions",
        "session",
        "terminals",
        "transcript",
        "turns",
    )

    def __init__(self, stored: StoredView | None = None, child_id: ChildId | None = None) -> None:
        """`child_id`: the child of this view."""
        stored = stored or StoredView(Session(), Speaker(), Latest())
        self.session = stored.session
        past = pages_of_items(child_id or "", stored.item_pages)
        self.transcript = Transcript(stored.speaker, stored.items, past, stored.unfinished)
        self.latest = stored.latest
        self.turns = stored.turns
        """The turns in memory: all that have not ended, and the newest."""
        self.past = turns.pages_of_turns(stored.turn_pages)
        """The turns before them."""
        self.active = stored.active
        """The turn that the agent works on."""
        self.terminals = stored.terminals
        self.background = None if stored.background is UNSET else stored.background
        """The agent's last list of background work; `None` if it reports no such list."""
        self.permissions = stored.permissions
        """Open permission requests, in order of arrival."""
        self.clients = stored.clients
        children = stored.children.items()
        self.children = {name: ChildView(each.record, View(each.view, name)) for name, each in children}
        """All child sessions, including nested ones, in the order of their announcements."""
        self.offset = stored.offset
        """The last folded event, if the view began with the first event or its start was set."""

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold the next event of the log. Raises `PartNeeded` if it needs a page that is not loaded."""
        self.offset += 1
        self.transcript.offset = self.offset
        try:
            _FOLDS[type(event)](self, event)
        except PartNeeded:
            self.offset -= 1
            raise

    @property
    def items(self) -> list[AnyItem]:
        """The items in memory: the whole transcript, unless the view comes from `KeptViews`.

        Access completes text that is still growing, so hold the view, not the list.
        """
        return self.transcript.items

    def turn(self, prompt_id: PromptId) -> TurnRecord | None:
        """Return one turn. Like all lookups of turns and items, raises `PartNeeded` if its page is not loaded."""
        record = self.turns.get(prompt_id)
        if record is not None or not self.past.end:
            return record
        found = self.past.find(turns.turn_key(prompt_id))
        return None if found is None else found[1]

    def turns_between(self, first: int, end: int) -> list[TurnRecord]:
        """Return the turns from `first` up to, but excluding, `end`, in order."""
        start = self.past.end
        newer = islice(self.turns.values(), max(first - start, 0), max(end - start, 0))
        return [*self.past.between(first, end), *newer]

    @property
    def turn_count(self) -> int:
        """The number of turns, in memory or not."""
        return self.past.end + len(self.turns)

    def place_of_turn(self, prompt_id: PromptId) -> int | None:
        """Return the position of a turn among all turns."""
        if prompt_id in self.turns:
            return self.past.end + next(n for n, each in enumerate(self.turns) if each == prompt_id)
        found = self.past.find(turns.turn_key(prompt_id))
        return None if found is None else found[0]

    @property
    def state(self) -> Foreground:
        """The current foreground state, by the events of turns alone."""
        record = self.turns.get(self.active) if self.active is not None else None
        return _FOREGROUND.get(record.state, "idle") if record is not None else "idle"

    def stored(self) -> StoredView:
        """Return the complete view as one value, which shares its parts with the view."""
        return StoredView(
            self.session,
            self.transcript.speaker,
            self.latest,
            self.items,
            self.turns,
            self.active,
            self.terminals,
            UNSET if self.background is None else self.background,
            self.permissions,
            self.clients,
            {name: StoredChild(each.record, each.view.stored()) for name, each in self.children.items()},
            self.offset,
            self.transcript.past.stored(),
            self.past.stored(),
            self.transcript.still_unfinished(),
        )

    # -- storage of views: see `paged` ----------

    def transcripts(self) -> Iterator[Transcript]:
        """Yield its transcript, and those of its children."""
        yield self.transcript
        yield from (each.view.transcript for each in self.children.values())

    def items_to_put_away(self, transcript: Transcript) -> int:
        """Return the number of leading items in memory that no open turn needs. Raises `PartNeeded`."""
        most = max(len(transcript.stored) - KEPT_ITEMS, 0)
        for count, item in enumerate(islice(transcript.stored, most)):
            if item.prompt_id is not None and not self._has_ended(item.prompt_id):
                return count
        return most

    def turns_to_put_away(self) -> int:
        """Return the number of leading turns in memory that have ended and are not among the newest."""
        most = max(len(self.turns) - KEPT_TURNS, 0)
        for count, record in enumerate(islice(self.turns.values(), most)):
            if record.state is not TurnState.ENDED:
                return count
        return most

    def _has_ended(self, prompt_id: PromptId) -> bool:
        record = self.turns.get(prompt_id)
        if record is None:
            # A turn that is unknown so far may still produce any event.
            return self.past.has(turns.turn_key(prompt_id))
        return record.state is TurnState.ENDED

    def put_turns_away(self, count: int) -> None:
        """Register the first turns in memory as a page in the log."""
        self.past.put_away(list(islice(self.turns.values(), count)), self.offset)
        for prompt_id in list(islice(self.turns, count)):
            del self.turns[prompt_id]

    def missing(self) -> Iterator[PartNeeded]:
        """Yield the parts that must be loaded before `make_whole`."""
        yield from self.past.missing()
        for each in self.transcripts():
            yield from each.past.missing()

    def make_whole(self) -> None:
        """Move all entries to memory, permanently. Every page must be loaded."""
        older = {each.prompt_id: each for each in self.past.between(0, self.past.end)}
        self.turns = older | self.turns
        self.past = turns.pages_of_turns()
        for each in self.transcripts():
            each.make_whole()

    def user_text(self, prompt_id: PromptId) -> str | None:
        """Return the text of the prompt; `None` if an agent began the turn or the turn is unknown."""
        record = self.turn(prompt_id)
        prompt = self._item_at(record.place.prompt) if record is not None else None
        if prompt is not None:
            return join_text(prompt.content)
        if record is None or record.place.waiting is UNSET:
            return None
        return join_text(read_entries(record.place.waiting) or [])

    def result_text(self, prompt_id: PromptId) -> str | None:
        """Return the agent's last message of the turn, as of the end of the turn; `None` without one."""
        record = self.turn(prompt_id)
        if record is None:
            return None
        ended = record.state is TurnState.ENDED
        index = record.place.answer if ended else find_answer(self.transcript, prompt_id, record.place)
        answer = self._item_at(index)
        if answer is None:
            return None
        return join_text(answer.content if answer.in_time is None else answer.in_time)

    def _item_at(self, index: int | None) -> Message | None:
        item = self.transcript.at(index) if index is not None else None
        return item if isinstance(item, Message) else None


def find_answer(transcript: Transcript, prompt_id: PromptId, place: Place) -> int | None:
    """Return the index of the agent's last message in a turn that has not ended, whose output is in memory."""
    if place.first is None:
        return None
    items, end = transcript.items, transcript.past.end
    for index in range(len(items) - 1, max(place.first - end, 0) - 1, -1):
        item = items[index]
        if not isinstance(item, Message) or item.role is not MessageRole.AGENT or item.prompt_id != prompt_id:
            continue
        if item.nested is None:
            return index + end
    return None


# -- the session ---------------------------------------------------------------------------------------------


def _session_created(view: View, event: ev.SessionCreated) -> None:
    named = event.title is not None
    directories = event.additional_directories
    view.session = Session(
        event.session_id,
        event.cwd,
        event.title,
        named,
        Phase.OPEN,
        event.at,
        directories,
        event.agent_name,
        event.fork_of,
    )


def _setup_changed(view: View, event: ev.SetupChanged) -> None:
    view.session.additional_directories = event.additional_directories


def _session_renamed(view: View, event: ev.SessionRenamed) -> None:
    view.session.named = event.title is not None
    view.session.title = event.title if view.session.named else view.latest.title


def _session_archived(view: View, event: ev.SessionArchived) -> None:
    view.session.archived = True


def _session_unarchived(view: View, event: ev.SessionUnarchived) -> None:
    view.session.archived = False


def _session_closed(view: View, event: ev.SessionClosed) -> None:
    view.session.phase = Phase.CLOSED
    _lose_agent(view)
    view.clients.clear()


def _client_attached(view: View, event: ev.ClientAttached) -> None:
    view.clients.pop(event.client_id, None)
    if len(view.clients) >= REMEMBERED_CLIENTS:
        view.clients.pop(next(iter(view.clients)))
    view.clients[event.client_id] = event


def _client_detached(view: View, event: ev.ClientDetached) -> None:
    view.clients.pop(event.client_id, None)


def _agent_started(view: View, event: ev.AgentStarted) -> None:
    view.background = None
    view.session.agent_gone = None
    take_offers(view.latest, event.offers)
    view.transcript.start(event)
    for child in view.children.values():
        child.view.transcript.start(event)


def _mode_changed(view: View, event: ev.ModeChanged) -> None:
    view.latest.mode = event.mode


def _model_switched(view: View, event: ev.ModelSwitched) -> None:
    view.latest.model = event.model_id


def _agent_exited(view: View, event: ev.AgentExited) -> None:
    view.session.agent_gone = event.reason
    _lose_agent(view)


def _lose_agent(view: View) -> None:
    """Clear background work and child states, which no agent reports any more."""
    view.background = None
    for child in view.children.values():
        child.view.background = None
        if child.record.state is not ChildState.IDLE:
            child.record.state = ChildState.UNKNOWN


def _permission_requested(view: View, event: ev.PermissionRequested) -> None:
    place = view if event.child is None else _child(view, event.child, event.at).view
    tools.apply_permission_request(place.transcript, event)
    view.permissions[event.request_id] = event
    record, call = _open_turn(view, event.prompt_id), tools.call_of(event)
    if record is not None and call is not None and event.child is None:
        turns.ask(record, event, call)


def _permission_resolved(view: View, event: ev.PermissionResolved) -> None:
    view.permissions.pop(event.request_id, None)
    record = _open_turn(view, event.prompt_id)
    if record is not None:
        turns.answer(record, event)


def _open_turn(view: View, prompt_id: PromptId | None) -> TurnRecord | None:
    """Return a turn that has not ended. Such turns are always in memory."""
    record = None if prompt_id is None else view.turns.get(prompt_id)
    return None if record is None or record.state is TurnState.ENDED else record


def _nothing(view: View, event: ev.AnyEvent) -> None:
    """Ignore an event that does not change the view."""


# -- updates -------------------------------------------------------------------------------------------------

_SPOKEN: Mapping[str, Callable[[Transcript, ev.SessionUpdated], bool]] = {
    **dict.fromkeys(messages.CHUNKS, messages.append_chunk),
    **dict.fromkeys(messages.WHOLE, messages.update_whole),
    "tool_call": tools.announce_tool_call,
    "tool_call_update": tools.update_tool_call,
    "tool_call_content_chunk": tools.append_content,
    "compaction_update": messages.update_compaction,
    "compaction_summary_chunk": messages.append_summary,
}
_TERMINALS: Mapping[str, Callable[[dict[str, Terminal], ev.SessionUpdated, int], bool]] = {
    "terminal_update": tools.update_terminal,
    "terminal_output_chunk": tools.append_output,
}
_NOT_SHOWN = MARKERS | {"notice"}
_PLANS = {"plan", "plan_update", "plan_removed"}


def _session_updated(view: View, event: ev.SessionUpdated) -> None:
    if event.names:
        event = replace(event, update=renamed(event.kind, event.update, event.names))
    if event.child is None:
        _apply_update(view, view, event)
        return
    child = _child(view, event.child, event.at)
    if event.kind in STATES:
        child.record.state = read_state(peek_update(event.update).state)
    _apply_update(view, child.view, event)


def _apply_update(root: View, view: View, event: ev.SessionUpdated) -> None:
    """Apply an update of the session, or of a child, to `view`."""
    if event.names and event.kind == ANNOUNCES:
        _announce(root, view, event)
        return
    if event.echo:
        _hear_echo(view, event)
        return
    spoken = _SPOKEN.get(event.kind)
    applied = spoken(view.transcript, event) if spoken is not None else _apply_state(view, event)
    if not applied:
        view.transcript.keep_unknown(event)
    elif event.kind in TOOL_CALLS:
        tools.update_shown(view.terminals, event, view.transcript.speaker.life)
    elif event.kind in _PLANS and view is root:
        record = _open_turn(root, event.prompt_id)
        if record is not None:
            record.plans = dict(root.latest.plans)


def _announce(root: View, view: View, event: ev.SessionUpdated) -> None:
    """Apply an announcement of a child: it begins, or its record changes."""
    named = read_announcement(event.update).session_id
    if named is None or named == root.session.session_id:
        return
    child_id = ChildId(named)
    if child_id not in root.children:
        record = _child(root, child_id, event.at).record
        record.parent_id, record.prompt_id = event.child, event.prompt_id
        view.transcript.add(
            ChildSession(at=event.at, prompt_id=event.prompt_id, after=event.after, child_id=child_id)
        )
    root.children[child_id].record.announce(event)


def _child(view: View, child_id: ChildId, at: int) -> ChildView:
    """Return a child; a new record if it is unknown."""
    known = view.children.get(child_id)
    if known is None:
        record = ChildRecord(child_id=child_id, announced_at=at)
        known = view.children[child_id] = ChildView(record, View(None, child_id))
        known.view.transcript.speaker = copy(view.transcript.speaker)
    known.view.transcript.offset = view.offset
    return known


def _apply_state(view: View, event: ev.SessionUpdated) -> bool:
    """Apply an update that is not part of the transcript."""
    kind = event.kind
    if kind in _NOT_SHOWN:
        return True
    terminal = _TERMINALS.get(kind)
    if terminal is not None:
        return terminal(view.terminals, event, view.transcript.speaker.life)
    fold = LATEST_FOLDS.get(kind)
    if fold is None and kind not in STATES:
        return False
    members = read_members(event.update)
    if members is None:
        return False
    if fold is None:
        _set_background(view, members.get("background"))
        return True
    applied = fold(view.latest, members, view.transcript.null_clears)
    if not view.session.named:
        view.session.title = view.latest.title
    return applied


def _set_background(view: View, background: Raw | None) -> None:
    """Set the background work. An absent list, null, or a value of another type reports nothing."""
    if background is not None and read_entries(background) is not None:
        view.background = background.copy()


def _hear_echo(view: View, event: ev.SessionUpdated) -> None:
    prompt = _find_prompt(view, event.prompt_id)
    if prompt is not None:
        messages.hear_echo(view.transcript, prompt, event)


def _find_prompt(view: View, prompt_id: PromptId | None) -> Message | None:
    record = view.turn(prompt_id) if prompt_id is not None else None
    if record is None or record.place.prompt is None:
        return None
    prompt = view.transcript.at(record.place.prompt)
    return prompt if isinstance(prompt, Message) else None


# -- turns ---------------------------------------------------------------------------------------------------


def _take(view: View, event: ev.TurnEvent) -> TurnRecord | None:
    return turns.take(view.turns, view.turn(event.prompt_id), event)


def _turn_event(view: View, event: ev.TurnEvent) -> None:
    """Apply an event that changes only its turn's record."""
    _take(view, event)


def _user_message(view: View, event: ev.UserMessage) -> None:
    record = _take(view, event)
    if record is not None:
        record.place.prompt = messages.add_prompt(view.transcript, event)


def _prompt_inserted(view: View, event: ev.PromptInserted) -> None:
    prompt = _find_prompt(view, event.prompt_id)
    if prompt is not None:
        view.transcript.message(MessageRole.USER, event.agent_message_id)  # may raise PartNeeded: before any change
    if _take(view, event) is not None and prompt is not None:
        view.transcript.bind(prompt, event.agent_message_id)


def _turn_started(view: View, event: ev.TurnStarted) -> None:
    record = _take(view, event)
    if record is not None:
        record.place.first = view.transcript.count
        view.active = event.prompt_id


def _cancel_asked(view: View, event: ev.CancelAsked) -> None:
    record = _take(view, event)
    if record is not None:
        tools.mark_cancelled(view.transcript, record.place.first, event.prompt_id)


def _turn_ended(view: View, event: ev.TurnCompleted | ev.TurnFailed) -> None:
    record = _take(view, event)
    if record is None or view.active != event.prompt_id:
        return
    view.active = None
    place = record.place
    background = ids(read_list(view.background) or ()) if view.background is not None else frozenset[str]()
    tools.mark_open(view.transcript, place.first, event.prompt_id, background)
    place.answer = find_answer(view.transcript, event.prompt_id, place)


_FOLDS: dict[type[ev.Event], Callable[[View, Any], None]] = {
    ev.SessionCreated: _session_created,
    ev.SessionRenamed: _session_renamed,
    ev.SessionArchived: _session_archived,
    ev.SessionUnarchived: _session_unarchived,
    ev.SessionClosed: _session_closed,
    ev.SetupChanged: _setup_changed,
    ev.ModeChanged: _mode_changed,
    ev.ModelSwitched: _model_switched,
    ev.OptionSet: _nothing,
    ev.ChoicesRestored: _nothing,
    ev.ChoicesLost: _nothing,
    ev.QueueHeld: _nothing,
    ev.QueueReleased: _nothing,
    ev.ClientAttached: _client_attached,
    ev.ClientDetached: _client_detached,
    ev.AgentStarted: _agent_started,
    ev.AgentExited: _agent_exited,
    ev.HistoryCompared: _nothing,
    ev.SessionUpdated: _session_updated,
    ev.PromptAccepted: _turn_event,
    ev.PromptQueued: _turn_event,
    ev.PromptOffered: _turn_event,
    ev.PromptUpdated: _turn_event,
    ev.PromptDequeued: _turn_event,
    ev.PromptFinished: _turn_event,
    ev.UserMessage: _user_message,
    ev.PromptSent: _turn_event,
    ev.PromptAnswered: _turn_event,
    ev.PromptInserted: _prompt_inserted,
    ev.PromptInjected: _turn_event,
    ev.SteerDeclined: _turn_event,
    ev.TurnStarted: _turn_started,
    ev.TurnBlocked: _turn_event,
    ev.TurnUnblocked: _turn_event,
    ev.PermissionRequested: _permission_requested,
    ev.PermissionResolved: _permission_resolved,
    ev.PermissionAnsweredLate: _nothing,
    ev.CancelAsked: _cancel_asked,
    ev.CancelEscalated: _turn_event,
    ev.ChildCancelAsked: _nothing,
    ev.TurnCompleted: _turn_ended,
    ev.TurnFailed: _turn_ended,
}
"""One fold per kind of event; a test checks that it is complete."""


# -- snapshots -------------------------------------------------------------------------------------------------

VIEW_VERSION = 1
"""Version of the encoded view. It increases with every change of the format or of a fold's result. New optional
members need no new version: the log before an older view may be trimmed.
"""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredView)


def encode_view(view: View) -> bytes:
    """Encode a view for a snapshot. Equal views have equal bytes."""
    return _encoder.encode(view.stored())


def decode_view(body: bytes, version: int) -> View | None:
    """Decode the view of a snapshot, which folds further events exactly like the stored one.

    Returns `None` if it has another version or is not readable: then the log is folded again.
    """
    if version != VIEW_VERSION:
        return None
    try:
        return View(_decoder.decode(body))
    except msgspec.DecodeError:
        return None
