"""A tool call as a person reads it: its mark and title, its command's output, its changes as a coloured diff.

Everything is bounded, and says how much more there is. What the agent says is only text here: it cannot steer the
terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

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
