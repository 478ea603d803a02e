"""JSON objects taken apart and put together again, without a look at what is passed on.

Never raises for a payload: what is no object reads as one without members.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from turnwire.wire.jsonrpc import UNREADABLE, raw

__all__ = [
    "as_object",
    "child",
    "entries",
    "is_null",
    "is_object",
    "is_offered",
    "members",
    "named",
    "raw",
    "read_entries",
    "read_members",
    "read_text",
    "text_of",
    "without_nulls",
]

_NULL: Final = b"null"
_OPENING_BRACE: Final = ord("{")
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_entries = msgspec.json.Decoder(list[Raw]).decode
_read_text = msgspec.json.Decoder(str).decode


def read_members(value: Raw) -> dict[str, Raw] | None:
    """The members of an object, none if it is no object."""
    try:
        return _read_members(value)
    except UNREADABLE:
        return None


def read_entries(value: Raw) -> list[Raw] | None:
    """The entries of an array, none if it is no array. They no longer hold the frame that they came in."""
    try:
        return [each.copy() for each in _read_entries(value)]
    except UNREADABLE:
        return None


def read_text(value: Raw | None) -> str | None:
    """A string, none if it is absent or none."""
    if value is None:
        return None
    try:
        return _read_text(value)
    except UNREADABLE:
        return None


def is_null(value: Raw) -> bool:
    return len(memoryview(value)) == len(_NULL) and bytes(value) == _NULL


def is_object(value: Raw | None) -> bool:
    """Whether a member is an object, without reading it."""
    return value is not None and memoryview(value)[0] == _OPENING_BRACE


def members(value: Raw | None) -> dict[str, Raw]:
    """The members of an object; none for anything else."""
    return {} if value is None else (read_members(value) or {})


def entries(value: Raw | None) -> list[Raw]:
    """The entries of a list; none for anything else."""
    return [] if value is None else (read_entries(value) or [])


def text_of(fields: dict[str, Raw], name: str) -> str | None:
    """A member that is a string."""
    return read_text(fields.get(name))


def named(value: Raw, name: str) -> str | None:
    """The same, of a raw object."""
    return text_of(members(value), name)


def without_nulls(fields: dict[str, Raw]) -> dict[str, Raw]:
    """The members that say something, where null says nothing."""
    return {name: value for name, value in fields.items() if not is_null(value)}


# -- small objects, read as a whole --------------------------------------------------------------------------


def as_object(value: Raw) -> dict[str, Any]:
    """All of a small object, such as capabilities."""
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except UNREADABLE:
        return {}


def child(parent: dict[str, Any], *path: str) -> dict[str, Any]:
    """An object inside an object, empty if it is not there."""
    for name in path:
        found = parent.get(name)
        parent = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return parent


def is_offered(place: dict[str, Any], name: str) -> bool:
    """Whether a capability is there: `true` or an object. Anything else offers nothing."""
    return place.get(name) is True or isinstance(place.get(name), dict)
