"""Newline-delimited JSON: whole lines from the byte blocks of a pipe.

The result does not depend on how the bytes were cut into blocks. Blank lines are skipped. The content of a line is
not inspected. At most `max_bytes` of a line are held: a longer line is dropped and reported once, and the lines
after it are unaffected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_CR: Final = 13
_FIRST: Final = b"!"
"""A line that starts with a smaller byte may be blank."""
HEAD_BYTES: Final = 256
"""Bytes stored of a dropped line, enough to recognise the kind of message."""


class Oversized(NamedTuple):
    """A line that was dropped because it exceeded the limit."""

    size: int
    """Bytes before the line end or the end of the input."""
    head: bytes


class LineReader:
    """Splits a stream of bytes into lines."""

    def __init__(self, max_bytes: int, *, is_inside_dropped: bool = False) -> None:
        """`is_inside_dropped`: the stream begins inside a line that is too long."""
        self._max_bytes = max_bytes
        self._begun = bytearray()
        """The unfinished line, or its head once it is too long."""
        self._size = max_bytes + 1 if is_inside_dropped else 0
        """Size of the unfinished line, stored or not."""

    @property
    def unfinished_bytes(self) -> int:
        """The number of bytes after the last whole line."""
        return self._size

    @property
    def is_dropping(self) -> bool:
        """True if the unfinished line is too long already."""
        return self._size > self._max_bytes

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """Return the lines that `chunk` completes."""
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
            # The usual case: no line is too long, blank, or ends with CR LF.
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
        """Return the unfinished line, if any."""
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
