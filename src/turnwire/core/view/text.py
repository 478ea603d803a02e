"""Text that arrives in small pieces: adjacent plain pieces become one block, at constant cost per piece.

Takes lists of content blocks and text to add at their end; gives blocks as raw JSON. A block is plain if it
has a type and a text and nothing else, so that joining two loses nothing. Never joins any other block.

While text grows it is kept in a buffer beside its list and is not in the list. `close` puts it there; the
next piece takes it out again. So whoever reads a list closes it first, and a list that was closed, stored
and restored goes on exactly like one that never was.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from turnwire.wire.jsonrpc import UNREADABLE


class PlainText(Struct, frozen=True, forbid_unknown_fields=True):
    """A content block of nothing but text."""

    type: Literal["text"]
    text: str


class _AnyText(Struct, frozen=True):
    """A content block with text, whatever else it has."""

    type: Literal["text"]
    text: str


_read_plain = msgspec.json.Decoder(PlainText).decode
_read_any = msgspec.json.Decoder(_AnyText).decode
_write = msgspec.json.Encoder().encode


def read_plain(block: Raw) -> str | None:
    """The text of a plain block, none if the block is anything else."""
    try:
        return _read_plain(block).text
    except UNREADABLE:
        return None


def join_text(blocks: list[Raw]) -> str:
    """The text of all text blocks."""
    return "".join(map(_text_of, blocks))


def _text_of(block: Raw) -> str:
    try:
        return _read_any(block).text
    except UNREADABLE:
        return ""


class GrowingText:
    """The text at the end of lists of blocks that is still growing."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        # By identity of the list: an entry is removed before its list is let go.
        self._open: dict[int, tuple[list[Raw], bytearray]] = {}

    def grow(self, blocks: list[Raw]) -> bytearray:
        """The buffer, in UTF-8, to which text at the end of `blocks` is added."""
        known = self._open.get(id(blocks))
        if known is not None:
            return known[1]
        buffer = bytearray(_take_plain(blocks))
        self._open[id(blocks)] = blocks, buffer
        return buffer

    def append(self, blocks: list[Raw], block: Raw) -> None:
        """One more block, joined with the text before it if both are plain."""
        text = read_plain(block)
        if text is None:
            self.close(blocks)
            blocks.append(block.copy())
        else:
            self.grow(blocks).extend(text.encode())

    def close(self, blocks: list[Raw]) -> None:
        """Put the growing text of one list into it."""
        known = self._open.pop(id(blocks), None)
        if known is not None:
            blocks.append(_block(known[1]))

    def close_all(self) -> None:
        """Put all growing text into its lists."""
        while self._open:
            _, (blocks, buffer) = self._open.popitem()
            blocks.append(_block(buffer))

    def forget(self, blocks: list[Raw]) -> None:
        """Drop the growing text of a list that is about to be replaced."""
        self._open.pop(id(blocks), None)


def _take_plain(blocks: list[Raw]) -> bytes:
    text = read_plain(blocks[-1]) if blocks else None
    if text is None:
        return b""
    blocks.pop()
    return text.encode()


def _block(buffer: bytearray) -> Raw:
    text = buffer.decode()
    # Three copies of a long text at once are too many; the buffer is not needed any more.
    buffer.clear()
    return Raw(_write(PlainText("text", text)))
