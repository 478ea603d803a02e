"""Functions that split and join JSON objects without decoding the values.

They never raise for a payload: anything but an object reads as an object without members.
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
    """Return the members of an object; `None` if it is not an object."""
    try:
        return _read_members(value)
    except UNREADABLE:
        return None


def read_entries(value: Raw) -> list[Raw] | None:
    """Return copies of the entries of an array, which do not pin the frame; `None` if it is not an array."""
    try:
        return [each.copy() for each in _read_entries(value)]
    except UNREADABLE:
        return None


def read_text(value: Raw | None) -> str | None:
    """Decode a string; `None` if it is absent or not a string."""
    if value is None:
        return None
    try:
        return _read_text(value)
    except UNREADABLE:
        return None


def is_null(value: Raw) -> bool:
    return len(memoryview(value)) == len(_NULL) and bytes(value) == _NULL


def is_object(value: Raw | None) -> bool:
    """True if a member is an object, checked without decoding it."""
    return value is not None and memoryview(value)[0] == _OPENING_BRACE


def members(value: Raw | None) -> dict[str, Raw]:
    """Return the members of an object; empty for anything else."""
    return {} if value is None else (read_members(value) or {})


def entries(value: Raw | None) -> list[Raw]:
    """Return the entries of a list; empty for anything else."""
    return [] if value is None else (read_entries(value) or [])


def text_of(fields: dict[str, Raw], name: str) -> str | None:
    """Return a member if it is a string."""
    return read_text(fields.get(name))


def named(value: Raw, name: str) -> str | None:
    """Return a member of a raw object if it is a string."""
    return text_of(members(value), name)


def without_nulls(fields: dict[str, Raw]) -> dict[str, Raw]:
    """Return the members that are not null, where null means absent."""
    return {name: value for name, value in fields.items() if not is_null(value)}


# -- small objects, decoded completely -----------------------------------------------------------------------


def as_object(value: Raw) -> dict[str, Any]:
    """Decode a small object, such as capabilities, completely."""
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except UNREADABLE:
        return {}


def child(parent: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return a nested object; empty if it is absent."""
    for name in path:
        found = parent.get(name)
        parent = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return parent


def is_offered(place: dict[str, Any], name: str) -> bool:
    """True if a capability is offered: `true` or an object."""
    return place.get(name) is True or isinstance(place.get(name), dict)
