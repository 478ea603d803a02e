"""Child sessions for an ACP client: shown as sessions if the client knows them, else inside their parent.

The classes map the updates and announcements of children, in log order and with our ids, to the client's frames.
Every v2 client knows children, and v1 clients if they declare it. For any other client a child is a tool call of
the session: its messages and tool calls are the content, its state is the status, and each update is in `_meta` in
its original form, so that nothing is lost.

  H1  A child is announced before any of its updates.
  H2  A tool call that represents a child ends when the child becomes idle, when the turn ends and when the agent is
      gone. Later updates of the child open another tool call: users do not look for news in a finished one.
  H3  v1 can only send all of a call's content, so growing content is sent when it has grown by a fraction, and at
      the latest at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from msgspec import Raw

from turnwire.ids import ChildId, PermissionId, SessionId
from turnwire.projections.encoder.encoder import Dialect, Outgoing, Tell
from turnwire.projections.translate.messages import CHUNKS
from turnwire.projections.translate.tools import text_item
from turnwire.projections.translate.updates import NO_OFFERS, Translator, translator_for
from turnwire.projections.view import ChildRecord
from turnwire.projections.view.transcript import read_plain
from turnwire.session import events as ev
from turnwire.session.child_names import ANNOUNCES, SESSION_MESSAGES, read_announcement, read_state
from turnwire.session.ending import CLOSED
from turnwire.session.json_members import entries, members, raw, text_of
from turnwire.session.state import ChildState
from turnwire.wire.methods import VENDOR
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import STATES, TOOL_CALLS

Json: TypeAlias = dict[str, Any]

_ALWAYS: Final = 4096
"""Content up to this many bytes is resent with every chunk; larger content when it has grown by an eighth."""
_UNNAMED: Final = "Subagent"
_FAILED: Final = frozenset({"error", "cancelled", "refusal"})
"""Stop reasons of a child that did not complete its task."""


def knows_children(dialect: Dialect) -> bool:
    """True if a client is sent child sessions as sessions."""
    return dialect.version == 2 or dialect.children


def children_for(dialect: Dialect, session_id: SessionId, losses: Counter[str]) -> Children:
    """Return the children of a session for a client."""
    if knows_children(dialect):
        return ToldChildren(dialect, session_id, losses)
    return FoldedChildren(dialect, session_id, losses)


class _Known:
    """The state of a session's children, independent of the client."""

    def __init__(self, dialect: Dialect, session_id: SessionId, losses: Counter[str]) -> None:
        self.version = dialect.version
        self.session_id = session_id
        self.records: dict[ChildId, ChildRecord] = {}
        self.translators: dict[ChildId, Translator] = {}
        self._losses = losses
        self._agent_version = dialect.version
        self._life = 1

    def started(self, agent_version: int, life: int, *, came_back: bool) -> None:
        self._agent_version, self._life = agent_version, life
        if not came_back:
            self.records, self.translators = {}, {}

    def record(self, child_id: ChildId) -> ChildRecord:
        return self.records.setdefault(child_id, ChildRecord(child_id=child_id))

    def announced(self, event: ev.SessionUpdated) -> ChildRecord | None:
        """Return the child that an update announces; `None` if it is the session itself."""
        named = read_announcement(event.update).session_id
        if named is None or named == self.session_id:
            return None
        # The parent is the session that announced it first. Checked before `record`, which creates one.
        is_new = ChildId(named) not in self.records
        record = self.record(ChildId(named))
        if is_new:
            record.parent_id = event.child
        record.announce(event)
        return record

    def said(self, child_id: ChildId, event: ev.SessionUpdated) -> list[Raw]:
        """Return an update of a child in the client's version."""
        translator = self.translators.get(child_id) or translator_for(
            self._agent_version, self.version, NO_OFFERS, life=self._life, losses=self._losses
        )
        if translator is None:
            return [event.update]
        self.translators[child_id] = translator
        return translator.take(event.update, turn=event.prompt_id)

    def forget_states(self) -> list[ChildRecord]:
        """Mark all states as unknown. Return the children whose state was known."""
        known = [each for each in self.records.values() if each.state not in {ChildState.IDLE, ChildState.UNKNOWN}]
        for each in known:
            each.state = ChildState.UNKNOWN
        return known


# -- for a client that knows children ------------------------------------------------------------------------


class ToldChildren:
    """Children as sessions."""

    def __init__(self, dialect: Dialect, session_id: SessionId, losses: Counter[str]) -> None:
        self._known = _Known(dialect, session_id, losses)

    @property
    def is_long(self) -> bool:
        """True if the state grows with the children's output."""
        return bool(self._known.translators)

    def addressed(self, event: ev.SessionUpdated) -> ChildId | None:
        """Return the child with which an update of the session is shown; `None` if it is shown by itself."""
        return None

    def started(self, agent_version: int, life: int, *, came_back: bool) -> None:
        """Register an agent that opens the session. Unless it returns, its children are new ones."""
        self._known.started(agent_version, life, came_back=came_back)

    def take(self, event: ev.SessionUpdated) -> list[Outgoing]:
        """Handle an update of a child, or one that announces it."""
        if event.kind == ANNOUNCES:
            self._known.announced(event)
            return [Tell(event.update, event.beside, event.child)]
        assert event.child is not None, "an update of a child"
        if event.kind in STATES:
            return self._state(self._known.record(event.child), event.update)
        return [Tell(each, event.beside, event.child) for each in self._known.said(event.child, event)]

    def _state(self, record: ChildRecord, update: Raw) -> list[Outgoing]:
        record.state = read_state(peek_update(update).state)
        if self._known.version == 2:
            return [Tell(update, child=record.child_id)]
        # v1 can express it only in the announcement.
        state = {name: value for name, value in members(update).items() if name != "sessionUpdate"}
        return [Tell(_announcement(record, state), child=record.parent_id)]

    def asks(self, event: ev.PermissionRequested, child: ChildId, params: Raw) -> tuple[list[Outgoing], Raw]:
        """Handle a request of a child. Return the frames that precede it, and the params for the client."""
        return [], params

    def resolved(self, permission_id: PermissionId) -> list[Outgoing]:
        """Handle the resolution of a request."""
        return []

    def part(self) -> list[Outgoing]:
        """Return the withheld frames, before a prompt or the end of a turn."""
        known = self._known.translators.items()
        return [Tell(each, child=child_id) for child_id, translator in known for each in translator.part()]

    def turn_ended(self, *, is_done: bool) -> list[Outgoing]:
        """Handle the end of the turn, before it. `is_done`: it was not cancelled and did not fail."""
        return []

    def lost(self) -> list[Outgoing]:
        """Handle the loss of the agent."""
        return [Tell(_announcement(each, None), child=each.parent_id) for each in self._known.forget_states()]

    def standing(self) -> list[Outgoing]:
        """Return the current children, for a client that has not received the history."""
        return [Tell(raw(each.announcement()), child=each.parent_id) for each in self._known.records.values()]


def _announcement(record: ChildRecord, state: object) -> Raw:
    return raw({"sessionUpdate": ANNOUNCES, "sessionId": record.child_id, "state": state})


# -- for any other client: a tool call -----------------------------------------------------------------------


class _Piece:
    """A part of a child's output: text that may continue, a block, or a tool call."""

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key
        self.text = ""
        self.items: list[Raw] = []
        self.title = ""
        self.status = "pending"

    def shown(self) -> list[Raw]:
        """Return the part as content of a tool call."""
        if self.key[0] == "tool":
            return [text_item(f"[{self.status}] {self.title or self.key[1]}", None), *self.items]
        return [text_item(self.text, None)] if self.text else self.items


class _Call:
    """A tool call that represents a child."""

    def __init__(self, tool_call_id: str) -> None:
        self.id = tool_call_id
        self.pieces: list[_Piece] = []
        self.size = 0
        self.sent = 0
        """The size of its content when it was last sent."""
        self.status = "in_progress"
        self.is_open = True

    @property
    def is_due(self) -> bool:
        """True if it has grown enough to be sent again."""
        return self.size != self.sent and (self.size <= _ALWAYS or self.size >= self.sent + self.sent // 8)

    def content(self) -> list[Raw]:
        self.sent = self.size
        return [item for each in self.pieces for item in each.shown()]

    def add(self, update: Raw) -> None:
        """Add a v1 update to the shown content."""
        fields = members(update)
        kind = text_of(fields, "sessionUpdate") or ""
        if kind in CHUNKS and "content" in fields:
            self._add_block(kind, text_of(fields, "messageId") or "", fields["content"])
        elif kind in TOOL_CALLS:
            self.add_tool(fields)
        elif kind in SESSION_MESSAGES and "content" in fields:
            blocks = [fields["content"]] if kind.endswith("_chunk") else entries(fields["content"])
            for block in blocks:
                self._add_block("session_message", text_of(fields, "messageId") or "", block)

    def _add_block(self, kind: str, message_id: str, block: Raw) -> None:
        text, last = read_plain(block), self.pieces[-1] if self.pieces else None
        if text is None:
            self._new((kind, message_id)).items.append(raw({"type": "content", "content": block}))
        elif last is not None and last.key == (kind, message_id) and not last.items:
            last.text += text
        else:
            self._new((kind, message_id)).text = text
        self.size += len(memoryview(block))

    def add_tool(self, fields: dict[str, Raw]) -> None:
        """Add an update of a tool call of the child."""
        key = ("tool", text_of(fields, "toolCallId") or "")
        piece = next((each for each in self.pieces if each.key == key), None) or self._new(key)
        piece.title = text_of(fields, "title") or piece.title
        piece.status = text_of(fields, "status") or piece.status
        if "content" in fields:
            piece.items = entries(fields["content"])
            self.size += len(memoryview(fields["content"]))
        self.size += 1

    def _new(self, key: tuple[str, str]) -> _Piece:
        self.pieces.append(_Piece(key))
        return self.pieces[-1]


class FoldedChildren:
    """Children as tool calls."""

    is_long = True

    def __init__(self, dialect: Dialect, session_id: SessionId, losses: Counter[str]) -> None:
        self._known = _Known(dialect, session_id, losses)
        self._calls: dict[ChildId, _Call] = {}
        """The newest call of each child."""
        self._made: Counter[ChildId] = Counter()
        self._asked: dict[PermissionId, ChildId] = {}
        self._messages: dict[str, ChildId] = {}
        """The child with which messages between sessions are shown, by message id."""

    def addressed(self, event: ev.SessionUpdated) -> ChildId | None:
        if event.kind not in SESSION_MESSAGES:
            return None
        message_id = peek_update(event.update).message_id or ""
        others = (each for each in event.names.values() if each != self._known.session_id)
        child = next((ChildId(each) for each in others), self._messages.get(message_id))
        if child is not None:
            self._messages[message_id] = child
        return child

    def started(self, agent_version: int, life: int, *, came_back: bool) -> None:
        self._known.started(agent_version, life, came_back=came_back)

    def take(self, event: ev.SessionUpdated) -> list[Outgoing]:
        if event.kind == ANNOUNCES:
            record = self._known.announced(event)
            return [] if record is None else self._stands(record, event.update, _state_in(event.update))
        assert event.child is not None, "an update of a child"
        record = self._known.record(event.child)
        if event.kind in STATES:
            record.state = read_state(peek_update(event.update).state)
            return self._stands(record, event.update, event.update)
        updates = self._known.said(event.child, event)
        # An update that only closes a tool call on behalf of the agent may arrive after the end of the call that
        # represents the child. It does not open another one (H2).
        told, call = self._open(record, unless=_is_closing(event))
        for each in updates:
            call.add(each)
        changed: Json = {"content": call.content()} if call.is_due else {}
        return [*told, _update(call, record, updates, **changed)]

    def _stands(self, record: ChildRecord, update: Raw, state: Raw | None) -> list[Outgoing]:
        """Show a change of the child's state or title."""
        call = self._calls.get(record.child_id)
        told: list[Outgoing] = []
        # Work opens another call (H2); a new title of an idle child is sent with the call that has ended.
        if call is None or (not call.is_open and record.state in {ChildState.RUNNING, ChildState.REQUIRES_ACTION}):
            told, call = self._open(record)
        if call.is_open and record.state is ChildState.IDLE:
            reason = None if state is None else peek_update(state).stop_reason
            return [*told, self._close(call, record, "failed" if reason in _FAILED else "completed", [update])]
        return [*told, _update(call, record, [update], title=_title(record))]

    def _open(self, record: ChildRecord, *, unless: bool = False) -> tuple[list[Outgoing], _Call]:
        """Return the child's open call, and the frames that open one if necessary. `unless`: a finished call is
        sufficient.
        """
        call = self._calls.get(record.child_id)
        if call is not None and (call.is_open or unless):
            return [], call
        self._made[record.child_id] += 1
        number = self._made[record.child_id]
        call = _Call(f"child:{record.child_id}" + (f":{number}" if number > 1 else ""))
        self._calls[record.child_id] = call
        begun: Json = {
            "sessionUpdate": "tool_call",
            "toolCallId": call.id,
            "title": _title(record),
            "kind": "other",
            "status": call.status,
        }
        if record.description is not None:
            begun["rawInput"] = {"description": record.description}
        return [Tell(raw({**begun, "_meta": {VENDOR: {"child": record.child_id}}}))], call

    def _close(self, call: _Call, record: ChildRecord, status: str, updates: Sequence[Raw] = ()) -> Outgoing:
        call.is_open, call.status = False, status
        return _update(call, record, updates, title=_title(record), status=status, content=call.content())

    def asks(self, event: ev.PermissionRequested, child: ChildId, params: Raw) -> tuple[list[Outgoing], Raw]:
        """Handle a request of a child. It refers to the child's call, which the client knows."""
        record, fields = self._known.record(child), members(params)
        told, call = self._open(record)
        self._asked[event.request_id] = child
        meta = members(fields.get("_meta"))
        ours = {**members(meta.get(VENDOR)), "child": child}
        if "toolCall" not in fields:
            return told, raw({**fields, "_meta": {**meta, VENDOR: ours}})
        asked = members(fields["toolCall"])
        # This precedes the use of the content below: a request shows the whole call, including its subject.
        call.add_tool(asked)
        title = f"{_title(record)}: {text_of(asked, 'title') or text_of(asked, 'toolCallId')}"
        own = {"toolCallId": asked.get("toolCallId")}
        shown = {**asked, "toolCallId": call.id, "title": title, "status": call.status, "content": call.content()}
        return told, raw({**fields, "toolCall": shown, "_meta": {**meta, VENDOR: {**ours, **own}}})

    def resolved(self, permission_id: PermissionId) -> list[Outgoing]:
        child = self._asked.pop(permission_id, None)
        if child is None or not (call := self._calls[child]).is_open:
            return []
        record = self._known.record(child)
        return [_update(call, record, [], title=_title(record), status=call.status, content=call.content())]

    def part(self) -> list[Outgoing]:
        told: list[Outgoing] = []
        for child_id, call in self._calls.items():
            translator = self._known.translators.get(child_id)
            held = [] if translator is None else translator.part()
            for each in held:
                call.add(each)
            if held or (call.is_open and call.size != call.sent):
                told.append(_update(call, self._known.record(child_id), held, content=call.content()))
        return told

    def turn_ended(self, *, is_done: bool) -> list[Outgoing]:
        return self._close_all("completed" if is_done else "failed")

    def lost(self) -> list[Outgoing]:
        self._known.forget_states()
        return self._close_all("failed")

    def _close_all(self, status: str) -> list[Outgoing]:
        return [
            self._close(call, self._known.record(child_id), status)
            for child_id, call in self._calls.items()
            if call.is_open
        ]

    def standing(self) -> list[Outgoing]:
        told: list[Outgoing] = []
        for child_id, call in self._calls.items():
            if call.is_open:
                shown = {"title": _title(self._known.record(child_id)), "kind": "other", "status": call.status}
                begun = {"sessionUpdate": "tool_call", "toolCallId": call.id, **shown, "content": call.content()}
                told.append(Tell(raw({**begun, "_meta": {VENDOR: {"child": child_id}}})))
        return told


Children: TypeAlias = ToldChildren | FoldedChildren
"""The children of one session at one client."""


def _is_closing(event: ev.SessionUpdated) -> bool:
    """True if the update only closes a call that its agent did not finish."""
    ours = members(members(members(event.update).get("_meta")).get(VENDOR))
    return event.kind in TOOL_CALLS and CLOSED in ours


def _title(record: ChildRecord) -> str:
    return record.title or _UNNAMED


def _state_in(update: Raw) -> Raw | None:
    """Return the state of an announcement as a `state_update`; `None` if it has no state."""
    state = members(members(update).get("state"))
    return raw({**state, "sessionUpdate": "state_update"}) if state else None


def _update(call: _Call, record: ChildRecord, updates: Sequence[Raw], **changed: Any) -> Outgoing:
    """Return a change of the call, with the updates of the child that caused it."""
    ours: Json = {"child": record.child_id, **({"updates": list(updates)} if updates else {})}
    told: Json = {"sessionUpdate": "tool_call_update", "toolCallId": call.id, **changed}
    return Tell(raw({**told, "_meta": {VENDOR: ours}}))
