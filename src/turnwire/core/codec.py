"""Events to bytes and back, across versions.

Takes an event, gives one line of JSON whose `type` names the kind and shape; takes such a line, gives the
event in its current shape. A shape that changed carries `type` with a version (`turn_complete@2`), and the
table `UPCASTERS` turns each older one into the next, so the rest of turnwire knows only the newest. Never
guesses: a line it cannot read is a corrupt log, a type it does not know was written by a newer turnwire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from turnwire.core.events import AnyEvent, Event, SessionUpdated
from turnwire.core.inputs import Asked
from turnwire.core.receipts import Chain, Mark
from turnwire.core.state import STATE_VERSION, SessionState, Setup
from turnwire.errors import LocalProtocolError, LogCorrupt, LogTooNew
from turnwire.ids import PromptId
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.peek import is_utf8

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

EVENTS_VERSION: Final = 1
"""Grows with each kind and shape that the last release cannot read: its nodes leave such sessions to newer ones."""

UPCASTERS: Mapping[str, Upcaster] = {}
"""Old `type` → a function that gives the same fact in the next shape, its `type` included."""

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_values = msgspec.json.Decoder(msgspec.Raw)
_NOTHING = msgspec.Raw(b"null")
_states = msgspec.json.Decoder(SessionState)
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_LF: Final = 10
_CR: Final = 13


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


def end_of_run(bodies: Sequence[bytes], start: int, head: bytes, tail: bytes) -> int:
    """Where those end that are stored alike from `start` on: what is around the payload of each is this."""
    for end, body in enumerate(islice(bodies, start, None), start):
        if not (body.endswith(tail) and body.startswith(head)):
            return end
    return len(bodies)


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


def one_line(body: bytes) -> bytes:
    """The same JSON without line ends. Outside of strings they say nothing, and no string of JSON has one."""
    return body.translate(_LINE_ENDS) if _LF in body or _CR in body else body


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


def check_readable(bodies: list[bytes]) -> None:
    """Refuse events that are no JSON: for those who pass payloads on without decoding what was read from a disk.

    Raises `LogCorrupt`.
    """
    # In one call, because nearly always all of them are.
    if _are_json(bodies):
        return
    for body in bodies:
        if not (is_utf8(body) and _is_json(body)):
            raise LogCorrupt("an event in the log is not readable; restore the log from a backup")


def _are_json(bodies: list[bytes]) -> bool:
    text = b"\n".join(bodies)
    try:
        return is_utf8(text) and len(_values.decode_lines(text)) == len(bodies)
    except UNREADABLE:
        return False


def _is_json(body: bytes) -> bool:
    try:
        _values.decode(body)
    except UNREADABLE:
        return False
    return True


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


def encode_state(state: SessionState, chain: Chain | None = None) -> bytes:
    """A state as a snapshot keeps it, with the chain of its receipts.

    An older turnwire reads over the chain, so its being there makes no other version of a state.
    """
    body = _encoder.encode(state)
    if chain is None:
        return body
    return b'%b%b"chain":%b}' % (body[:-1], b"," if len(body) > 2 else b"", _encoder.encode(chain.mark))


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


def decode_chain(body: bytes) -> Mark | None:
    """The chain in a snapshot of a state; none in one that an older turnwire kept."""
    try:
        return msgspec.json.decode(body, type=_WithChain).chain
    except UNREADABLE:
        return None


class _WithChain(msgspec.Struct):
    """What a snapshot has beside the state."""

    chain: Mark | None = None


class _First(msgspec.Struct):
    """Where version 1 of a state had the servers."""

    mcp_servers: msgspec.Raw = msgspec.Raw(b"[]")


def _event_types() -> frozenset[str]:
    members: tuple[type[msgspec.Struct], ...] = AnyEvent.__args__  # pyright: ignore[reportAttributeAccessIssue]
    return frozenset(str(each.__struct_config__.tag) for each in members)


EVENT_TYPES = _event_types()
"""Every `type` in its current shape."""
