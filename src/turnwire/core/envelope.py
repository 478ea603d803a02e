"""Events as REST clients read them: JSON envelopes of one line, in SSE frames or as lines of a file.

Takes stored events with their offset and session, gives envelopes

    {id, v, type, data, promptId?, late?, author?, originatorClientId?, _meta: {serverTimestamp, event?, partOf?}}

`data` has the session's id and every field of the event, so that nothing is lost: `read_envelope` is the way back.
The exceptions are in one table, `_ROWS`: kinds that go by another `type`, whose own name is then in `_meta.event`,
members under the names that clients of this contract know, and what is kept from all readers. An envelope is one
line: line ends between the tokens of a payload become spaces.

On every event of a turn, `originatorClientId` is the client that prompted it, and `author` who did what the event
tells, which is who prompted unless the event names another. The caller knows them (`core.parties`): events do not
repeat them. Never holds state; in whose words an agent's update is shown is decided in `core.shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import fields

from turnwire.core import events as ev
from turnwire.core.codec import STORED_UPDATE, decode, encode, one_line
from turnwire.core.parties import Prompter
from turnwire.core.view.transcript import join_text
from turnwire.errors import RemoteProtocolError
from turnwire.ids import ChildId, ClientId, MessageId, PromptId, SessionId
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.sse import encode_event, in_ascii

SESSION_UPDATE: Final = "session_update"
MESSAGE_PIECE: Final = "user_message_chunk"
"""How a user message of one block is shown."""
MESSAGE: Final = "user_message"
"""How a user message of several blocks is shown."""
OMITTED: Final = "session_update_omitted"
"""The type of an event that tells a reader nothing in the version that it reads."""

OPTION_IDS: Final = "optionIds"
"""The stored `options` of a permission request; `options` is the agent's list of them."""

_ID: Final = b'{"id":'
_SSE_HEAD: Final = b"id: "
_SSE_DATA: Final = b'\nevent: session_update\ndata: {"id":'
_LF: Final = 10
_CR: Final = 13

_Members: TypeAlias = dict[str, object]

# -- what departs from the rule ------------------------------------------------------------------------------


class _Row(NamedTuple):
    """How one kind of event departs from the rule."""

    type: str | None = None
    """The envelope's type, if it is not the stored one."""
    fixed: Mapping[str, object] = {}
    """Members that are the same in every event of the kind."""
    copied: Mapping[str, str] = {}
    """Members that repeat another: name → whose value."""
    renamed: Mapping[str, str] = {}
    """Fields whose name means something else to clients: stored name → name here."""
    hidden: frozenset[str] = frozenset()
    """Fields that nobody is shown."""


_RUNNING: Final = {"state": "running"}
_SECRET: Final = frozenset({"mcp_servers", "meta"})
"""What an agent is opened with holds keys and tokens, and readers of a session are not all its owner."""
_ROWS: Final[Mapping[type[ev.Event], _Row]] = {
    # Whoever wants to read the conversation before reads the session that it was.
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
    """A field of an event: its names in Python and in JSON, and whether none is a value of it."""

    name: str
    key: str
    may_be_null: bool


class _Kind(NamedTuple):
    """What there is to know of one kind of event."""

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
    """What an envelope is written into."""

    SSE = auto()
    LINE = auto()

    def frame(self, type: str, envelope: bytes, number: int | None) -> bytes:
        """The envelope with what is around it. Without a number it is no place to come back to."""
        return encode_event(data=envelope, event=type, id=number) if self is Form.SSE else envelope + b"\n"


class StoredUpdate(Struct, rename="camel", gc=False):
    """A stored `session_update` in pieces, to be joined again in another order."""

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
    """What clients look for in a permission request, in v1 and in v2."""

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
    """The stored form of an update, without line ends. Raises `LogCorrupt`, `LogTooNew`."""
    if _LF in body or _CR in body:
        body = one_line(body)
    try:
        return _decode_update(body)
    except UNREADABLE:
        # The codec says what is wrong with it.
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
        """The frame of an update as it is stored, without a look at its payload."""
        update_head, update, at = self._update_head, stored.update, stored.at
        if form is Form.SSE:
            head = b'id: %d\nevent: session_update\ndata: {"id":%d,' % (offset, offset)
            return b"".join((head, update_head, update, facts, at, b"}}\n\n"))
        return b"".join((b'{"id":%d,' % offset, update_head, update, facts, at, b"}}\n"))

    def update_frames(
        self, offset: int, updates: Sequence[bytes], facts: bytes, at: Raw, form: Form
    ) -> list[bytes]:
        """The same of several, the first at `offset`. They are of one turn and time, so what is around their number
        and payload is made once: the hottest line of fan-out."""
        middle, tail = b"," + self._update_head, b"%b%b}}\n" % (facts, at)
        numbered = zip([b"%d" % each for each in range(offset, offset + len(updates))], updates, strict=True)
        if form is Form.SSE:
            tail += b"\n"
            return [b"".join((_SSE_HEAD, each, _SSE_DATA, each, middle, update, tail)) for each, update in numbered]
        return [b"".join((_ID, each, middle, update, tail)) for each, update in numbered]

    def updates(
        self, offset: int, updates: Sequence[Raw], facts: bytes, at: Raw, form: Form, *, meta: bytes = b""
    ) -> bytes:
        """The frames of several updates that one event is told as; the event's number is on the last."""
        parts = [self.part(offset, each, facts, at, form, meta=meta) for each in updates[:-1]]
        envelope = b"".join((b'{"id":%d,' % offset, self._update_head, updates[-1], facts, at, meta, b"}}"))
        return b"".join((*parts, form.frame(SESSION_UPDATE, envelope, offset)))

    def part(self, offset: int, update: Raw, facts: bytes, at: Raw, form: Form, *, meta: bytes = b"") -> bytes:
        """The frame of an update that is told with an event, before its own envelope."""
        part_of = b',"partOf":%d}}' % offset
        envelope = b"".join((b"{", self._update_head, update, facts, at, meta, part_of))
        return form.frame(SESSION_UPDATE, envelope, None)

    def omitted(self, offset: int, kind: str, facts: bytes, at: Raw, form: Form) -> bytes:
        """The frame of an event that tells a reader nothing: the numbers go on without a gap."""
        head = b'{"id":%d,' % offset + self._omitted_head % _write(kind)
        return form.frame(OMITTED, b"".join((head, facts, at, b"}}")), offset)

    def of_update(self, offset: int, stored: StoredUpdate, prompter: Prompter | None) -> bytes:
        """The envelope of an update as it is stored."""
        facts = facts_of_update(stored, prompter)
        return self.update_frame(offset, stored, facts, Form.LINE)[:-1]

    def of_event(self, offset: int, event: ev.AnyEvent, prompter: Prompter | None = None) -> bytes:
        """The envelope of an event of any kind, in the words in which it is stored.

        `prompter`: who prompted its turn, if it is of one.
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
        """The same in a frame."""
        return form.frame(_KINDS[type(event)].type, self.of_event(offset, event, prompter), offset)

    def _shown(self, event: ev.AnyEvent, kind: _Kind, members: _Members) -> _Members:
        if isinstance(event, ev.UserMessage):
            return {"sessionId": self.session_id, "update": _shown_message(event)}
        copied = {name: members[key] for name, key in kind.row.copied.items() if key in members}
        return {"sessionId": self.session_id, **members, **kind.row.fixed, **copied, **_derived(event)}


def to_envelope(session_id: SessionId, offset: int, body: bytes) -> bytes:
    """The envelope of one stored event, as it is stored. Raises `LogCorrupt`, `LogTooNew`."""
    envelopes = Envelopes(session_id)
    if body.startswith(STORED_UPDATE):
        return envelopes.of_update(offset, read_stored_update(body), None)
    return envelopes.of_event(offset, decode(body))


def stream_frame(type: str, data: Mapping[str, Any]) -> bytes:
    """The SSE frame of something that is no event of the session, made for one stream. It has no id."""
    return in_ascii(encode_event(data=one_line(_write({"v": 1, "type": type, "data": data})), event=type))


def facts_of_update(stored: StoredUpdate, prompter: Prompter | None, *, names: bool = True) -> bytes:
    """What is between the payload of an update and its time. `names`: also whom the payload names by other ids."""
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
    """The same of an update of which there is nothing to tell in its `data`."""
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
    """The fields of an event by their JSON names, also those that are stored as their default."""
    members: _Members = {}
    for name, key, may_be_null in kind.fields:
        value: object = getattr(event, name)
        if value is not UNSET and (may_be_null or value is not None):
            members[key] = value
    return members


def _derived(event: ev.AnyEvent) -> _Members:
    """Members that are found inside of a payload."""
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
    """The members of a payload that are shown beside it; none of a payload that is no object."""
    try:
        found = read(payload)
    except UNREADABLE:
        return {}
    named = ((each.encode_name, getattr(found, each.name)) for each in fields(found))
    return {key: value for key, value in named if value is not UNSET}


def _shown_message(event: ev.UserMessage) -> _Members:
    """A user message as an update: one event is one envelope, whatever the number of its blocks."""
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


# -- the way back: what a client of the REST contract does with a frame --------------------------------------
#
# An event comes back as it was, payloads byte for byte; only white space around the blocks of a user message is not
# kept. A type that is not known, or made for one stream only, is no event and no error: a newer daemon may send it.


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
    """The id and the event of an envelope; no event if its type is not known here.

    Raises:
        RemoteProtocolError: it is no envelope, or lacks what its type needs.
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
