"""Markdown that arrives in pieces: which of its blocks are finished, and how one is drawn.

A block is finished when another one follows it, so a finished block never changes. Looking costs a bounded multiple
of the text, however small the pieces are. A block that grows too long is cut: the rest of a code block stays code.
"""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

OFTEN = 2048
"""Up to this many characters an unfinished block is looked at with every line, beyond it when it has grown by an
eighth."""
LONGEST = 65536
"""Characters of a block."""
DRAWN = 8192
"""Characters at the end of an unfinished block that are drawn while it grows."""


class MarkdownStream:
    """Text that grows, and its blocks."""

    def __init__(self) -> None:
        self.rest = ""
        """The block that is not finished."""
        self._next_look = 0

    def feed(self, text: str) -> list[str]:
        """More text; gives the blocks that are finished by it."""
        self.rest += text
        if "\n" not in text or len(self.rest) < self._next_look:
            return []
        whole = self.rest[: self.rest.rindex("\n") + 1]
        tokens = [each for each in Markdown(whole).parsed if each.level == 0 and each.map]
        starts = sorted({each.map[0] for each in tokens if each.map and each.nesting >= 0})
        lines = whole.split("\n")
        blocks = ["\n".join(lines[start:end]) for start, end in pairwise(starts)]
        if blocks:
            self.rest = "\n".join(lines[starts[-1] :]) + self.rest[len(whole) :]
        elif len(whole) > LONGEST:
            blocks = [whole]
            again = f"{lines[0]}\n" if tokens and tokens[-1].type == "fence" else ""
            self.rest = again + self.rest[len(whole) :]
        self._next_look = 0 if len(self.rest) < OFTEN else len(self.rest) * 9 // 8
        return blocks

    def close(self) -> str:
        """What is left, as a block."""
        rest, self.rest, self._next_look = self.rest, "", 0
        return rest if rest.strip() else ""

    @property
    def growing(self) -> str:
        """What is drawn of the unfinished block: all of it, or the end of a long one."""
        rest = self.rest
        if len(rest) <= DRAWN:
            return rest
        opening, end = rest.split("\n", 1)[0], rest[-DRAWN:]
        is_code = opening.lstrip().startswith(("```", "~~~"))
        return f"{opening}\n{end.split(chr(10), 1)[-1]}" if is_code else end


def drawn(source: str, rows: int | None = None) -> RenderableType:
    """A block of Markdown, or the last rows of one. A link shows where it leads, instead of hiding it."""
    return Lines(Markdown(source, code_theme="ansi_dark", hyperlinks=False), rows)


class Lines:
    """Something as high as it is, or its last rows; no blanks fill it up."""

    def __init__(self, block: RenderableType, rows: int | None = None) -> None:
        self._block = block
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._block, options.update(height=None), pad=False)
        kept = [_trimmed(line) for line in lines]
        while kept and not kept[0]:
            del kept[0]
        while kept and not kept[-1]:
            del kept[-1]
        for line in kept if self._rows is None else kept[-self._rows :]:
            yield from line
            yield Segment.line()


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" ") and not (kept[-1].style and kept[-1].style.bgcolor):
        kept.pop()
    if kept and not (kept[-1].style and kept[-1].style.bgcolor):
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept
