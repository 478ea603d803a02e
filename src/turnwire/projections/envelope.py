"""JSON envelopes of events for REST clients, one line each, in SSE frames or as lines of a file.

Stored events, with their offset and session, become envelopes:

  {id, v, type, data, promptId?, late?, author?, originatorClientId?, _meta: {serverTimestamp, event?, partOf?}}

`data` has the session's id and every field of the event, so that no field is lost: `read_envelope` is the inverse.
The exceptions are in one table, `_ROWS`: kinds with another `type`, whose stored type is then in `_meta.event`,
members under the names that clients of this contract know, and fields hidden from all readers. An envelope is one
line: line ends between the tokens of a payload become spaces.

On every event of a turn, `originatorClientId` is the client that prompted it, and `author` is the author of the
event: the prompter unless the event names another. The caller supplies them (`projections.parties`); events do not
repeat them. The module holds no state; `projections.shape` selects the version in which an agent's update is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import fields

from turnwire.errors import RemoteProtocolError
from turnwire.ids import ChildId, ClientId, MessageId, PromptId, SessionId
from turnwire.projections.parties import Prompter
from turnwire.projections.view.transcript import join_text
from turnwire.session import events as ev
from turnwire.session.codec import STORED_UPDATE, decode, encode, one_line
from turnwire.wire.jsonrpc import UNREADABLE
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
