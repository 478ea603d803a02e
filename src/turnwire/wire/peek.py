"""Routed fields: what turnwire must know of a payload, read without decoding the rest.

Takes the raw `params` or `update` of a frame; gives the few fields that decide where it goes and what it
means for the turn. Never changes or copies a payload, never fails on a kind or a field it does not know. Only
what makes a message unroutable is an error; an optional field of a wrong JSON type reads as absent.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeVar

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
