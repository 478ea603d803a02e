"""Reading an update field by field, and the rules by which a field changes a stored value.

Never raises for a payload: an optional field of a wrong JSON type reads as omitted, because one bad field must not
cost the others.

Three states, per field: omitted leaves the stored value, a value replaces it, and `null` clears it in ACP v2
but means omitted in v1. `_meta` is patched by its top-level keys.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from turnwire.wire.jsonrpc import UNREADABLE

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


class Patch:
    """The members of one update, and what `null` means in them."""

    __slots__ = ("_null_clears", "members")

    def __init__(self, members: dict[str, Raw], *, null_clears: bool) -> None:
        self.members = members
        self._null_clears = null_clears

    def text(self, name: str, current: str | None) -> str | None:
        """A string that can be cleared."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return None if self._null_clears else current
        text = read_text(member)
        return current if text is None else text

    def word(self, name: str, current: str, default: str) -> str:
        """A string that has a default when it is cleared."""
        text = self.text(name, current)
        return default if text is None else text

    def raw(self, name: str, current: Raw | UnsetType) -> Raw | UnsetType:
        """Any value, kept as it is."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return UNSET if self._null_clears else current
        return member.copy()

    def entries(self, name: str, current: list[Raw]) -> list[Raw]:
        """A list, replaced as a whole; the same object if it is unchanged."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return [] if self._null_clears else current
        entries = read_entries(member)
        return current if entries is None else entries

    def meta(self, current: dict[str, Raw]) -> dict[str, Raw]:
        """`_meta`: an absent key stays, a null key goes, another value replaces that key."""
        member = self.members.get("_meta")
        if member is None:
            return current
        if is_null(member):
            return {} if self._null_clears else current
        keys = read_members(member)
        if keys is None:
            return current
        merged = {**current, **{key: value.copy() for key, value in keys.items()}}
        return {key: value for key, value in merged.items() if not is_null(value)}
