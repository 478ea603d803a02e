"""JSON envelopes of events for REST clients, one line each, in SSE frames or as lines of a file.

Stored events, with their offset and session, become envelopes:

  {id, v, type, data, promptId?, late?, author?, originatorClientId?, _meta: {serverTimestamp, event?, partOf?}}

`data` has the session's id and every field of the event, so that no field is lost: `read_envelope` is the inverse.
The exceptions are in one table, `_ROWS`: kinds with another `type`, whose stored type is then in `_meta.event`,
members under the names that clients of this contract know, and fields hidden from all readers. An envelope is one
line: line ends between the tokens of a payload become spaces.

On every event of a turn, `originatorClientId` is the client that prompted it, and `author` is the author of the
event: the prompter unless the event names another. Events do not repeat them: `Parties` is a fold over the few
events that name them, so that a reader may begin in the middle of a log.

`ShapeFold` is the projection: a fold over one session's log that produces envelopes in one version of ACP. One fold
serves all readers of a shape. Updates of an agent of the other version are translated by the code that serves ACP
clients (`projections.translate`); those of the same version are forwarded byte for byte.

Theory of operation
-------------------
A translation has memory, and it begins at the start of the log. Most folds need no translation, because the agent
speaks the requested version. So a fold may also begin in the middle, with only the parties at that offset. If it
then meets an event that only a whole fold can show, it stops before it (`is_stuck`), and the caller makes a whole
fold.

  E1  One event is one item of `project`: one envelope or more, of which the last has the event's number. So numbers
      are equal in every shape, and a cursor is after all envelopes of its event.
  E2  The output does not depend on where the fold began.
  E3  Updates that only repeat the turn's events are omitted: an agent's states, its end markers, its copies of
      prompts. No other event reports the state of a child session, so its states are shown. An omitted update, or
      one without an equivalent in the shape, becomes `session_update_omitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import fields, replace

from turnwire.errors import RemoteProtocolError
from turnwire.ids import AgentSessionId, ChildId, ClientId, MessageId, PromptId, SessionId
from turnwire.projections.translate.permissions import translate_permission_request
from turnwire.projections.translate.sessions import session_result, updates_after
from turnwire.projections.translate.updates import NO_OFFERS, Translator, translator_for
from turnwire.projections.view.transcript import join_text
from turnwire.session import events as ev
from turnwire.session.child_names import renamed
from turnwire.session.codec import STORED_UPDATE, around_update, decode, encode, end_of_run, one_line, stored_prefix
from turnwire.session.json_members import entries, members, raw, read_entries
from turnwire.session.state import SessionState
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.schema.update import MARKERS, STATES
from turnwire.wire.sse import encode_event, in_ascii

SESSION_UPDATE: Final = "session_update"
MESSAGE_PIECE: Final = "user_message_chunk"
"""The kind of a user message of one block."""
MESSAGE: Final = "user_message"
"""The kind of a user message of several blocks."""
OMITTED: Final = "session_update_omitted"
"""The type of an event that has no content in the reader's version."""

OPTION_IDS: Final = "optionIds"
"""The stored `options` of a permission request; `options` is the agent's list of them."""

_ID: Final = b'{"id":'
_SSE_HEAD: Final = b"id: "
_SSE_DATA: Final = b'\nevent: session_update\ndata: {"id":'
_LF: Final = 10
_CR: Final = 13

_Members: TypeAlias = dict[str, object]

# -- exceptions from the rule --------------------------------------------------------------------------------


class _Row(NamedTuple):
    """Exceptions for one kind of event."""

    type: str | None = None
    """The envelope's type, if it is not the stored one."""
    fixed: Mapping[str, object] = {}
    """Members that are the same in every event of the kind."""
    copied: Mapping[str, str] = {}
    """Members that repeat another: name → name of the repeated member."""
    renamed: Mapping[str, str] = {}
    """Fields whose name has another meaning for clients: stored name → name in the envelope."""
    hidden: frozenset[str] = frozenset()
    """Fields that are hidden from all readers."""


_RUNNING: Final = {"state": "running"}
_SECRET: Final = frozenset({"mcp_servers", "meta"})
"""The parameters that open an agent contain keys and tokens, and not every reader of a session is its owner."""
_ROWS: Final[Mapping[type[ev.Event], _Row]] = {
    # A reader of the earlier conversation must be allowed to read that session.
    ev.SessionCreated: _Row(hidden=_SECRET | {"context"}),
    ev.SetupChanged: _Row(hidden=_SECRET),
    ev.UserMessage: _Row(SESSION_UPDATE),
    ev.TurnStarted: _Row("state_changed", _RUNNING),
    ev.TurnBlocked: _Row("state_changed", {"state": "requires_action"}),
    ev.TurnUnblocked: _Row("state_changed", _RUNNING),
    ev.SessionRenamed: _Row(copied={"displayName": "title"}),
    ev.ModeChanged: _Row(fixed={"persisted": False}, copied={"next": "mode"}),
    ev.PromptQueued: _Row(fixed={"state": "queued"}),
    ev.PromptUpdated: _Row(fixed={"state": "queued"}),
    ev.PromptDequeued: _Row(fixed=_RUNNING),
    ev.PermissionRequested: _Row(renamed={"options": OPTION_IDS}),
    ev.PermissionResolved: _Row(copied={"voterClientId": "clientId"}),
}
_AS_STORED: Final = _Row()


class _Field(NamedTuple):
    """A field of an event: its names in Python and in JSON, and if null is one of its values."""

    name: str
    key: str
    may_be_null: bool


class _Kind(NamedTuple):
    """All facts about one kind of event."""

    stored: str
    type: str
    fields: tuple[_Field, ...]
    row: _Row


def _kind_of(event: type[ev.Event]) -> _Kind:
    stored = str(event.__struct_config__.tag)
    row = _ROWS.get(event, _AS_STORED)
    known = tuple(
        _Field(each.name, row.renamed.get(each.encode_name, each.encode_name), each.required)
        for each in fields(event)
        if each.name != "at" and each.name not in row.hidden
    )
    return _Kind(stored, row.type or stored, known, row)


def _all_kinds() -> dict[type[ev.Event], _Kind]:
    members: tuple[type[ev.Event], ...] = ev.AnyEvent.__args__  # pyright: ignore[reportAttributeAccessIssue]
    return {each: _kind_of(each) for each in members}


_KINDS: Final = _all_kinds()
TYPES: Final[Mapping[str, str]] = {each.stored: each.type for each in _KINDS.values()}
"""Stored `type` → the envelope's `type`."""

# -- envelopes -----------------------------------------------------------------------------------------------


class Form(Enum):
    """The container of an envelope."""

    SSE = auto()
    LINE = auto()

    def frame(self, type: str, envelope: bytes, number: int | None) -> bytes:
        """Return the framed envelope. Without a number a reader cannot resume after it."""
        return encode_event(data=envelope, event=type, id=number) if self is Form.SSE else envelope + b"\n"


class StoredUpdate(Struct, rename="camel", gc=False):
    """A stored `session_update`, split so that it can be joined in another order."""

    at: Raw
    kind: str
    update: Raw
    prompt_id: PromptId | None = None
    after: PromptId | None = None
    echo: bool = False
    beside: Raw | UnsetType = UNSET
    child: ChildId | None = None
    names: dict[str, str] = {}


class _PermissionParams(Struct, rename="camel"):
    """The members of a permission request that clients need, in v1 and in v2."""

    tool_call: Raw | UnsetType = UNSET
    title: Raw | UnsetType = UNSET
    description: Raw | UnsetType = UNSET
    subject: Raw | UnsetType = UNSET
    options: Raw | UnsetType = UNSET


class _Answer(Struct):
    outcome: Raw | UnsetType = UNSET


_decode_update = msgspec.json.Decoder(StoredUpdate).decode
_read_permission_params = msgspec.json.Decoder(_PermissionParams).decode
_read_answer = msgspec.json.Decoder(_Answer).decode
_read_blocks = msgspec.json.Decoder(list[Raw]).decode
_write = msgspec.json.Encoder().encode


def read_stored_update(body: bytes) -> StoredUpdate:
    """Decode the stored form of an update, without line ends. Raises `LogCorrupt`, `LogVersionMismatch`."""
    if _LF in body or _CR in body:
        body = one_line(body)
    try:
        return _decode_update(body)
    except UNREADABLE:
        # The codec raises the specific error.
        return _decode_update(encode(decode(body)))


def read_update(body: bytes) -> StoredUpdate | None:
    """Return the stored update; `None` for another event, or for a malformed one, which the codec will report."""
    try:
        return _decode_update(body) if body.startswith(STORED_UPDATE) else None
    except UNREADABLE:
        return None


class Splice(NamedTuple):
    """A plain update, and the bytes around its payload: those of all updates of its kind, turn and time.

    An agent's batch of chunks is one run of such updates, so its first one is decoded and the others are compared.
    """

    stored: StoredUpdate
    before: bytes
    after: bytes

    def end(self, bodies: Sequence[bytes], start: int) -> int:
        """Return the end of the run of updates with these bytes. The one at `start` has them."""
        return end_of_run(bodies, start + 1, self.before, self.after)

    def payloads(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Return the payloads of updates of the run."""
        start, end = len(self.before), -len(self.after)
        return [body[start:end] for body in bodies]


def find_splice(body: bytes) -> Splice | None:
    """Return the splice of an update without optional members, or `None` for any other event."""
    stored = read_update(body)
    if stored is None or stored.prompt_id is None:
        return None
    before, after = around_update(stored.kind, stored.prompt_id, stored.at)
    # A stored event with more members, or with its members in another order, does not match.
    return Splice(stored, before, after) if body == b"".join((before, stored.update, after)) else None


class Envelopes:
    """The envelopes of one session."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self._update_head = b'"v":1,"type":"session_update","data":{"sessionId":%b,"update":' % _write(session_id)
        self._omitted_head = b'"v":1,"type":"%b","data":{"sessionId":%b,"sessionUpdate":%%b' % (
            OMITTED.encode(),
            _write(session_id).replace(b"%", b"%%"),
        )

    def update_frame(self, offset: int, stored: StoredUpdate, facts: bytes, form: Form) -> bytes:
        """Return the frame of an update as it is stored, without decoding its payload."""
        update_head, update, at = self._update_head, stored.update, stored.at
        if form is Form.SSE:
            head = b'id: %d\nevent: session_update\ndata: {"id":%d,' % (offset, offset)
            return b"".join((head, update_head, update, facts, at, b"}}\n\n"))
        return b"".join((b'{"id":%d,' % offset, update_head, update, facts, at, b"}}\n"))

    def update_frames(
        self, offset: int, updates: Sequence[bytes], facts: bytes, at: Raw, form: Form
    ) -> list[bytes]:
        """Return the frames of several updates, the first at `offset`. They share turn and time, so the bytes
        around their number and payload are built once: the hottest line of fan-out.
        """
        middle, tail = b"," + self._update_head, b"%b%b}}\n" % (facts, at)
        numbered = zip([b"%d" % each for each in range(offset, offset + len(updates))], updates, strict=True)
        if form is Form.SSE:
            tail += b"\n"
            return [b"".join((_SSE_HEAD, each, _SSE_DATA, each, middle, update, tail)) for each, update in numbered]
        return [b"".join((_ID, each, middle, update, tail)) for each, update in numbered]

    def updates(
        self, offset: int, updates: Sequence[Raw], facts: bytes, at: Raw, form: Form, *, meta: bytes = b""
    ) -> bytes:
        """Return the frames of the updates that represent one event; the event's number is on the last."""
        parts = [self.part(offset, each, facts, at, form, meta=meta) for each in updates[:-1]]
        envelope = b"".join((b'{"id":%d,' % offset, self._update_head, updates[-1], facts, at, meta, b"}}"))
        return b"".join((*parts, form.frame(SESSION_UPDATE, envelope, offset)))

    def part(self, offset: int, update: Raw, facts: bytes, at: Raw, form: Form, *, meta: bytes = b"") -> bytes:
        """Return the frame of an update that precedes an event's envelope."""
        part_of = b',"partOf":%d}}' % offset
        envelope = b"".join((b"{", self._update_head, update, facts, at, meta, part_of))
        return form.frame(SESSION_UPDATE, envelope, None)

    def omitted(self, offset: int, kind: str, facts: bytes, at: Raw, form: Form) -> bytes:
        """Return the frame of an event without content for the reader: the numbers continue without a gap."""
        head = b'{"id":%d,' % offset + self._omitted_head % _write(kind)
        return form.frame(OMITTED, b"".join((head, facts, at, b"}}")), offset)

    def of_update(self, offset: int, stored: StoredUpdate, prompter: Prompter | None) -> bytes:
        """Return the envelope of an update as it is stored."""
        facts = facts_of_update(stored, prompter)
        return self.update_frame(offset, stored, facts, Form.LINE)[:-1]

    def of_event(self, offset: int, event: ev.AnyEvent, prompter: Prompter | None = None) -> bytes:
        """Return the envelope of an event of any kind, in its stored version.

        `prompter` is the prompter of its turn, if it has one.
        """
        if isinstance(event, ev.SessionUpdated):
            return self.of_update(offset, read_stored_update(encode(event)), prompter)
        kind = _KINDS[type(event)]
        members = _stored_members(event, kind)
        meta: _Members = {"serverTimestamp": event.at}
        if kind.type != kind.stored:
            meta["event"] = kind.stored
        envelope: _Members = {"id": offset, "v": 1, "type": kind.type, "data": self._shown(event, kind, members)}
        if "promptId" in members:
            envelope["promptId"] = members["promptId"]
        author, client_id = members.get("author"), members.get("clientId")
        if prompter is not None:
            author, client_id = author or prompter.author, prompter.client_id
        if author is not None:
            envelope["author"] = author
        if client_id is not None:
            envelope["originatorClientId"] = client_id
        envelope["_meta"] = meta
        written = _write(envelope)
        return one_line(written) if _LF in written or _CR in written else written

    def frame(self, offset: int, event: ev.AnyEvent, prompter: Prompter | None, form: Form) -> bytes:
        """Return the framed envelope of an event of any kind."""
        return form.frame(_KINDS[type(event)].type, self.of_event(offset, event, prompter), offset)

    def _shown(self, event: ev.AnyEvent, kind: _Kind, members: _Members) -> _Members:
        if isinstance(event, ev.UserMessage):
            return {"sessionId": self.session_id, "update": _shown_message(event)}
        copied = {name: members[key] for name, key in kind.row.copied.items() if key in members}
        return {"sessionId": self.session_id, **members, **kind.row.fixed, **copied, **_derived(event)}


def to_envelope(session_id: SessionId, offset: int, body: bytes) -> bytes:
    """Return the envelope of one stored event in its stored version. Raises `LogCorrupt`, `LogVersionMismatch`."""
    envelopes = Envelopes(session_id)
    if body.startswith(STORED_UPDATE):
        return envelopes.of_update(offset, read_stored_update(body), None)
    return envelopes.of_event(offset, decode(body))


def stream_frame(type: str, data: Mapping[str, Any]) -> bytes:
    """Return the SSE frame of a message that is not an event of the session, made for one stream. It has no id."""
    return in_ascii(encode_event(data=one_line(_write({"v": 1, "type": type, "data": data})), event=type))


def facts_of_update(stored: StoredUpdate, prompter: Prompter | None, *, names: bool = True) -> bytes:
    """Return the bytes between the payload of an update and its time. `names`: include the ids that the payload
    names.
    """
    parts: list[bytes] = []
    if stored.beside is not UNSET:
        parts.append(b',"beside":%b' % bytes(stored.beside))
    if stored.after is not None:
        parts.append(b',"after":%b' % _write(stored.after))
    if stored.echo:
        parts.append(b',"echo":true')
    if stored.child is not None:
        parts.append(b',"child":%b' % _write(stored.child))
    if stored.names and names:
        parts.append(b',"names":%b' % _write(stored.names))
    return b"".join((*parts, facts_of(stored.prompt_id, prompter, after=stored.after)))


def facts_of(prompt_id: PromptId | None, prompter: Prompter | None, *, after: PromptId | None = None) -> bytes:
    """Return these bytes for an update whose `data` has no other members."""
    parts: list[bytes] = [b"}"]
    if prompt_id is not None:
        parts.append(b',"promptId":%b' % _write(prompt_id))
    if after is not None:
        parts.append(b',"late":true')
    if prompter is not None and prompter.author is not None:
        parts.append(b',"author":%b' % _write(prompter.author))
    if prompter is not None and prompter.client_id is not None:
        parts.append(b',"originatorClientId":%b' % _write(prompter.client_id))
    parts.append(b',"_meta":{"serverTimestamp":')
    return b"".join(parts)


# -- parts of an envelope ------------------------------------------------------------------------------------


def _stored_members(event: ev.AnyEvent, kind: _Kind) -> _Members:
    """Return the fields of an event by their JSON names, including those stored as their default."""
    members: _Members = {}
    for name, key, may_be_null in kind.fields:
        value: object = getattr(event, name)
        if value is not UNSET and (may_be_null or value is not None):
            members[key] = value
    return members


def _derived(event: ev.AnyEvent) -> _Members:
    """Return the members that are extracted from a payload."""
    match event:
        case ev.PromptQueued():
            return {"text": _text(event.content), "queuedAt": event.at}
        case ev.PromptUpdated(content=Raw() as content):
            return {"text": _text(content)}
        case ev.PermissionRequested():
            return _parts(_read_permission_params, event.params)
        case ev.PermissionResolved():
            return _parts(_read_answer, event.answer)
        case _:
            return {}


def _parts(read: Callable[[Raw], Struct], payload: Raw) -> _Members:
    """Return the members of a payload that the envelope repeats; empty if the payload is not an object."""
    try:
        found = read(payload)
    except UNREADABLE:
        return {}
    named = ((each.encode_name, getattr(found, each.name)) for each in fields(found))
    return {key: value for key, value in named if value is not UNSET}


def _shown_message(event: ev.UserMessage) -> _Members:
    """Return a user message as an update: one event is one envelope, regardless of the number of blocks."""
    blocks = _blocks(event.content)
    is_piece = len(blocks) == 1
    return {
        "sessionUpdate": MESSAGE_PIECE if is_piece else MESSAGE,
        "content": blocks[0] if is_piece else event.content,
        "messageId": event.message_id,
    }


def _text(content: Raw) -> str:
    return join_text(_blocks(content))


def _blocks(content: Raw) -> list[Raw]:
    try:
        return _read_blocks(content)
    except UNREADABLE:
        return []


# -- decoding of envelopes, for clients of the REST contract -------------------------------------------------
#
# An event is restored unchanged, payloads byte for byte; only white space around the blocks of a user message is
# lost. An unknown type, or one made for one stream only, is neither an event nor an error: a newer daemon may send
# it.


class _Origin(Struct, rename="camel", gc=False):
    server_timestamp: int | None = None
    event: str | None = None


class _ReadEnvelope(Struct, rename="camel", gc=False):
    v: Literal[1]
    type: str
    data: Raw
    id: Annotated[int, Meta(ge=1)] | None = None
    prompt_id: PromptId | None = None
    author: str | None = None
    originator_client_id: ClientId | None = None
    meta: _Origin = field(name="_meta", default_factory=_Origin)


class _ReadUpdate(Struct, gc=False):
    update: Raw
    after: PromptId | None = None
    echo: bool = False
    beside: Raw | UnsetType = UNSET
    child: ChildId | None = None
    names: dict[str, str] = {}


class _UpdateKind(Struct, rename="camel", gc=False):
    session_update: str


class _Message(Struct, rename="camel"):
    session_update: str
    content: Raw
    message_id: MessageId


class _MessageParams(Struct):
    update: _Message


_read = msgspec.json.Decoder(_ReadEnvelope).decode
_read_update = msgspec.json.Decoder(_ReadUpdate).decode
_read_update_kind = msgspec.json.Decoder(_UpdateKind).decode
_read_message = msgspec.json.Decoder(_MessageParams).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_event: msgspec.json.Decoder[ev.AnyEvent] = msgspec.json.Decoder(ev.AnyEvent)


def read_envelope(data: bytes | str) -> tuple[int | None, ev.AnyEvent | None]:
    """Return the id and the event of an envelope; no event if its type is unknown.

    Raises:
        RemoteProtocolError: It is not an envelope, or lacks a member that its type requires.
    """
    try:
        envelope = _read(data)
        return envelope.id, _event(envelope)
    except UNREADABLE:
        raise _malformed("an event of the stream is not as its type promises; is it a turnwire daemon?") from None


def _event(envelope: _ReadEnvelope) -> ev.AnyEvent | None:
    stored = envelope.meta.event or envelope.type
    if TYPES.get(stored) != envelope.type:
        return None
    at = envelope.meta.server_timestamp
    if at is None:
        raise _malformed("an event of the stream has no `serverTimestamp`; is it a turnwire daemon?")
    if stored == SESSION_UPDATE:
        return _update(envelope, at)
    if envelope.type == SESSION_UPDATE:
        return _message(envelope, at)
    members = _read_members(envelope.data)
    if OPTION_IDS in members:
        members["options"] = members[OPTION_IDS]
    return _read_event.decode(_write({**members, "type": stored, "at": at}))


def _update(envelope: _ReadEnvelope, at: int) -> ev.SessionUpdated:
    params = _read_update(envelope.data)
    return ev.SessionUpdated(
        at=at,
        kind=_read_update_kind(params.update).session_update,
        update=params.update,
        prompt_id=envelope.prompt_id,
        after=params.after,
        echo=params.echo,
        beside=params.beside,
        child=params.child,
        names=params.names,
    )


def _message(envelope: _ReadEnvelope, at: int) -> ev.UserMessage:
    message, prompt_id = _read_message(envelope.data).update, envelope.prompt_id
    if prompt_id is None:
        raise _malformed("a user message of the stream names no prompt; is it a turnwire daemon?")
    is_piece = message.session_update == MESSAGE_PIECE
    return ev.UserMessage(
        at=at,
        prompt_id=prompt_id,
        message_id=message.message_id,
        content=Raw(b"[%b]" % message.content) if is_piece else message.content,
        author=envelope.author,
        client_id=envelope.originator_client_id,
    )


def _malformed(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, reason="bad_envelope")


# -- parties -------------------------------------------------------------------------------------------------


_PREFIXES: Final = tuple(
    stored_prefix(each).partition(b"@")[0].removesuffix(b'",')
    for each in (ev.AgentStarted, ev.PromptAccepted, ev.TurnStarted, ev.TurnCompleted, ev.TurnFailed)
)
"""Prefixes of the stored forms of these events, in all versions of their format."""


class Prompter(NamedTuple):
    """The author and client that prompted a turn."""

    author: str | None = None
    client_id: ClientId | None = None


NOBODY: Final = Prompter()
"""The prompter of a turn that the agent began."""


class Parties(Struct):
    """The parties at one offset of a log. Small for any log, because an ended turn is removed."""

    agent_version: int | None = None
    """The ACP version of the last agent; `None` if unknown."""
    prompters: dict[PromptId, Prompter] = {}
    """By unended turn, from its acceptance or its start by the agent."""

    @classmethod
    def of(cls, state: SessionState) -> Self:
        """Return the parties at the event that the state is folded to."""
        turns = (*state.queue, *state.joined) if state.turn is None else (state.turn, *state.queue, *state.joined)
        version = None if state.agent is None else state.agent.protocol_version
        return cls(version, {each.prompt_id: Prompter(each.author, each.client_id) for each in turns})

    def copy(self) -> Parties:
        return Parties(self.agent_version, dict(self.prompters))

    def take(self, event: ev.AnyEvent) -> None:
        """Apply the next event of the log."""
        match event:
            case ev.PromptAccepted():
                self.prompters[event.prompt_id] = Prompter(event.author, event.client_id)
            case ev.TurnStarted(origin=ev.Origin.AGENT):
                self.prompters[event.prompt_id] = NOBODY
            case ev.TurnCompleted() | ev.TurnFailed():
                self.prompters.pop(event.prompt_id, None)
            case ev.AgentStarted():
                self.agent_version = event.protocol_version
            case _:
                pass

    def pass_over(self, bodies: Iterable[bytes]) -> None:
        """Apply the next stored events. Nearly all of them are skipped without decoding."""
        for body in bodies:
            if not body.startswith(STORED_UPDATE) and body.startswith(_PREFIXES):
                self.take(decode(body))


# -- the projection ------------------------------------------------------------------------------------------


_OF_THE_TURN: Final = MARKERS | STATES
"""Updates whose meaning the turn's events carry."""
_PARTS: Final = (ev.UserMessage, ev.TurnCompleted, ev.TurnFailed)
"""Events before which all withheld updates must be sent."""
_MESSAGE_META: Final = b',"event":"user_message"'


_TIME: Final = len(b"1700000000000}")
"""The length of the time at the end of a stored update."""
_FEW: Final = 3
"""Minimum number of updates with one time for which a search for common bytes pays off."""


class Shape(StrEnum):
    """The version in which an agent's updates are shown."""

    V1 = "1"
    V2 = "2"
    AGENT = "agent"
    """The agent's version, byte for byte: an event is one envelope, which decodes to the event."""

    @property
    def version(self) -> int | None:
        """The ACP version; `None` for the agent's version, which may be any."""
        return None if self is Shape.AGENT else int(self)


class ShapeFold:
    """The projection for REST readers of one shape. Implements `Projection`."""

    def __init__(
        self,
        session_id: SessionId,
        shape: Shape,
        offset: int = 0,
        parties: Parties | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """`is_whole`: the fold begins at the start of the log; otherwise `parties` are those at its offset."""
        self.offset = offset
        """The offset of the last projected event."""
        self.is_stuck = False
        """True if the next event needs the events before this fold began."""
        self._envelopes = Envelopes(session_id)
        self._shape = shape
        self._version = shape.version
        self._looked_at: Collection[str] = () if self._version is None else _OF_THE_TURN
        self._parties = parties or Parties()
        self._is_whole = is_whole
        version = self._parties.agent_version
        self._passes_on = self._version in {None, version} or (version is None and is_whole)
        """True if the agent speaks the version of the shape."""
        self._facts: dict[PromptId | None, bytes] = {}
        """The bytes between the payload of an update and its time, by turn."""
        self._translator: Translator | None = None
        self.translates = False
        """True if the agent speaks another version, so that an event costs more."""
        self._children: dict[ChildId, Translator] = {}
        """The translator of each child session, which has a separate id space."""
        self._agent: tuple[int, AgentSessionId] | None = None
        self._life = 0
        """The number of times that the agent's ids began to mean something new."""
        self._active: PromptId | None = None
        """The active turn, if this fold has seen its beginning."""

    def copy(self) -> ShapeFold | None:
        """Return an independent fold at the same offset; `None` if it translates, because it is as large as the
        session.
        """
        if self._translator is not None:
            return None
        session_id, parties = self._envelopes.session_id, self._parties.copy()
        other = ShapeFold(session_id, self._shape, self.offset, parties, is_whole=self._is_whole)
        other._agent, other._life, other._active = self._agent, self._life, self._active
        return other

    def start(self, event: ev.AgentStarted) -> None:
        """Record the agent that started before the first retained event."""
        self._parties.take(event)
        self._started(event)

    def project(self, bodies: Sequence[bytes], form: Form = Form.SSE) -> list[bytes]:
        """Return the frames of the next events, one item each; fewer items if the fold gets stuck.

        Raises `LogCorrupt`, `LogVersionMismatch`.
        """
        taken: list[bytes] = []
        count = len(bodies)
        while (place := len(taken)) < count:
            body = bodies[place]
            if self._passes_on and place + _FEW < count and body[-_TIME:] == bodies[place + _FEW][-_TIME:]:
                frames = self._alike(bodies, place, form)
                if frames:
                    taken += frames
                    continue
            frame = self._one(body, form)
            if frame is None:
                self.is_stuck = True
                break
            # Nearly every frame is in ASCII, so that is checked inline.
            taken.append(frame if form is not Form.SSE or frame.isascii() else in_ascii(frame))
            self.offset += 1
        return taken

    def _one(self, body: bytes, form: Form) -> bytes | None:
        """Return the frames of the next event; `None` if it needs earlier events."""
        offset = self.offset + 1
        if not body.startswith(STORED_UPDATE):
            return self._event(offset, decode(one_line(body)), form)
        stored = read_stored_update(body)
        if self._is_plain(stored):
            told = self._facts.get(stored.prompt_id) or self._facts_of(stored)
            return self._envelopes.update_frame(offset, stored, told, form)
        return self._update(offset, stored, form)

    def _is_plain(self, stored: StoredUpdate) -> bool:
        """True if the update is shown as it is stored. Nearly every event is."""
        return self._passes_on and not (stored.kind in self._looked_at or _is_special(stored))

    def _alike(self, bodies: Sequence[bytes], first: int, form: Form) -> list[bytes]:
        """Return the frames of a plain update and of the following ones that differ only in their payload.

        An agent's batch has one turn and time, so such runs are long, and only the first update need be decoded.
        Returns an empty list if the update is not plain, has no turn, or contains a line end, which is removed from
        frames individually.
        """
        splice = find_splice(bodies[first])
        if splice is None or not self._is_plain(splice.stored):
            return []
        stored, updates = splice.stored, splice.payloads(bodies[first : splice.end(bodies, first)])
        if one_line(joined := b"".join(updates)) is not joined:
            return []
        told = self._facts.get(stored.prompt_id) or self._facts_of(stored)
        frames = self._envelopes.update_frames(self.offset + 1, updates, told, stored.at, form)
        self.offset += len(frames)
        is_ascii = form is Form.LINE or (joined.isascii() and frames[0].isascii())
        return frames if is_ascii else list(map(in_ascii, frames))

    def pass_over(self, bodies: Sequence[bytes]) -> None:
        """Advance over the next events without frames: cheap if nothing is translated. Stops where it gets
        stuck.
        """
        for body in bodies:
            if self._translator is None and self._passes_on and body.startswith(STORED_UPDATE):
                self.offset += 1
            elif not self.project((body,)):
                return

    def _prompter(self, prompt_id: PromptId | None) -> Prompter | None:
        """Return the prompter of a turn; `None` without a turn, or if it is unknown."""
        return None if prompt_id is None else self._parties.prompters.get(prompt_id)

    # -- updates of the agent ------------------------------------------------------------------------------------

    def _facts_of(self, stored: StoredUpdate) -> bytes:
        """Return the bytes after a payload, cached for the plain updates of an open turn, which are many."""
        facts = facts_of_update(stored, self._prompter(stored.prompt_id), names=self._version is None)
        if not _is_special(stored):
            self._facts[stored.prompt_id] = facts
        return facts

    def _update(self, offset: int, stored: StoredUpdate, form: Form) -> bytes | None:
        """Return the frames of an update that must be decoded; `None` if it needs earlier events."""
        updates = self._told(stored)
        if updates is None:
            return None
        facts = self._facts_of(stored)
        if not updates:
            return self._envelopes.omitted(offset, stored.kind, facts, stored.at, form)
        return self._envelopes.updates(offset, updates, facts, stored.at, form)

    def _told(self, stored: StoredUpdate) -> Sequence[Raw] | None:
        """Return the updates that a reader is sent for an update; `None` if it needs earlier events."""
        if self._version is None:
            return (stored.update,)
        if stored.echo:
            return ()
        update = renamed(stored.kind, stored.update, stored.names)
        if stored.kind in _OF_THE_TURN:
            return (update,) if stored.child is not None or self._tells_background(stored) else ()
        if self._passes_on:
            return (update,)
        translator = self._translator if stored.child is None else self._child(stored.child)
        return None if translator is None else translator.take(update, turn=stored.prompt_id or stored.after)

    def _child(self, child_id: ChildId) -> Translator | None:
        """Return the translator of a child; `None` if its earlier updates are unknown."""
        version, wanted = self._parties.agent_version, self._version
        if self._translator is None or version is None or wanted is None:
            return None
        known = self._children.get(child_id) or translator_for(version, wanted, NO_OFFERS, life=self._life)
        if known is not None:
            self._children[child_id] = known
        return known

    def _tells_background(self, stored: StoredUpdate) -> bool:
        """True if it lists background work: only v2 can express that, and no other event reports it."""
        if stored.kind != "state_update" or self._version != 2:
            return False
        background = members(stored.update).get("background")
        return background is not None and read_entries(background) is not None

    def _started(self, event: ev.AgentStarted) -> ev.AgentStarted:
        """Switch to another agent. Return the event with its offers in the version of the shape."""
        version, wanted = event.protocol_version, self._version
        self._passes_on = wanted in {None, version}
        if wanted is None:
            return event
        # As for ACP clients: the ids of a v2 agent that returns retain their meaning.
        same_life = self._agent == (2, event.agent_session_id) and version == 2 and event.how != "lost"
        self._agent = version, event.agent_session_id
        if not same_life:
            self._life += 1
            self._translator = translator_for(version, wanted, event.offers, life=self._life)
            self.translates = self._translator is not None
            self._children = {}
        elif self._translator is not None:
            self._translator.offers(event.offers)
        return (
            event if self._passes_on else replace(event, offers=session_result(event.offers, version, wanted, None))
        )

    # -- all other events ----------------------------------------------------------------------------------------

    def _event(self, offset: int, event: ev.AnyEvent, form: Form) -> bytes | None:
        """Return the frames of an event that is not stored as an update; `None` if it needs earlier events."""
        if isinstance(event, ev.SessionUpdated):
            # An update as well, with its fields in another order.
            return self._update(offset, read_stored_update(encode(event)), form)
        if self._needs_more(event):
            return None
        parts = self._parts(offset, event, form)
        is_end = isinstance(event, ev.TurnCompleted | ev.TurnFailed)
        if not is_end:
            self._parties.take(event)
        prompter = self._prompter(getattr(event, "prompt_id", None))
        if isinstance(event, ev.UserMessage) and self._version is not None:
            return parts + self._message(offset, event, prompter, form)
        frame = self._envelopes.frame(offset, self._shown(event), prompter, form)
        if is_end:
            self._parties.take(event)
            self._facts.pop(event.prompt_id, None)
        return parts + frame

    def _needs_more(self, event: ev.AnyEvent) -> bool:
        if self._is_whole or self._version is None:
            return False
        if isinstance(event, ev.AgentStarted):
            return event.protocol_version != self._version
        return isinstance(event, ev.PermissionRequested) and not self._passes_on

    def _shown(self, event: ev.AnyEvent) -> ev.AnyEvent:
        """Return the event with its agent payloads in the version of the shape."""
        match event:
            case ev.AgentStarted():
                return self._started(event)
            case ev.PermissionRequested() if not self._passes_on:
                return replace(event, params=self._permission_request(event))
            case ev.ModeChanged() if self._translator is not None:
                self._translator.mode(event.mode)
            case ev.TurnStarted():
                self._active = event.prompt_id
            case ev.TurnCompleted() | ev.TurnFailed() if event.prompt_id == self._active:
                self._active = None
            case _:
                pass
        return event

    def _permission_request(self, event: ev.PermissionRequested) -> Raw:
        version, wanted = self._parties.agent_version, self._version
        assert version is not None, "a fold that does not know the agent's version has stopped before"
        assert wanted is not None, "the agent's own words are passed on"
        return translate_permission_request(
            event.method, event.params, version, wanted, event.child or self._envelopes.session_id
        )

    def _message(self, offset: int, event: ev.UserMessage, prompter: Prompter | None, form: Form) -> bytes:
        """Return a prompt in the form in which an agent of the shape's version would show it."""
        blocks, at = entries(event.content), raw(event.at)
        facts, named = facts_of(event.prompt_id, prompter), {"messageId": event.message_id}
        if self._version == 2:
            updates = [raw({"sessionUpdate": MESSAGE, "content": blocks, **named})]
        else:
            updates = [raw({"sessionUpdate": MESSAGE_PIECE, "content": each, **named}) for each in blocks]
        if not updates:
            return self._envelopes.omitted(offset, MESSAGE, facts, at, form)
        return self._envelopes.updates(offset, updates, facts, at, form, meta=_MESSAGE_META)

    def _parts(self, offset: int, event: ev.AnyEvent, form: Form) -> bytes:
        """Return the updates that precede an event's envelope."""
        turn: PromptId | None = None
        of_children: list[bytes] = []
        if isinstance(event, ev.AgentStarted) and self._version is not None:
            updates = updates_after(event.offers, event.protocol_version, self._version)
        elif isinstance(event, _PARTS) and self._translator is not None:
            updates, turn = self._translator.part(), self._active
            of_children = self._parts_of_children(offset, event.at, form)
        else:
            return b""
        facts, at = facts_of(turn, self._prompter(turn)), raw(event.at)
        own = [self._envelopes.part(offset, each, facts, at, form) for each in updates]
        return b"".join((*own, *of_children))

    def _parts_of_children(self, offset: int, at: int, form: Form) -> list[bytes]:
        parts: list[bytes] = []
        for child_id, translator in self._children.items():
            for each in translator.part():
                stored = StoredUpdate(raw(at), SESSION_UPDATE, each, self._active, child=child_id)
                facts = facts_of_update(stored, self._prompter(self._active))
                parts.append(self._envelopes.part(offset, each, facts, stored.at, form))
        return parts


def _is_special(stored: StoredUpdate) -> bool:
    """True if an update has members besides its turn."""
    return bool(stored.echo or stored.after or stored.child or stored.names) or stored.beside is not UNSET
