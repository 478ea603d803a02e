"""A JSON value that this version of turnwire does not know, kept as it came.

Takes and gives raw JSON; never decodes it. Typed views hold one wherever ACP leaves a union open, and writing
the view again writes the same bytes.
"""

from __future__ import annotations

from msgspec import Raw


class Unknown:
    """A value of an open union whose tag is not known."""

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
