"""Lines from chunks: newline-delimited JSON as it comes out of a pipe.

Takes chunks of any size, gives whole lines without their ends; how the bytes were cut makes no difference.
Blank lines are skipped. Never looks into a line, never holds more than `max_bytes` of one: a longer line is
dropped to its end and reported once, and the lines after it are unharmed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_CR: Final = 13
_FIRST: Final = b"!"
"""What begins with less may be blank."""
HEAD_BYTES: Final = 256
"""How much of a dropped line is kept, enough to see what kind of message it was."""


class Oversized(NamedTuple):
    """A line that was dropped because it was longer than the limit."""

    size: int
    """Bytes before its line end, or up to where the input ended."""
    head: bytes


class LineReader:
    """Cuts a stream of bytes into lines."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        """The unfinished line, or only its head once it is too long."""
        self._size = 0
        """Bytes of the unfinished line, kept or not."""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """The lines that `chunk` completes."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if not lines:
            self._keep(rest)
            return []
        found: list[bytes | Oversized] = []
        if self._size:
            self._keep(lines[0])
            found += self.end()
            del lines[0]
        limit = self._max_bytes
        if len(chunk) <= limit and _CR not in chunk and min(lines, default=_FIRST) >= _FIRST:
            # Nearly every chunk: no line of it is too long, blank, or ended by more than a line feed.
            found += lines
            lines = []
        for line in lines:
            if len(line) > limit:
                found.append(Oversized(len(line), line[:HEAD_BYTES]))
            elif line and not line.isspace():
                found.append(line[:-1] if line[-1] == _CR else line)
        if rest:
            self._keep(rest)
        return found

    def end(self) -> list[bytes | Oversized]:
        """What was begun and not finished by a line end: at most one line."""
        line, size = bytes(self._begun), self._size
        self._begun, self._size = bytearray(), 0
        if size > self._max_bytes:
            return [Oversized(size, line[:HEAD_BYTES])]
        if not line or line.isspace():
            return []
        return [line.removesuffix(b"\r")]

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._max_bytes:
            self._begun += part
        else:
            self._begun += part[:HEAD_BYTES]
            del self._begun[HEAD_BYTES:]
