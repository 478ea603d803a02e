"""Routed fields: what turnwire must know of a payload, read without decoding the rest.

Takes the raw `params` or `update` of a frame; gives the few fields that decide where it goes and what it
means for the turn. Never changes or copies a payload, never fails on a kind or a field it does not know. Only
what makes a message unroutable is an error; an optional field of a wrong JSON type reads as absent.

Lines of an agent that bring one piece of text each and differ in nothing else are read together (`PieceReader`):
they are given back in their order, those that are pieces of one session and kind as `Pieces`, every other line as
it is. Never decides about a line that is not exactly what it should be: whoever takes that line by itself says what
is wrong with it.

Theory of operation
-------------------
An agent that streams writes the same bytes around every update. So what is around it is learned from one line, and
lines that have it are looked at as their updates alone, which one call decodes. That each line is what it would be
by itself follows from three facts:

    J1  A value in JSON can be put in the place of another. If `head`, an object and `tail` are a frame whose update
        is that object, they are such a frame with any other object (`_Around.learn` tries it with one).
    J2  Two lines join to what neither is by itself only where a value goes on over the line end. There `}` would
        stand before it and `{` behind it, which nothing in JSON allows outside of a string; and a string has no
        line end. So as many values as there are updates mean one for each.
    J3  No text in JSON has a NUL. Lines are put together with one, so what is found around it is around the end of
        a line; if a line has one of its own, its update cannot be decoded.
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
"""Most of all updates. There is nothing to know of them but whose they are."""
_SHORT: Final = 64 * 1024
"""A longer line goes the long way, where its encoding is checked in pieces."""


class UpdateParams(Struct, frozen=True, gc=False):
    """The params of `session/update`."""

    session_id: str
    update: Raw
    beside: Raw | UnsetType = UNSET
    """The members beside these two, as one object: `_meta`, and what no version has. Unset if there are none."""


class UpdatePeek(Struct, frozen=True, gc=False):
    """What an update is about. `None` is absent, null, or of a wrong type."""

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
    """The fields as they are spelled on the wire; `stop_reason` in snake case is an accepted spelling."""

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
    """The params of nearly every update. What has more members goes the long way, which keeps them."""

    session_id: str
    update: Raw


class _UpdateLine(Struct, gc=False):
    """A whole line that is a `session/update` and nothing else."""

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
    """The params of a line that is a well-formed `session/update`; none for every other line, whatever it is.

    A short cut: `jsonrpc.decode` and `peek_update_params` give the same, and say what is wrong with other lines.
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
    """Whose update this is. Raises `RemoteProtocolError` without a session id or an update."""
    try:
        members = _read_members(params)
    except (msgspec.DecodeError, RecursionError):
        members = {}
    session_id, update = _read_as(_TEXT, members.pop("sessionId", None)), members.pop("update", None)
    if session_id is None or update is None:
        raise _unroutable("`session/update` needs `sessionId` and `update`", "bad_update_params")
    return UpdateParams(session_id, update, raw(members) if members else UNSET)


def peek_update(update: Raw) -> UpdatePeek:
    """What an update is about. Raises `RemoteProtocolError` if it is no object or names no kind."""
    try:
        fields = _read_fields(update)
        if fields.session_update == "current_mode_update" and fields.current_mode_id is None:
            # Published examples spell the member `modeId`; too rare for a place among the fields.
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
    """The members of an object beside these, as an object; unset if there are none."""
    try:
        others = {name: value for name, value in _read_members(payload).items() if name not in known}
    except (msgspec.DecodeError, RecursionError):
        return UNSET
    return raw(others) if others else UNSET


def peek_session_id(params: Raw) -> str | None:
    """The session that a request or notification names, if it names one."""
    try:
        return _read_session(params).session_id
    except (msgspec.DecodeError, RecursionError):
        return None


def _read_tolerantly(update: Raw) -> _Fields:
    """Field by field, so that one of a wrong type costs only itself."""
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


# -- pieces: lines that bring one piece of text each and differ in nothing else ------------------------------


TOGETHER: Final = 128
"""Lines that are decoded in one go: more gain nothing, and one that is unlike them costs all the short way."""
TOGETHER_BYTES: Final = 1024 * 1024
"""Longer lines gain nothing."""
FEW: Final = 4
"""Fewer lines are as quick one by one."""

_PROBE: Final = b'{"sessionUpdate":"probe"}'


class Pieces(NamedTuple):
    """Updates of one session and kind, of which there is nothing to know but whose they are."""

    session_id: str
    kind: str
    updates: Sequence[Raw]
    lines: bytes
    """The updates again, as they were decoded: with a line end behind each."""


class _Kind(Struct, rename="camel", gc=False):
    session_update: str = ""


_read_all = msgspec.json.Decoder(_Kind).decode_lines
_KIND: Final = attrgetter("session_update")


class _Around(NamedTuple):
    """What an agent writes before and behind an update."""

    session_id: str
    head: bytes
    tail: bytes

    @classmethod
    def learn(cls, line: bytes) -> _Around | None:
        """What is around the update of a line; none if it is no plain update of an object."""
        params = read_update_line(line)
        head, found, tail = (b"", b"", b"") if params is None else line.partition(bytes(params.update))
        if params is None or not (found.startswith(b"{") and found.endswith(b"}")):
            return None
        probed = read_update_line(head + _PROBE + tail)
        is_there = probed is not None and bytes(probed.update) == _PROBE
        return cls(params.session_id, head, tail) if is_there else None

    def count(self, lines: Sequence[bytes]) -> int:
        """How many lines, from the first on, have an object in this; none if one must not be passed on as it is."""
        head, tail = self.head + b"{", b"}" + self.tail
        # In one look, because nearly always all of them do.
        joined = b"\0".join(lines)
        if _LF in joined or _CR in joined or not is_utf8(joined):
            return 0
        if (
            joined.count(tail + b"\0" + head) == len(lines) - 1
            and joined.startswith(head)
            and joined.endswith(tail)
        ):
            return len(lines)
        unlike = (place for place, each in enumerate(lines) if not (each.startswith(head) and each.endswith(tail)))
        return next(unlike, 0)


class PieceReader:
    """Reads the lines of one peer."""

    def __init__(self) -> None:
        self._around: _Around | None = None

    def read(self, lines: Sequence[bytes]) -> list[Pieces | bytes]:
        """The lines in their order, pieces together."""
        read: list[Pieces | bytes] = []
        for start in range(0, len(lines), TOGETHER):
            some = lines[start : start + TOGETHER]
            read += self._find(some) if len(some) >= FEW and sum(map(len, some)) <= TOGETHER_BYTES else some
        return read

    def _find(self, lines: Sequence[bytes]) -> Sequence[Pieces | bytes]:
        """The same for a few."""
        around, first = self._around, lines[0]
        if around is None or not (first.startswith(around.head) and first.endswith(around.tail)):
            around = self._around = _Around.learn(first)
        count = 0 if around is None else around.count(lines)
        if around is None or count < FEW:
            return lines
        before, behind = len(around.head), -len(around.tail)
        updates = [line[before:behind] for line in lines[:count]]
        found: list[Pieces | bytes] = []
        place, joined = 0, as_lines(updates)
        for kind, run in groupby(_kinds(joined, count)):
            begun, place = place, place + len(list(run))
            if kind in PIECES:
                some = updates[begun:place]
                text = joined if len(some) == count else as_lines(some)
                found.append(Pieces(around.session_id, kind, list(map(Raw, some)), text))
            else:
                found += lines[begun:place]
        return [*found, *lines[place:]]


def as_lines(updates: Sequence[bytes | Raw]) -> bytes:
    """Updates in one text, with a line end behind each."""
    return b"\n".join([*updates, b""])


def _kinds(lines: bytes, count: int) -> list[str]:
    """The kind of each of so many updates; none at all if one is not as it should be."""
    try:
        kinds = list(map(_KIND, _read_all(lines)))
    except (msgspec.DecodeError, RecursionError):
        return []
    return kinds if len(kinds) == count else []


def is_utf8(text: bytes) -> bool:
    """What no decoder looks at in strings that nobody asks for."""
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
