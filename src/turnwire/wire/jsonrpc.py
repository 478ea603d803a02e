"""JSON-RPC 2.0 frames: decode one line of bytes to one frame, and encode it again.

`decode` reads one message without its line end and returns a `Request`, `Notification`, `Result` or `Failure`, or
an uninspected `Batch`. Payloads stay `Raw` and are passed on byte for byte. A peer's bytes raise nothing but
`RemoteProtocolError`, and are never repeated in it.

Two repairs are made on input, because the bytes could not be passed on otherwise. Line ends between tokens become
spaces, so that a frame is one line on every transport. A lone surrogate escape, which JSON permits and no text can
hold, becomes the replacement character.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Final, NoReturn, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.ids import RequestId

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
AUTH_REQUIRED: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002
UNSUPPORTED_VERSION: Final = -32022

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions raised by reading bytes that are not JSON or not of the wanted type."""

NOTHING: Final = Raw(b"")
"""The params of a frame without any."""


class ErrorObject(Struct, frozen=True):
    """The error of a failed request."""

    code: int
    message: str
    data: Raw | UnsetType = UNSET


class Request(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """A message that expects one answer with the same id."""

    id: RequestId
    method: str
    params: Raw = NOTHING


class Notification(Struct, frozen=True, tag_field="jsonrpc", tag="2.0", gc=False):
    """A message without an answer."""

    method: str
    params: Raw = NOTHING


class Result(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The answer to a request that succeeded."""

    id: RequestId
    result: Raw


class Failure(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The answer to a request that failed; without an id if the request's id was unreadable."""

    id: RequestId | None
    error: ErrorObject


Frame: TypeAlias = Request | Notification | Result | Failure


class Batch(Struct, frozen=True):
    """A JSON array instead of a frame. ACP has no batches; the entries are not interpreted."""

    entries: tuple[Raw, ...]


# ACP ids have 64 bits; a longer one could not be stored or compared everywhere.
_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Code = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class _WireError(Struct):
    code: _Code
    message: str
    data: Raw | UnsetType = UNSET


class _Envelope(Struct, gc=False):
    jsonrpc: str = ""
    id: _Integer | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NOTHING
    result: Raw | UnsetType = UNSET
    error: _WireError | UnsetType = UNSET


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_entries = msgspec.json.Decoder(tuple[Raw, ...]).decode
_read_id = msgspec.json.Decoder(_Integer | str).decode


class Unknown:
    """A value of an unknown kind, with its original bytes.

    Typed views contain one wherever ACP leaves a union open; encoding the view again writes the same bytes.
    """

    __match_args__ = ("tag", "raw")
    __slots__ = ("raw", "tag")

    def __init__(self, tag: str, raw: Raw) -> None:
        self.tag = tag
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and (self.tag, self.raw) == (other.tag, other.raw)

    def __hash__(self) -> int:
        return hash((self.tag, bytes(self.raw)))

    def __repr__(self) -> str:
        return f"Unknown(tag={self.tag!r})"


def _keep_unknown(value: object) -> Raw:
    if isinstance(value, Unknown):
        return value.raw
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


_write = msgspec.json.Encoder(enc_hook=_keep_unknown).encode

# Numbers, because searching for an int in bytes is several times faster than searching for a one-byte string.
_LF: Final = 10
_CR: Final = 13
_PIECE: Final = 1024 * 1024
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.S
)
_LONE: Final = re.compile(rb"\\u[dD][89a-fA-F]..")


def decode(line: bytes) -> Frame | Batch:
    """Read one message.

    Raises:
        RemoteProtocolError: the line is not a frame. `context` has `jsonrpc` (the code to answer with) and
        `reason`;
            in addition `request_id` if it was a request with a readable id, or `response_id` if it was a response,
            which is never answered.
    """
    if not line.isascii():
        _require_utf8(line)
    if _LF in line or _CR in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    try:
        envelope = _read_envelope(line)
    except msgspec.ValidationError:
        return _decode_array_or_refuse(line)
    except msgspec.DecodeError:
        return _decode_repaired(line)
    except RecursionError:
        raise _not_json("too_deep") from None
    frame = _frame(envelope)
    return frame if frame is not None else _refuse(line)


def refusal_of(error: RemoteProtocolError) -> Failure | None:
    """Return the answer to a line that `decode` rejected; None if the line was a response."""
    if "response_id" in error.context:
        return None
    named = error.context.get("request_id")
    known = named if isinstance(named, int | str) else None
    return Failure(known, ErrorObject(code_of(error, INVALID_REQUEST), "this is no JSON-RPC message"))


def code_of(error: TurnwireError, otherwise: int) -> int:
    """Return the JSON-RPC code in the error's `context`, or `otherwise`."""
    carried = error.context.get("jsonrpc")
    return carried if isinstance(carried, int) else otherwise


def invalid_params(message: str) -> RemoteProtocolError:
    """Return an error for invalid params of a request."""
    return RemoteProtocolError(message, jsonrpc=INVALID_PARAMS, reason="bad_params")


def encode(frame: Frame) -> bytes:
    """Write one frame without a line end. Payloads are spliced in unchanged."""
    if isinstance(frame, Request) and not frame.params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (_write(frame.id), _write(frame.method))
    if isinstance(frame, Notification) and not frame.params:
        return b'{"jsonrpc":"2.0","method":%b}' % _write(frame.method)
    return _write(frame)


def encode_failure(request_id: RequestId | None, error: Raw | bytes) -> bytes:
    """Write an error answer around an encoded error object."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_write(request_id), bytes(error))


def raw(value: Any) -> Raw:
    """Encode a Python value or a struct of `wire.schema` as a payload."""
    return Raw(_write(value))


def _frame(envelope: _Envelope) -> Frame | None:
    """Return the envelope as a frame, or None if it is not exactly one."""
    if envelope.jsonrpc != "2.0":
        return None
    ident, method, result, error = envelope.id, envelope.method, envelope.result, envelope.error
    if method is not UNSET:
        if result is not UNSET or error is not UNSET or ident is None:
            return None
        if ident is UNSET:
            return Notification(method, envelope.params)
        return Request(ident, method, envelope.params)
    if ident is UNSET:
        return None
    if error is UNSET:
        return Result(ident, result) if result is not UNSET and ident is not None else None
    if result is not UNSET:
        return None
    return Failure(ident, ErrorObject(error.code, error.message, error.data))


def _require_utf8(line: bytes) -> None:
    """Check the text encoding, which the JSON reader does not do for values that it skips.

    In blocks, because decoding a whole frame at once would need up to four times its size.
    """
    try:
        if len(line) <= _PIECE:
            line.decode()
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(line), _PIECE):
            decoder.decode(line[start : start + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _not_json("not_utf8") from None


def _decode_repaired(line: bytes) -> Frame | Batch:
    """Decode again without lone surrogates, which agents send that cut text inside a character."""
    repaired = _ESCAPE.sub(_replace_lone, line) if _LONE.search(line) else line
    if repaired == line:
        raise _not_json("not_json")
    return decode(repaired)


def _replace_lone(escape: re.Match[bytes]) -> bytes:
    text = escape[0]
    return b"\\ufffd" if len(text) == len(b"\\ud800") and _LONE.match(text) else text


def _decode_array_or_refuse(line: bytes) -> Batch:
    if line.lstrip()[:1] != b"[":
        _refuse(line)
    try:
        entries = _read_entries(line)
    except (msgspec.DecodeError, RecursionError):
        raise _not_json("not_json") from None
    if not entries:
        raise _invalid("empty_batch", {})
    return Batch(entries)


def _refuse(line: bytes) -> NoReturn:
    """Raise the reason why a JSON text is not a frame, with the id it belongs to."""
    try:
        members = _read_members(line)
    except msgspec.ValidationError:
        raise _invalid("not_an_object", {}) from None
    except (msgspec.DecodeError, RecursionError):
        raise _not_json("not_json") from None
    is_answer = "method" not in members and ("result" in members or "error" in members)
    ident = _find_id(members.get("id"))
    named = {} if ident is None else {"response_id" if is_answer else "request_id": ident}
    raise _invalid(_why(members, has_id=ident is not None), named)


def _find_id(member: Raw | None) -> RequestId | None:
    if member is None:
        return None
    try:
        return _read_id(member)
    except msgspec.ValidationError:
        return None


def _why(members: dict[str, Raw], *, has_id: bool) -> str:
    if bytes(members.get("jsonrpc", NOTHING)) != b'"2.0"':
        return "no_version"
    if "id" in members and not has_id and ("error" not in members or bytes(members["id"]) != b"null"):
        return "bad_id"
    present = [each for each in ("method", "result", "error") if each in members]
    if len(present) != 1:
        return "not_one_kind"
    if "id" not in members and present != ["method"]:
        return "bad_id"
    return f"bad_{present[0]}"


def _not_json(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError("the peer sent a line that is not JSON", jsonrpc=PARSE_ERROR, reason=reason)


def _invalid(reason: str, named: dict[str, RequestId]) -> RemoteProtocolError:
    return RemoteProtocolError(
        "the peer sent JSON that is not a JSON-RPC 2.0 frame", jsonrpc=INVALID_REQUEST, reason=reason, **named
    )
