"""The fields of a payload that routing needs, read without decoding the rest.

The functions read a frame's raw `params` or `update` and return the fields that decide its destination and its
meaning for the turn. They never change or copy a payload and accept unknown kinds and fields. Only a message that
cannot be routed is an error; an optional field of the wrong JSON type reads as absent.

`PieceReader` reads a run of an agent's lines at once. Consecutive chunks of one session and kind come back as one
`Pieces`, every other line comes back unchanged and in order. A malformed line is always left to the slow path,
which reports the error.

Theory of operation
-------------------
A streaming agent writes the same bytes around every update. The reader learns this envelope from one line, strips
it from the lines that have it, and decodes all their updates with one call. Three facts make the result equal to
decoding line by line:

    J1  One JSON value can replace another. If `head` + object + `tail` is a frame whose update is that object, any
        other object in its place is a frame as well (`_Envelope.learn` probes it with one).
    J2  Two lines could only decode as one value if a value continued across the line end. `}` would precede the
        line end and `{` follow it, which JSON does not allow outside a string, and a string contains no line end.
        So if the number of values equals the number of updates, each update is one value.
    J3  JSON text contains no NUL. Lines are joined with NUL, so an envelope found around a NUL ends a line; a line
        that contains a NUL itself fails to decode.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.errors import RemoteProtocolError
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import INVALID_PARAMS, raw

_T = TypeVar("_T")

_LF: Final = 10
_CR: Final = 13
PIECES: Final = frozenset({"agent_message_chunk", "agent_thought_chunk"})
"""The kinds of most updates. Routing needs only their session and message id."""
_SHORT: Final = 64 * 1024
"""Longer lines take the slow path, which checks their encoding in blocks."""


class UpdateParams(Struct, frozen=True, gc=False):
    """The params of `session/update`."""

    session_id: str
    update: Raw
    beside: Raw | UnsetType = UNSET
    """All other members as one object: `_meta` and unknown ones. Unset if there are none."""


class UpdatePeek(Struct, frozen=True, gc=False):
    """The routed fields of an update. `None` means absent, null, or of a wrong type."""

    kind: str
    message_id: str | None = None
    tool_call_id: str | None = None
    terminal_id: str | None = None
    status: str | None = None
    state: str | None = None
    stop_reason: str | None = None
    prompt_request_id: RequestId | None = None
    usage: Raw | None = None
    error: Raw | None = None
    background: Raw | None = None
    plan_id: str | None = None
    mode_id: str | None = None


class _Fields(Struct, rename="camel", gc=False):
    """The fields as spelled on the wire; `stop_reason` in snake case is accepted as well."""

    session_update: str = ""
    message_id: str | None = None
    tool_call_id: str | None = None
    terminal_id: str | None = None
    status: str | None = None
    state: str | None = None
    stop_reason: str | None = None
    stop_reason_snake: str | None = field(name="stop_reason", default=None)
    prompt_request_id: RequestId | None = None
    usage: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    background: Raw | UnsetType = UNSET
    plan_id: str | None = None
    plan: Raw | UnsetType = UNSET
    current_mode_id: str | None = None


class _PlainParams(Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """The params of nearly every update. Params with more members take the slow path, which preserves them."""

    session_id: str
    update: Raw


class _UpdateLine(Struct, gc=False):
    """A line that is exactly a `session/update`."""

    jsonrpc: Literal["2.0"]
    method: Literal["session/update"]
    params: _PlainParams
    id: UnsetType = UNSET
    result: UnsetType = UNSET
    error: UnsetType = UNSET


class _Session(Struct, rename="camel"):
    session_id: str | None = None


class _Plan(Struct, rename="camel"):
    plan_id: str | None = None


_read_line = msgspec.json.Decoder(_UpdateLine).decode
_read_session = msgspec.json.Decoder(_Session).decode
_read_plan = msgspec.json.Decoder(_Plan).decode
_read_fields = msgspec.json.Decoder(_Fields).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_TEXT: Final = msgspec.json.Decoder(str)
_REQUEST_ID: Final[msgspec.json.Decoder[RequestId]] = msgspec.json.Decoder(int | str)


def read_update_line(line: bytes) -> UpdateParams | None:
    """Return the params of a well-formed `session/update` line, or None for any other line.

    The fast path of `jsonrpc.decode` and `peek_update_params`, which report what is wrong with other lines.
    """
    if _LF in line or _CR in line or not (line.isascii() or _is_short_utf8(line)):
        return None
    try:
        params = _read_line(line).params
    except (msgspec.DecodeError, RecursionError):
        return None
    return UpdateParams(params.session_id, params.update)


def _is_short_utf8(line: bytes) -> bool:
    try:
        return len(line) <= _SHORT and bool(line.decode())
    except UnicodeDecodeError:
        return False


def peek_update_params(params: Raw) -> UpdateParams:
    """Return session id and update. Raises `RemoteProtocolError` if either is missing."""
    try:
        members = _read_members(params)
    except (msgspec.DecodeError, RecursionError):
        members = {}
    session_id, update = _read_as(_TEXT, members.pop("sessionId", None)), members.pop("update", None)
    if session_id is None or update is None:
        raise _unroutable("`session/update` needs `sessionId` and `update`", "bad_update_params")
    return UpdateParams(session_id, update, raw(members) if members else UNSET)


def peek_update(update: Raw) -> UpdatePeek:
    """Return the routed fields of an update. Raises `RemoteProtocolError` if it is not an object or has no kind."""
    try:
        fields = _read_fields(update)
        if fields.session_update == "current_mode_update" and fields.current_mode_id is None:
            # Published examples spell the member `modeId`; too rare to be one of the fields.
            fields = _read_tolerantly(update)
    except msgspec.ValidationError:
        fields = _read_tolerantly(update)
    except (msgspec.DecodeError, RecursionError):
        raise _unroutable("an update must be a JSON object", "bad_update") from None
    if fields.session_update in PIECES:
        return UpdatePeek(fields.session_update, fields.message_id)
    if not fields.session_update:
        raise _unroutable("an update must name its kind in `sessionUpdate`", "no_update_kind")
    return UpdatePeek(
        fields.session_update,
        fields.message_id,
        fields.tool_call_id,
        fields.terminal_id,
        fields.status,
        fields.state,
        fields.stop_reason or fields.stop_reason_snake,
        fields.prompt_request_id,
        None if fields.usage is UNSET else _value(fields.usage),
        None if fields.error is UNSET else _value(fields.error),
        None if fields.background is UNSET else _value(fields.background),
        fields.plan_id if fields.plan is UNSET else _plan_id(fields.plan),
        fields.current_mode_id,
    )


def beside(payload: Raw, known: Collection[str]) -> Raw | UnsetType:
    """Return the members of an object that are not in `known`, as an object; unset if there are none."""
    try:
        others = {name: value for name, value in _read_members(payload).items() if name not in known}
    except (msgspec.DecodeError, RecursionError):
        return UNSET
    return raw(others) if others else UNSET


def peek_session_id(params: Raw) -> str | None:
    """Return the session id in the params, or None."""
    try:
        return _read_session(params).session_id
    except (msgspec.DecodeError, RecursionError):
        return None


def _read_tolerantly(update: Raw) -> _Fields:
    """Read field by field, so that a wrong type costs only that field."""
    try:
        members = _read_members(update)
    except (msgspec.DecodeError, RecursionError):
        raise _unroutable("an update must be a JSON object", "bad_update") from None

    def text(name: str) -> str | None:
        return _read_as(_TEXT, members.get(name))

    return _Fields(
        session_update=text("sessionUpdate") or "",
        message_id=text("messageId"),
        tool_call_id=text("toolCallId"),
        terminal_id=text("terminalId"),
        status=text("status"),
        state=text("state"),
        stop_reason=text("stopReason"),
        stop_reason_snake=text("stop_reason"),
        prompt_request_id=_read_as(_REQUEST_ID, members.get("promptRequestId")),
        usage=members.get("usage", UNSET),
        error=members.get("error", UNSET),
        background=members.get("background", UNSET),
        plan_id=text("planId"),
        plan=members.get("plan", UNSET),
        current_mode_id=text("currentModeId") or text("modeId"),
    )


def _read_as(decoder: msgspec.json.Decoder[_T], member: Raw | None) -> _T | None:
    if member is None:
        return None
    try:
        return decoder.decode(member)
    except msgspec.ValidationError:
        return None


def _value(member: Raw) -> Raw | None:
    return None if bytes(member) == b"null" else member


def _plan_id(plan: Raw) -> str | None:
    try:
        return _read_plan(plan).plan_id
    except msgspec.ValidationError:
        return None


def _unroutable(message: str, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, jsonrpc=INVALID_PARAMS, reason=reason)


# -- runs of chunks: lines that differ only in their update --------------------------------------------------


TOGETHER: Final = 128
"""Lines decoded at once. More gain nothing, and one odd line sends all of them to the slow path."""
TOGETHER_BYTES: Final = 1024 * 1024
"""Batches of more bytes gain nothing."""
FEW: Final = 4
"""Minimum lines for a batch; fewer are as fast one by one."""

_PROBE: Final = b'{"sessionUpdate":"probe"}'


class Pieces(NamedTuple):
    """Consecutive chunks of one session and kind."""

    session_id: str
    kind: str
    updates: Sequence[Raw]


class _Kind(Struct, rename="camel", gc=False):
    session_update: str = ""


_read_all = msgspec.json.Decoder(_Kind).decode_lines
_KIND: Final = attrgetter("session_update")


class _Envelope(NamedTuple):
    """The bytes that an agent writes around an update."""

    session_id: str
    head: bytes
    tail: bytes

    @classmethod
    def learn(cls, line: bytes) -> _Envelope | None:
        """Return the envelope of a plain update line, or None for any other line."""
        params = read_update_line(line)
        head, found, tail = (b"", b"", b"") if params is None else line.partition(bytes(params.update))
        if params is None or not (found.startswith(b"{") and found.endswith(b"}")):
            return None
        probed = read_update_line(head + _PROBE + tail)
        is_there = probed is not None and bytes(probed.update) == _PROBE
        return cls(params.session_id, head, tail) if is_there else None

    def count(self, lines: Sequence[bytes]) -> int:
        """Return how many leading lines have this envelope; 0 if a line must not be passed on unchanged."""
        head, tail = self.head + b"{", b"}" + self.tail
        # One search for all lines, because nearly always all of them match.
        joined = b"\0".join(lines)
        if _LF in joined or _CR in joined or not is_utf8(joined):
            return 0
        if (
            joined.count(tail + b"\0" + head) == len(lines) - 1
            and joined.startswith(head)
            and joined.endswith(tail)
        ):
            return len(lines)
        mismatches = (
            position for position, each in enumerate(lines) if not (each.startswith(head) and each.endswith(tail))
        )
        return next(mismatches, 0)


class PieceReader:
    """Reader of one peer's lines that batches chunks."""

    def __init__(self) -> None:
        self._envelope: _Envelope | None = None

    def read(self, lines: Sequence[bytes]) -> list[Pieces | bytes]:
        """Return the lines in order, runs of chunks as `Pieces`."""
        read: list[Pieces | bytes] = []
        for start in range(0, len(lines), TOGETHER):
            some = lines[start : start + TOGETHER]
            read += self._find(some) if len(some) >= FEW and sum(map(len, some)) <= TOGETHER_BYTES else some
        return read

    def _find(self, lines: Sequence[bytes]) -> Sequence[Pieces | bytes]:
        """Return one batch of lines in order, runs of chunks as `Pieces`."""
        envelope, first = self._envelope, lines[0]
        if envelope is None or not (first.startswith(envelope.head) and first.endswith(envelope.tail)):
            envelope = self._envelope = _Envelope.learn(first)
        count = 0 if envelope is None else envelope.count(lines)
        if envelope is None or count < FEW:
            return lines
        start, end = len(envelope.head), -len(envelope.tail)
        updates = [line[start:end] for line in lines[:count]]
        found: list[Pieces | bytes] = []
        position = 0
        for kind, run in groupby(_kinds(b"\n".join(updates), count)):
            first_of_run, position = position, position + len(list(run))
            if kind in PIECES:
                found.append(Pieces(envelope.session_id, kind, list(map(Raw, updates[first_of_run:position]))))
            else:
                found += lines[first_of_run:position]
        return [*found, *lines[position:]]


def _kinds(lines: bytes, count: int) -> list[str]:
    """Return the kinds of `count` updates, or an empty list if one is malformed."""
    try:
        kinds = list(map(_KIND, _read_all(lines)))
    except (msgspec.DecodeError, RecursionError):
        return []
    return kinds if len(kinds) == count else []


def is_utf8(text: bytes) -> bool:
    """Return whether `text` is UTF-8; the decoder does not check strings that it skips."""
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
