"""A tool call as a person reads it: mark and title, output, changes as a coloured diff, images that it shows.

Everything is bounded, and says how much more there is. What the agent says is only text here: it cannot steer the
terminal. An image is drawn where the terminal surely can, else one line says what it is; so it is with sounds and
files. Terminals are known by what they put into the environment; inside of a multiplexer none is trusted, because
what it passes on is not known.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import ControlType, Segment
from rich.text import Text

from turnwire.cli.output import printable
from turnwire.client.tool_call import ToolCall
from turnwire.core.translate.tools import sanitized

LONGEST = 100
"""Characters of a title or a plan's entry that are shown."""
OUTPUT_LINES = 12
"""Lines of what a finished tool gave."""
DIFF_LINES = 60
"""Lines of a change; who is asked to allow it is shown more."""
WIDEST = 400
"""Characters of a line."""
MARKS = {"completed": "✓", "failed": "✗", "cancelled": "-"}
OUTPUTS = ("formatted_output", "output", "stdout", "text")
"""By which names agents give what a command wrote, if they show it nowhere else."""


def short(text: str) -> str:
    """A text in one line."""
    line = " ".join(printable(text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def tool_line(call: ToolCall) -> str:
    """How a finished tool call ended. A command that did not end with 0 has failed, whatever the agent calls it."""
    code, signal = call.exit_code, call.signal
    has_failed = bool(code) or signal is not None
    mark = MARKS["failed"] if has_failed and call.status == "completed" else MARKS.get(call.status, "?")
    how = f" · exit {code}" if code else f" · {short(signal)}" if signal else ""
    return f"{mark} {short(call.title or call.tool_call_id)}{how}"


def tool_details(call: ToolCall) -> Text | None:
    """What a finished call shows below its line; none if nothing."""
    parts = [diff_text(call.diff, DIFF_LINES)] if call.diff else []
    for terminal in call.terminals:
        parts += [_dim(bounded(_lines(terminal.output), OUTPUT_LINES, keep_end=True))] if terminal.output else []
    said = call.text or ("" if call.terminals or call.diff else _raw_output(call.raw_output))
    if said.strip():
        parts.append(_dim(bounded(_lines(unfenced(said)), OUTPUT_LINES, keep_end=call.command is not None)))
    return Text("\n").join(parts) if parts else None


def diff_text(diff: str, most: int) -> Text:
    """A unified diff in colour, a line indented by two."""
    lines = [each for each in _lines(diff) if not each.startswith(("diff --git ", "index "))]
    shown = Text()
    for number, line in enumerate(bounded(lines, most)):
        shown.append(("\n" if number else "") + "  " + line, style=_style(line))
    return shown


def _style(line: str) -> str:
    if line.startswith(("+++", "---", "new file", "deleted file", "rename ")):
        return "bold"
    styles = {"+": "green", "-": "red", "@": "cyan", "…": "dim"}
    return styles.get(line[:1], "")


def bounded(lines: Sequence[str], most: int, *, keep_end: bool = False) -> list[str]:
    """At most so many lines, and how many more there are: of what a command wrote the end says most."""
    cut = [each if len(each) <= WIDEST else each[: WIDEST - 1] + "…" for each in lines]
    if len(cut) <= most:
        return cut
    more = f"… {len(cut) - most + 1} more lines"
    return [more, *cut[-most + 1 :]] if keep_end else [*cut[: most - 1], more]


def indented(lines: Sequence[str], style: str = "") -> Text:
    """Lines below another one."""
    return Text("\n".join(f"  {each}" for each in lines), style=style)


def unfenced(text: str) -> str:
    """Text without the code fence that some agents put around all of it."""
    lines = text.strip("\n").split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def _lines(text: str) -> list[str]:
    return [each.rstrip() for each in printable(sanitized(text)).expandtabs(4).strip("\n").split("\n")]


def _dim(lines: Sequence[str]) -> Text:
    return indented(lines, "dim")


def _raw_output(given: Any) -> str:
    if isinstance(given, dict):
        named = cast("dict[str, Any]", given)
        given = next((named[each] for each in OUTPUTS if isinstance(named.get(each), str)), "")
    return given if isinstance(given, str) else ""


KITTY, ITERM = "kitty", "iterm"
PIECE = 4096
"""Characters of base64 in one message of the protocol of kitty."""
LARGEST = 8 * 1024 * 1024
"""Bytes of an image that is drawn."""
PNG = "image/png"


# -- images, sounds and files --------------------------------------------------------------------------------


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
