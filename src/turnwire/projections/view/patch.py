"""The rules by which a field of an update changes a stored value.

They never raise for a payload: an optional field of a wrong JSON type reads as omitted, because one bad field must
not invalidate the others.

A field has three states: omitted retains the stored value, a value replaces it, and `null` clears it in ACP v2 but
means omitted in v1. `_meta` is patched by its top-level keys.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from turnwire.session.json_members import is_null, read_entries, read_members, read_text


class Patch:
    """The members of one update, and the meaning of `null` in them."""

    __slots__ = ("_null_clears", "members")

    def __init__(self, members: dict[str, Raw], *, null_clears: bool) -> None:
        self.members = members
        self._null_clears = null_clears

    def text(self, name: str, current: str | None) -> str | None:
        """Return a string that can be cleared."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return None if self._null_clears else current
        text = read_text(member)
        return current if text is None else text

    def word(self, name: str, current: str, default: str) -> str:
        """Return a string that has a default when it is cleared."""
        text = self.text(name, current)
        return default if text is None else text

    def raw(self, name: str, current: Raw | UnsetType) -> Raw | UnsetType:
        """Return any value, unchanged."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return UNSET if self._null_clears else current
        return member.copy()

    def entries(self, name: str, current: list[Raw]) -> list[Raw]:
        """Return a list, replaced as a whole; the same object if it is unchanged."""
        member = self.members.get(name)
        if member is None:
            return current
        if is_null(member):
            return [] if self._null_clears else current
        entries = read_entries(member)
        return current if entries is None else entries

    def meta(self, current: dict[str, Raw]) -> dict[str, Raw]:
        """Patch `_meta`: an absent key stays, a null key is removed, another value replaces that key."""
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
