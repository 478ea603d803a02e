"""JSON objects taken apart and put together again, without a look at what is passed on.

Never raises for a payload: what is no object reads as one without members.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

from turnwire.core.view.patch import is_null, read_entries, read_members, read_text
from turnwire.wire.jsonrpc import UNREADABLE, raw

__all__ = ["as_object", "child", "entries", "is_offered", "members", "named", "raw", "text_of", "without_nulls"]


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
