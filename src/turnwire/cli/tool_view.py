"""A tool call for people: mark and title, output, changes as a coloured diff.

All output is bounded, and shows how much more there is. The agent's text is only text here: it cannot control the
terminal. One line describes an image, a sound or a file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rich.text import Text

from turnwire.cli.output import printable
from turnwire.client.tool_call import ToolCall
from turnwire.projections.translate.tools import sanitized

LONGEST = 100
"""Maximum characters of a title or a plan's entry."""
OUTPUT_LINES = 12
"""Maximum lines of a finished tool's output."""
DIFF_LINES = 60
"""Maximum lines of a completed change. A change that needs the user's permission is shown whole."""
WIDEST = 400
"""Maximum characters of a line."""
MARKS = {"completed": "✓", "failed": "✗", "cancelled": "-"}
OUTPUTS = ("formatted_output", "output", "stdout", "text")
"""Member names of a command's output in agents that show it nowhere else."""


def short(text: str) -> str:
    """Return a text in one line."""
    line = " ".join(printable(text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def tool_line(call: ToolCall) -> str:
    """Return the line of a finished tool call. A command with a nonzero exit code has failed in any case."""
    code, signal = call.exit_code, call.signal
    has_failed = bool(code) or signal is not None
    mark = MARKS["failed"] if has_failed and call.status == "completed" else MARKS.get(call.status, "?")
    how = f" · exit {code}" if code else f" · {short(signal)}" if signal else ""
    return f"{mark} {short(call.title or call.tool_call_id)}{how}"


def tool_details(call: ToolCall) -> Text | None:
    """Return the details below the line of a finished call, or `None`."""
    parts = [diff_text(call.diff, DIFF_LINES)] if call.diff else []
    for terminal in call.terminals:
        parts += [_dim(bounded(_lines(terminal.output), OUTPUT_LINES, keep_end=True))] if terminal.output else []
    said = call.text or ("" if call.terminals or call.diff else _raw_output(call.raw_output))
    if said.strip():
        parts.append(_dim(bounded(_lines(unfenced(said)), OUTPUT_LINES, keep_end=call.command is not None)))
    return Text("\n").join(parts) if parts else None


def diff_text(diff: str, most: int | None = None) -> Text:
    """Return a unified diff in colour, lines indented by two; all of it without `most`."""
    lines = [each for each in _lines(diff) if not each.startswith(("diff --git ", "index "))]
    shown = Text()
    for number, line in enumerate(lines if most is None else bounded(lines, most)):
        shown.append(("\n" if number else "") + "  " + line, style=_style(line))
    return shown


def _style(line: str) -> str:
    if line.startswith(("+++", "---", "new file", "deleted file", "rename ")):
        return "bold"
    styles = {"+": "green", "-": "red", "@": "cyan", "…": "dim"}
    return styles.get(line[:1], "")


def bounded(lines: Sequence[str], most: int, *, keep_end: bool = False) -> list[str]:
    """Return at most `most` lines, and how many more there are: the end of a command's output is the most
    informative part.
    """
    cut = [each if len(each) <= WIDEST else each[: WIDEST - 1] + "…" for each in lines]
    if len(cut) <= most:
        return cut
    more = f"… {len(cut) - most + 1} more lines"
    return [more, *cut[-most + 1 :]] if keep_end else [*cut[: most - 1], more]


def indented(lines: Sequence[str], style: str = "") -> Text:
    """Return lines indented below another one."""
    return Text("\n".join(f"  {each}" for each in lines), style=style)


def unfenced(text: str) -> str:
    """Return the text without the code fence that some agents put around all of it."""
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


# -- images, sounds and files --------------------------------------------------------------------------------


def block_view(block: Mapping[str, Any]) -> Text:
    """Describe a content block other than text in one line."""
    kind = str(block.get("type", "content"))
    return Text(f"[{', '.join(_said(kind, block, _size(str(block.get('data') or ''))))}]", style="dim")


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
    """Return the size of base64 data in bytes, or `None` if it is invalid."""
    try:
        return len(base64.b64decode(data, validate=True)) if data else None
    except (binascii.Error, ValueError):
        return None
