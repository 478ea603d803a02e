"""A terminal as a user sees it: the far end has a program, the near end has a screen that can be read.

It supports the escapes that the line editor and the screen use: moving, erasing, scrolling. Colours and modes are
ignored.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cli.rig import PROGRAM, environment

from turnwire_testing.patience import WAIT_S

ENTER, TAB, ESCAPE, UP, DOWN = "\r", "\t", "\x1b", "\x1b[A", "\x1b[B"
CTRL_C, CTRL_D, CTRL_J, ALT_ENTER = "\x03", "\x04", "\n", "\x1b\r"

_PART = re.compile(
    r"\x1b\[(?P<args>[?>=]?[\d;]*)(?P<act>[A-Za-z@])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b_[^\x1b]*\x1b\\|\x1b[=>78()][0B]?"
    r"|[\r\n\b\x07]|[^\x1b\r\n\b\x07]"
)


class Shown:
    """The screen of a terminal of this size, and the lines that have scrolled off."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.above: list[str] = []
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        text, at = self._rest + text, 0
        while at < len(text):
            part = _PART.match(text, at)
            if part is None:
                break
            self._do(part)
            at = part.end()
        # An escape that is not all there yet.
        self._rest = text[at:]

    @property
    def lines(self) -> list[str]:
        """The screen, without blanks at the ends."""
        return [*map(_line, self._cells)]

    @property
    def text(self) -> str:
        """Return all text, including lines that have scrolled off."""
        return "\n".join([*self.above, *self.lines]).rstrip()

    def _do(self, part: re.Match[str]) -> None:
        what = part[0]
        if part["act"] is not None:
            self._escape(part["act"], part["args"])
        elif what == "\r":
            self._column = 0
        elif what == "\n":
            self._down()
        elif what == "\b":
            self._column = max(0, self._column - 1)
        elif what[0] not in "\x1b\x07":
            if self._column >= self.columns:
                self._column = 0
                self._down()
            self._cells[self._row][self._column] = what
            self._column += 1

    def _down(self) -> None:
        if self._row + 1 < self.rows:
            self._row += 1
            return
        self.above.append(_line(self._cells.pop(0)))
        self._cells.append([" "] * self.columns)

    def _escape(self, act: str, args: str) -> None:
        if args[:1] in ("?", ">", "="):
            return
        numbers = [int(each or 0) for each in args.split(";")]
        count = max(1, numbers[0])
        match act:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self.rows - 1, self._row + count)
            case "C":
                self._column = min(self.columns - 1, self._column + count)
            case "D":
                self._column = max(0, min(self._column, self.columns - 1) - count)
            case "G":
                self._column = count - 1
            case "H":
                self._row, self._column = count - 1, max(1, [*numbers, 1][1]) - 1
            case "J":
                self._erase(numbers[0])
            case "K":
                self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
            case _:
                pass

    def _erase(self, what: int) -> None:
        first = 0 if what else self._row
        if not what:
            self._cells[self._row][self._column :] = [" "] * max(0, self.columns - self._column)
            first += 1
        for row in range(first, self.rows):
            self._cells[row] = [" "] * self.columns


def _line(cells: list[str]) -> str:
    return "".join(cells).rstrip()


def seen(written: str, rows: int, columns: int) -> list[str]:
    """Return the lines on a terminal of this size after all of this was written, including those above it."""
    shown = Shown(rows, columns)
    shown.feed(written)
    return shown.text.split("\n")


class Terminal:
    """A program on a terminal, and its user."""

    def __init__(self, near: int, process: subprocess.Popen[bytes], shown: Shown) -> None:
        self.near = near
        self.process = process
        self.shown = shown
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, *keys: str) -> None:
        for each in keys:
            os.write(self.near, each.encode())

    def until(self, is_so: Callable[[Shown], bool] | str, why: str = "") -> None:
        """Read until this is shown, or fail with the current screen."""
        ends = time.monotonic() + WAIT_S

        def condition(shown: Shown) -> bool:
            return is_so in shown.text.replace("\n", " ") if isinstance(is_so, str) else is_so(shown)

        while not condition(self.shown):
            left = ends - time.monotonic()
            more = self._read(left) if left > 0 else None
            assert more is not None, f"not shown within {WAIT_S} s: {why or is_so}\n{self.shown.text}"
            assert more or condition(self.shown), f"it ended, and did not show: {why or is_so}\n{self.shown.text}"

    def gone(self, text: str) -> None:
        """Read until the screen does not show this any more, and the line that is typed is there again."""

        def is_gone(shown: Shown) -> bool:
            lines = [each for each in shown.lines if each]
            return all(text not in each for each in lines) and lines != [] and lines[-1].startswith(">")

        self.until(is_gone, f"the end of {text!r}")

    def finish(self) -> int:
        """Wait for its end; return the exit code."""
        while self._read(WAIT_S):
            pass
        assert "Traceback" not in self.shown.text, self.shown.text
        return self.process.wait(WAIT_S)

    def _read(self, left_s: float) -> str | None:
        """Return the next output; empty at the end, None on a timeout."""
        if not select.select([self.near], [], [], left_s)[0]:
            return None
        try:
            text = self._decoder.decode(os.read(self.near, 65536))
        except OSError:
            # No process has the far end open any more.
            return ""
        self.raw += text
        self.shown.feed(text)
        return text or " "


@contextmanager
def on_screen(
    home: Path,
    *words: str,
    rows: int = 40,
    columns: int = 100,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Generator[Terminal]:
    """Run a command of ours on a terminal of this size."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    told = environment(home, **(env or {})) | {"TERM": "xterm-256color"}
    with subprocess.Popen(
        [*program, *words], cwd=home, env=told, stdin=far, stdout=far, stderr=far, start_new_session=True
    ) as process:
        os.close(far)
        try:
            yield Terminal(near, process, Shown(rows, columns))
        finally:
            process.kill()
            os.close(near)
