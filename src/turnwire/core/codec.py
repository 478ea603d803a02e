"""Events to bytes and back, across versions.

Takes an event, gives one line of JSON whose `type` names the kind and shape; takes such a line, gives the
event in its current shape. A shape that changed carries `type` with a version (`turn_complete@2`), and the
table `UPCASTERS` turns each older one into the next, so the rest of turnwire knows only the newest. Never
guesses: a line it cannot read is a corrupt log, a type it does not know was written by a newer turnwire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from turnwire.core.events import AnyEvent, Event, SessionUpdated
from turnwire.core.inputs import Asked
from turnwire.core.state import STATE_VERSION, SessionState, Setup
from turnwire.errors import LocalProtocolError, LogCorrupt, LogTooNew
from turnwire.ids import PromptId
from turnwire.wire.jsonrpc import UNREADABLE

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Mapping[str, Upcaster] = {}
"""Old `type` → a function that gives the same fact in the next shape, its `type` included."""

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_NOTHING = msgspec.Raw(b"null")
_states = msgspec.json.Decoder(SessionState)


def stored_prefix(kind: type[Event], *, any_version: bool = False) -> bytes:
    """How the stored form of an event of this kind begins: by it, who reads thousands finds a few.

    `any_version`: also of older shapes, whose tags begin alike. Other kinds may, too.
    """
    tag = str(kind.__struct_config__.tag).encode()
    return b'{"type":"%b' % tag if any_version else b'{"type":"%b",' % tag


STORED_UPDATE: Final = stored_prefix(SessionUpdated)
"""Nearly every event of a session begins so."""


def around_update(kind: str, prompt_id: PromptId, at: int | msgspec.Raw) -> tuple[bytes, bytes]:
    """What is before and behind the payload in the stored form of an update of which there is no more to tell.

    What begins and ends so holds nothing else: the turn is written right behind the payload, whatever else there is
    to tell behind the turn, and the end closes the whole, so the members that it names are the event's own. Of an
    update without a turn that is not so: its end would fit one that has a turn.
    """
    head = b'%b"kind":%b,"update":' % (STORED_UPDATE, _encoder.encode(kind))
    return head, b',"promptId":%b,"at":%b}' % (_encoder.encode(prompt_id), _encoder.encode(at))


def encode(event: AnyEvent) -> bytes:
    """The stored form of an event."""
    return _encoder.encode(event)


def encode_all(events: Iterable[AnyEvent]) -> list[bytes]:
    """The stored form of each."""
    return list(map(_encoder.encode, events))


def check_asked(asked: Asked) -> None:
    """Refuse what a client asks if the log could not give it back. Payloads of peers are JSON already.

    Raises `LocalProtocolError`.
    """
    payloads = {name: _NOTHING for name in asked.__struct_fields__ if isinstance(getattr(asked, name), msgspec.Raw)}
    try:
        msgspec.json.decode(_encoder.encode(msgspec.structs.replace(asked, **payloads)), type=type(asked))
    except (*UNREADABLE, TypeError, ValueError, OverflowError):
        raise LocalProtocolError(
            "what was asked for has a value of a wrong type, or text that UTF-8 cannot hold; give other values",
            input=type(asked).__name__,
        ) from None


def decode(body: bytes, upcasters: Mapping[str, Upcaster] = UPCASTERS) -> AnyEvent:
    """The event of a stored form. Raises `LogCorrupt`, `LogTooNew`."""
    try:
        return _events.decode(body)
    except UNREADABLE as error:
        return _decode_old(body, upcasters, error)


def decode_all(bodies: list[bytes]) -> list[AnyEvent]:
    """The event of each. Raises `LogCorrupt`, `LogTooNew`."""
    try:
        return list(map(_events.decode, bodies))
    except UNREADABLE:
        return [decode(body) for body in bodies]


def _decode_old(body: bytes, upcasters: Mapping[str, Upcaster], error: Exception) -> AnyEvent:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        raise LogCorrupt("an event in the log is not readable; restore the log from a backup") from error
    changed = False
    while (upcast := upcasters.get(_kind(fields))) is not None:
        fields, changed = upcast(fields), True
    kind = _kind(fields)
    if kind not in EVENT_TYPES:
        raise LogTooNew(
            "the log holds a kind of event that this version does not know; run a newer turnwire", type=kind
        )
    if changed:
        # Through JSON once more, so that payloads are raw again.
        try:
            return _events.decode(_encoder.encode(fields))
        except msgspec.ValidationError as lacking:
            error = lacking
    raise LogCorrupt(
        "an event in the log lacks what its kind needs; restore the log from a backup", type=kind
    ) from error


def _kind(fields: dict[str, Any]) -> str:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise LogCorrupt("an event in the log has no type; restore the log from a backup")
    return kind


def encode_state(state: SessionState) -> bytes:
    """A state as a snapshot keeps it."""
    return _encoder.encode(state)


def decode_state(body: bytes, version: int) -> SessionState | None:
    """The state of a snapshot; none if it is of a version that is not known, then the log is folded anew."""
    if version not in (1, STATE_VERSION):
        return None
    try:
        state = _states.decode(body)
        if version == 1:
            setup = Setup(msgspec.json.decode(body, type=_First).mcp_servers)
            return msgspec.structs.replace(state, setup=setup)
        return state
    except UNREADABLE:
        return None


class _First(msgspec.Struct):
    """Where version 1 of a state had the servers."""

    mcp_servers: msgspec.Raw = msgspec.Raw(b"[]")


def _event_types() -> frozenset[str]:
    members: tuple[type[msgspec.Struct], ...] = AnyEvent.__args__  # pyright: ignore[reportAttributeAccessIssue]
    return frozenset(str(each.__struct_config__.tag) for each in members)


EVENT_TYPES = _event_types()
"""Every `type` in its current shape."""
