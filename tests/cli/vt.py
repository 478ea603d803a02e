"""As much of a terminal as the command line uses: what stands on it in the end, what scrolled away included."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b_.*?\x1b\\|\x1b\].*?(?:\x07|\x1b\\)|\r|\n|[^\x1b\r\n]", re.DOTALL
)


class Vt:
    """Rows of cells. What is above the screen cannot be changed any more, as on a real terminal."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0

    def feed(self, text: str) -> Vt:
        for token in _TOKEN.finditer(text):
            arguments, command = token.group(1), token.group(2)
            if command is not None:
                self._control(arguments, command)
            elif token.group() == "\r":
                self.column = 0
            elif token.group() == "\n":
                self._down()
            elif len(token.group()) == 1:
                self._put(token.group())
        return self

    @property
    def lines(self) -> list[str]:
        """All lines, without blanks at their ends."""
        return ["".join(each).rstrip() for each in self.rows]

    def _put(self, sign: str) -> None:
        if self.column >= self.width:
            self.column = 0
            self._down()
        row = self.rows[self.row]
        row.extend(" " * (self.column + 1 - len(row)))
        row[self.column] = sign
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _control(self, arguments: str, command: str) -> None:
        count = int(arguments) if arguments.isdecimal() else 1
        if command == "A":
            top = max(0, len(self.rows) - self.height)
            self.row = max(top, self.row - count)
        elif command == "K" and arguments == "2":
            self.rows[self.row] = []
        else:
            assert command in "mhl", f"what is {arguments}{command}?"
