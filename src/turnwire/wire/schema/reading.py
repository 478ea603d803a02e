"""Tolerant reading of raw JSON into typed views, by ACP's rules for readers.

`read` returns a struct of this package, or raises `RemoteProtocolError` with the code for invalid params; the error
names the field and none of its values. Unknown fields are accepted, unknown values of an open union become
`Unknown`, and a malformed optional field reads as its default.

The strict decoder of msgspec runs first and is right for nearly every message. Only messages that it rejects are
read again here, member by member. `Strict`, `Loose` and `Whole` state how a field treats a malformed value; without
one, a required field fails the message, an optional one reads as its default, and bad items of a list are dropped.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import FieldInfo

from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import INVALID_PARAMS, Unknown

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Wire(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every ACP object."""

    meta: Raw | UnsetType = field(name="_meta", default=UNSET)


_STRICT: Final = "strict"
_LOOSE: Final = "loose"
_WHOLE: Final = "whole"

Strict: TypeAlias = Annotated[T, _STRICT]
"""A malformed value or item fails the message; null reads as the default or an empty list."""
Loose: TypeAlias = Annotated[T, _LOOSE]
"""A required list whose malformed value reads as an empty list."""
Whole: TypeAlias = Annotated[T, _WHOLE]
"""An optional list that reads as the default if one item is bad."""

if TYPE_CHECKING:
    Open: TypeAlias = T | Unknown
else:

    class Open:
        """A union that may hold unknown values. msgspec sees the known part; `read` adds `Unknown`."""

        def __class_getitem__(cls, known: Any) -> Any:
            return known


_ALIASES: Final = {"stopReason": "stop_reason", "currentModeId": "modeId"}
"""Alternative spellings, accepted if the published one is missing."""
_TAG_ALIASES: Final = {"state_change": "state_update", "_turn_complete": "turn_complete"}
"""Accepted alternative names of update kinds."""

_NULL: Final = b"null"
_PLACED: Final = 2
"""Number of arguments of errors raised here: the path of the field, and the problem."""
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_items = msgspec.json.Decoder(list[Raw]).decode
_read_tag = msgspec.json.Decoder(str).decode


def read(raw: Raw, kind: type[T], *, name: str | None = None, seek_aliases: bool = False) -> T:
    """Read `raw` as a `kind`. Absent params and a null result read as an empty object.

    Error messages use `name`, or the struct's own name. Alternative spellings of required fields are always
    accepted; `seek_aliases` accepts those of optional fields as well.
    """
    if not raw:
        raw = Raw(b"{}")
    if not seek_aliases:
        try:
            return cast("T", _decoder(kind).decode(raw))
        except (msgspec.DecodeError, RecursionError):
            pass
    try:
        return cast("T", _read(kind, raw))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(name or getattr(kind, "__name__", "value"), error) from None


def _malformed(name: str, error: Exception) -> RemoteProtocolError:
    where = f": `{error.args[0]}` {error.args[1]}" if len(error.args) == _PLACED else ""
    return RemoteProtocolError(f"malformed {name}{where}", jsonrpc=INVALID_PARAMS, reason="malformed")


def _missing(name: str) -> msgspec.ValidationError:
    return msgspec.ValidationError(name, "is missing")


def _inside(name: str, error: msgspec.ValidationError) -> msgspec.ValidationError:
    """Return the error of a member with the path extended by its object."""
    if len(error.args) == _PLACED:
        return msgspec.ValidationError(f"{name}.{error.args[0]}", error.args[1])
    # The message of msgspec can contain a value.
    return msgspec.ValidationError(name, "is not as documented")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@cache
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _read(kind: Any, raw: Raw, *, keep_all: bool = False) -> Any:
    """Read by the shape of the type. Raises `msgspec.ValidationError` if no rule tolerates the value."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *words = get_args(kind)
        return _read(inner, raw, keep_all=_STRICT in words or _WHOLE in words)
    if origin in (Union, UnionType):
        return _read_union(get_args(kind), raw, keep_all=keep_all)
    if origin is list:
        return _read_list(get_args(kind)[0], raw, keep_all=keep_all)
    if _is_struct(kind):
        return _read_tagged((kind,), raw) if kind.__struct_config__.tag else _read_struct(kind, raw)
    return _decoder(kind).decode(raw)


def _is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _read_union(choices: tuple[Any, ...], raw: Raw, *, keep_all: bool) -> Any:
    if bytes(raw) == _NULL and type(None) in choices:
        return None
    known = tuple(each for each in choices if each not in (type(None), UnsetType))
    if len(known) == 1:
        return _read(known[0], raw, keep_all=keep_all)
    if all(_is_struct(each) for each in known):
        return _read_tagged(known, raw)
    return _decoder(Union[known]).decode(raw)  # noqa: UP007 the choices are only known here


def _read_list(item: Any, raw: Raw, *, keep_all: bool) -> list[Any]:
    found: list[Any] = []
    for each in _read_items(raw):
        try:
            found.append(_read(item, each))
        except msgspec.ValidationError:
            if keep_all:
                raise
    return found


def _read_tagged(choices: tuple[type[Struct], ...], raw: Raw) -> Any:
    """Return the struct named by the tag, or `Unknown`. A lone struct may omit its tag."""
    members = _read_members(raw)
    config = choices[0].__struct_config__
    assert config.tag_field is not None, "the structs of a union are tagged"
    if len(choices) == 1 and config.tag_field not in members:
        return _read_struct(choices[0], raw)
    tag = _read_tag(members.get(config.tag_field, Raw(_NULL)))
    named = _TAG_ALIASES.get(tag, tag)
    for each in choices:
        if each.__struct_config__.tag == named:
            return _read_struct(each, raw)
    return Unknown(tag, raw)


def _read_struct(kind: type[Struct], raw: Raw) -> Struct:
    known = _fields(kind)
    if bytes(raw) == _NULL and not any(each.required for each in known):
        return kind()
    members = _read_members(raw)
    values: dict[str, Any] = {}
    for each in known:
        member = members.get(each.encode_name) or members.get(_ALIASES.get(each.encode_name, ""))
        if member is not None:
            _read_field(each, member, values)
        elif each.required:
            raise _missing(each.encode_name)
    return kind(**values)


def _read_field(each: FieldInfo, member: Raw, values: dict[str, Any]) -> None:
    """Put the value into `values`, or leave it out where the default is allowed."""
    words = get_args(each.type)[1:] if get_origin(each.type) is Annotated else ()
    try:
        values[each.name] = _read(each.type, member)
    except msgspec.ValidationError as error:
        is_null = bytes(member) == _NULL
        if each.required and (_LOOSE in words or (is_null and _STRICT in words)):
            values[each.name] = []
        elif each.required or (_STRICT in words and not is_null):
            raise _inside(each.encode_name, error) from None
