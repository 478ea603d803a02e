"""Envelopes back to events: what a client of the REST contract does with a frame.

Takes an envelope as JSON, gives its id and the event that `core.envelope` made it from. An event comes back as it
was, payloads byte for byte; only white space around the blocks of a user message is not kept. A type that is not
known, or made for one stream only, is no event and no error: a newer daemon may send it. Never guesses what is
missing.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from turnwire.core import events as ev
from turnwire.core.envelope import MESSAGE_PIECE, OPTION_IDS, SESSION_UPDATE, TYPES
from turnwire.errors import RemoteProtocolError
from turnwire.ids import ClientId, MessageId, PromptId
from turnwire.wire.jsonrpc import UNREADABLE


class _Origin(Struct, rename="camel", gc=False):
    server_timestamp: int | None = None
    event: str | None = None


class _Envelope(Struct, rename="camel", gc=False):
    v: Literal[1]
    type: str
    data: Raw
    id: Annotated[int, Meta(ge=1)] | None = None
    prompt_id: PromptId | None = None
    author: str | None = None
    originator_client_id: ClientId | None = None
    meta: _Origin = field(name="_meta", default_factory=_Origin)


class _Update(Struct, gc=False):
    update: Raw
    after: PromptId | None = None
    echo: bool = False


class _UpdateKind(Struct, rename="camel", gc=False):
    session_update: str


class _Message(Struct, rename="camel"):
    session_update: str
    content: Raw
    message_id: MessageId


class _MessageParams(Struct):
    update: _Message


_read = msgspec.json.Decoder(_Envelope).decode
_read_update = msgspec.json.Decoder(_Update).decode
_read_update_kind = msgspec.json.Decoder(_UpdateKind).decode
_read_message = msgspec.json.Decoder(_MessageParams).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_event: msgspec.json.Decoder[ev.AnyEvent] = msgspec.json.Decoder(ev.AnyEvent)
_write = msgspec.json.Encoder().encode


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


def _event(envelope: _Envelope) -> ev.AnyEvent | None:
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


def _update(envelope: _Envelope, at: int) -> ev.SessionUpdated:
    params = _read_update(envelope.data)
    return ev.SessionUpdated(
        at=at,
        kind=_read_update_kind(params.update).session_update,
        update=params.update,
        prompt_id=envelope.prompt_id,
        after=params.after,
        echo=params.echo,
    )


def _message(envelope: _Envelope, at: int) -> ev.UserMessage:
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
