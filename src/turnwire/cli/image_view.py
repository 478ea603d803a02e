"""Images, sounds and files that an agent shows: drawn where the terminal surely can, else one line that says what.

Terminals are known by what they put into the environment. Inside of a multiplexer none is trusted, because what it
passes on is not known.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import ControlType, Segment
from rich.text import Text

from turnwire.cli.tool_view import short

KITTY, ITERM = "kitty", "iterm"
PIECE = 4096
"""Characters of base64 in one message of the protocol of kitty."""
LARGEST = 8 * 1024 * 1024
"""Bytes of an image that is drawn."""
PNG = "image/png"


def graphics(environment: Mapping[str, str]) -> str | None:
    """By which protocol the terminal shows images; none if it is not known to."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("TMUX") or term.startswith(("screen", "tmux")):
        return None
    if environment.get("KITTY_WINDOW_ID") or term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return KITTY
    return ITERM if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2" else None


class InlineImage:
    """An image as one of the protocols has it."""

    def __init__(self, protocol: str, data: str) -> None:
        self._protocol = protocol
        self._data = data

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sequence = "".join(_kitty(self._data) if self._protocol == KITTY else _iterm(self._data))
        # A control segment is passed on as it is, and has no width.
        yield Segment(sequence, None, [(ControlType.BELL,)])
        yield Segment.line()


def block_view(block: Mapping[str, Any], *, draws: bool) -> RenderableType:
    """A content block that is no text. `draws`: it goes to a terminal."""
    kind, data = str(block.get("type", "content")), str(block.get("data") or "")
    protocol = graphics(os.environ) if draws else None
    size = _size(data)
    can_draw = protocol == ITERM or (protocol == KITTY and block.get("mimeType") == PNG)
    if kind == "image" and protocol and can_draw and size and size <= LARGEST:
        return InlineImage(protocol, data)
    return Text(f"[{', '.join(_said(kind, block, size))}]", style="dim")


def _said(kind: str, block: Mapping[str, Any], size: int | None) -> Iterator[str]:
    inner: object = block.get("resource")
    if isinstance(inner, dict):
        block = {str(name): value for name, value in inner.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    yield short(kind.replace("_", " "))
    for name in ("name", "mimeType"):
        if block.get(name):
            yield short(str(block[name]))
    if size:
        yield f"{size} bytes"
    if block.get("uri"):
        yield short(str(block["uri"]))


def _size(data: str) -> int | None:
    """Bytes of base64; none if it is not that."""
    try:
        return len(base64.b64decode(data, validate=True)) if data else None
    except (binascii.Error, ValueError):
        return None


def _kitty(data: str) -> Iterator[str]:
    for start in range(0, len(data), PIECE):
        first = "a=T,f=100," if start == 0 else ""
        more = int(start + PIECE < len(data))
        yield f"\x1b_G{first}q=2,m={more};{data[start : start + PIECE]}\x1b\\"


def _iterm(data: str) -> Iterator[str]:
    yield f"\x1b]1337;File=inline=1;preserveAspectRatio=1:{data}\x07"
