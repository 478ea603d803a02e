"""Draw docs/images/terminal.svg: a real session at a real terminal, with a daemon and the built-in agent.

The picture is shown in README.md. Run it again when the output of the commands has changed: `python -m
scripts.draw_terminal`. It is not among the checks: each run has other ids.
"""

from __future__ import annotations

import io
import re
import shlex
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from tests.cli.rig import served
from tests.cli.shown import Shown, on_screen

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
ROWS, COLUMNS = 60, 92
TYPED = ((("prompt", "/demo edit"), "1"), (("sessions",), ""))
"""The typed commands, each with the answer to its question."""
PROMPT = "\x1b[32m~/project\x1b[0m $ \x1b[1mturnwire {}\x1b[0m\n"
ALIKE = re.compile(r"((?:\x1b\[[1-9][\d;]*m)+)([^\x1b]+)\x1b\[0m\1(?!\x1b)")
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Coloured(Shown):
    """A screen whose characters store their colours."""

    def __init__(self) -> None:
        super().__init__(ROWS, COLUMNS)
        self._drawn = ""

    def _do(self, part: re.Match[str]) -> None:
        super()._do(part)
        if part["act"] == "m":
            self._drawn = "" if part["args"] in ("", "0") else self._drawn + part[0]
        elif part[0][0] not in "\x1b\r\n\b\x07" and self._drawn:
            self._cells[self._row][self._column - 1] = f"{self._drawn}{part[0]}\x1b[0m"


def shown(home: Path, words: tuple[str, ...], answer: str) -> str:
    """Return the terminal's screen after the command has ended."""
    with on_screen(home, *words, rows=ROWS, columns=COLUMNS) as terminal:
        terminal.shown = Coloured()
        if answer:
            terminal.until(lambda screen: "answer " in re.sub(r"\x1b\[[\d;]*m", "", screen.text))
            terminal.type(answer, "\n")
        terminal.finish()
        # Adjacent characters with the same style are one text, in which a word can be found.
        text, found = terminal.shown.text.rstrip(), 1
        while found:
            text, found = ALIKE.subn(r"\1\2", text)
        return PROMPT.format(shlex.join(words)) + text + "\n"


def draw(text: str) -> str:
    """Return the picture, with the viewer's fonts: none is downloaded."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="turnwire", theme=MONOKAI, unique_id="terminal")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: (?:Fira Code|arial)[^;]*;", f"font-family: {FONT};", svg)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with served(home, builtin=True):
            text = "".join(shown(home, words, answer) for words, answer in TYPED)
        PICTURE.write_text(draw(text.replace(name, "~/project")), encoding="utf-8")


if __name__ == "__main__":
    main()
