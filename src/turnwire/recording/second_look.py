"""The redaction of a whole file: line by line while it is written, and once more when it is complete.

A line is redacted before it is written, so a secret that stands whole in one line is never on the disk. What nobody
can know by then is found when the file is complete: a secret that was spelt in pieces over several lines, and one
that was told apart only by a later line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryFile
from typing import Any

import msgspec

from turnwire.recording.pieces import Pieces, piece_of
from turnwire.recording.redaction import Redactor
from turnwire.wire.jsonrpc import UNREADABLE

_HINTS = (b"_chunk", b"session/prompt")
"""One of these is in every line that the pieces are about."""


class SecondLook:
    """Redacts the lines of one file."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self._pieces = Pieces(redactor.spans)

    def line(self, number: int, line: bytes) -> bytes:
        """A line without its end, as it may be written. `number` is how it is called when the file is complete."""
        if self.redactor.rules:
            _take(self._pieces, number, line)
        return self.redactor.line(line)

    @property
    def is_needed(self) -> bool:
        """Whether the complete file may have to be changed."""
        return bool(self._pieces.changed() or self.redactor.learned)

    def again(self, lines: Callable[[], Iterable[tuple[int, bytes]]]) -> Iterator[bytes]:
        """The lines of the complete file, which are read twice, as they may be given away."""
        changed = self._pieces.changed()
        # A secret that was told apart late may be spelt in pieces that had been settled by then.
        later = Pieces(self.redactor.spans)
        for number, line in lines():
            _take(later, number, _with_piece(line, changed.get(number)))
        changed |= later.changed()
        for number, line in lines():
            yield self.redactor.line(_with_piece(line, changed.get(number)))


class Spool:
    """Lines that come in chunks, redacted; on the disk until they are complete."""

    def __init__(self, redactor: Redactor) -> None:
        self._look = SecondLook(redactor)
        # Has no name, so that nothing is left of it whatever happens.
        self._file = TemporaryFile()  # noqa: SIM115  # closed by whoever closes this
        self._begun = b""
        self._count = 0

    def write(self, chunk: bytes) -> int:
        """Add to it; every line of the whole ends."""
        *whole, self._begun = (self._begun + chunk).split(b"\n")
        for each in whole:
            self._count += 1
            self._file.write(self._look.line(self._count, each) + b"\n")
        return len(chunk)

    def lines(self) -> Iterator[bytes]:
        """All of it, as it may be given away."""
        for each in self._look.again(self._written):
            yield each + b"\n"

    def _written(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            yield number, line.rstrip(b"\n")

    def close(self) -> None:
        self._file.close()


def _take(pieces: Pieces, number: int, line: bytes) -> None:
    if any(each in line for each in _HINTS):
        message = _decoded(line)
        if message is not None:
            pieces.take(number, message)


def _with_piece(line: bytes, text: str | None) -> bytes:
    message = None if text is None else _decoded(line)
    piece = piece_of(message)
    if piece is None or piece.text == text:
        return line
    piece.holder[piece.name] = text
    return msgspec.json.encode(message)


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except UNREADABLE:
        return None
