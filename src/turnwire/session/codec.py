"""Encode events as one line of JSON each, and decode them.

`type` names the kind of event. A line that cannot be decoded means a corrupt log; an unknown `type` was written by
another version of turnwire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from turnwire.errors import LocalProtocolError, LogCorrupt, LogVersionMismatch
from turnwire.ids import PromptId
from turnwire.session.events import AnyEvent, Event, SessionUpdated
from turnwire.session.inputs import Asked
from turnwire.session.receipts import Chain, Mark
from turnwire.session.state import STATE_VERSION, SessionState
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.peek import is_utf8

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_values = msgspec.json.Decoder(msgspec.Raw)
_NOTHING = msgspec.Raw(b"null")
_states = msgspec.json.Decoder(SessionState)
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_LF: Final = 10
_CR: Final = 13


def stored_prefix(kind: type[Event]) -> bytes:
    """Return the first bytes of every stored event of this kind, for finding a few among thousands."""
    return b'{"type":"%b",' % str(kind.__struct_config__.tag).encode()


STORED_UPDATE: Final = stored_prefix(SessionUpdated)
"""Prefix of nearly all events of a session."""


def around_update(kind: str, prompt_id: PromptId, at: int | msgspec.Raw) -> tuple[bytes, bytes]:
    """Return the bytes before and after the payload in the stored form of an update without optional members.

    A body with this head and tail holds nothing else: the turn directly follows the payload, all optional members
    follow the turn, and the tail closes the object, so the members that it names are the event's. This does not
    hold for an update without a turn: its tail would fit one that has a turn.
    """
    head = b'%b"kind":%b,"update":' % (STORED_UPDATE, _encoder.encode(kind))
    return head, b',"promptId":%b,"at":%b}' % (_encoder.encode(prompt_id), _encoder.encode(at))


def end_of_run(bodies: Sequence[bytes], start: int, head: bytes, tail: bytes) -> int:
    """Return the end of the run of bodies, from `start`, that have this head and tail around their payload."""
    for end, body in enumerate(islice(bodies, start, None), start):
        if not (body.endswith(tail) and body.startswith(head)):
            return end
    return len(bodies)


def encode(event: AnyEvent) -> bytes:
    """Return the stored form of an event."""
    return _encoder.encode(event)


def encode_all(events: Iterable[AnyEvent]) -> list[bytes]:
    """Return the stored form of each event."""
    return list(map(_encoder.encode, events))


def check_asked(asked: Asked) -> None:
    """Reject a client's input that the log could not return unchanged. Payloads of peers are JSON already.

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
    """Return the same JSON without line ends. They mean nothing outside strings, and a JSON string cannot contain
    one.
    """
    return body.translate(_LINE_ENDS) if _LF in body or _CR in body else body


def decode(body: bytes) -> AnyEvent:
    """Decode an event. Raises `LogCorrupt`, `LogVersionMismatch`."""
    try:
        return _events.decode(body)
    except UNREADABLE as error:
        raise _unreadable(body) from error


def decode_all(bodies: list[bytes]) -> list[AnyEvent]:
    """Decode each event. Raises `LogCorrupt`, `LogVersionMismatch`."""
    try:
        return list(map(_events.decode, bodies))
    except UNREADABLE:
        return [decode(body) for body in bodies]


def check_readable(bodies: list[bytes]) -> None:
    """Reject events that are not JSON, for callers that forward payloads from disk without decoding them.

    Raises `LogCorrupt`.
    """
    # One call checks all bodies, because nearly always all of them are valid.
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


def _unreadable(body: bytes) -> LogCorrupt | LogVersionMismatch:
    try:
        kind = msgspec.json.decode(body, type=dict[str, Any]).get("type")
    except UNREADABLE:
        return LogCorrupt("an event in the log is not readable; restore the log from a backup")
    if not isinstance(kind, str):
        return LogCorrupt("an event in the log has no type; restore the log from a backup")
    if kind not in EVENT_TYPES:
        return LogVersionMismatch(
            "the log holds a kind of event that this version does not know; use the turnwire that wrote it",
            type=kind,
        )
    return LogCorrupt("an event in the log lacks what its kind needs; restore the log from a backup", type=kind)


def encode_state(state: SessionState, chain: Chain | None = None) -> bytes:
    """Encode a state for a snapshot, with the chain of the session's receipts."""
    body = _encoder.encode(state)
    if chain is None:
        return body
    return b'%b%b"chain":%b}' % (body[:-1], b"," if len(body) > 2 else b"", _encoder.encode(chain.mark))


def decode_state(body: bytes, version: int) -> SessionState | None:
    """Decode the state of a snapshot; `None` if its version is unknown, and the log must be folded again."""
    if version != STATE_VERSION:
        return None
    try:
        return _states.decode(body)
    except UNREADABLE:
        return None


def decode_chain(body: bytes) -> Mark | None:
    """Return the chain in a snapshot of a state; `None` if absent."""
    try:
        return msgspec.json.decode(body, type=_WithChain).chain
    except UNREADABLE:
        return None


class _WithChain(msgspec.Struct):
    """The chain in the snapshot of a state."""

    chain: Mark | None = None


def _event_types() -> frozenset[str]:
    members: tuple[type[msgspec.Struct], ...] = AnyEvent.__args__  # pyright: ignore[reportAttributeAccessIssue]
    return frozenset(str(each.__struct_config__.tag) for each in members)


EVENT_TYPES = _event_types()
"""The `type` of every kind of event."""
