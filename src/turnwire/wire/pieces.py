"""Pieces: lines of an agent that bring one piece of text each and differ in nothing else, read together.

Takes lines in the order in which they came; gives them back in that order, those that are pieces of one session and
kind together (`Pieces`), every other line as it is. Never decides about a line that is not exactly what it should
be: whoever takes that line by itself says what is wrong with it.

Theory of operation
-------------------
An agent that streams writes the same bytes around every update. So what is around it is learned from one line, and
lines that have it are looked at as their updates alone, which one call decodes. That each line is what it would be
by itself follows from three facts:

    J1  A value in JSON can be put in the place of another. If `head`, an object and `tail` are a frame whose update
        is that object, they are such a frame with any other object (`_Around.learn` tries it with one).
    J2  Two lines join to what neither is by itself only where a value goes on over the line end. There `}` would
        stand before it and `{` behind it, which nothing in JSON allows outside of a string; and a string has no
        line end. So as many values as there are updates mean one for each.
    J3  No text in JSON has a NUL. Lines are put together with one, so what is found around it is around the end of
        a line; if a line has one of its own, its update cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from turnwire.wire.peek import PIECES, read_update_line

TOGETHER: Final = 128
"""Lines that are decoded in one go: more gain nothing, and one that is unlike them costs all the short way."""
TOGETHER_BYTES: Final = 1024 * 1024
"""Longer lines gain nothing."""
FEW: Final = 4
"""Fewer lines are as quick one by one."""

_LF: Final = 10
_CR: Final = 13
_PROBE: Final = b'{"sessionUpdate":"probe"}'


class Pieces(NamedTuple):
    """Updates of one session and kind, of which there is nothing to know but whose they are."""

    session_id: str
    kind: str
    updates: Sequence[Raw]


class _Kind(Struct, rename="camel", gc=False):
    session_update: str = ""


_read_all = msgspec.json.Decoder(_Kind).decode_lines
_KIND: Final = attrgetter("session_update")


class _Around(NamedTuple):
    """What an agent writes before and behind an update."""

    session_id: str
    head: bytes
    tail: bytes

    @classmethod
    def learn(cls, line: bytes) -> _Around | None:
        """What is around the update of a line; none if it is no plain update of an object."""
        params = read_update_line(line)
        head, found, tail = (b"", b"", b"") if params is None else line.partition(bytes(params.update))
        if params is None or not (found.startswith(b"{") and found.endswith(b"}")):
            return None
        probed = read_update_line(head + _PROBE + tail)
        is_there = probed is not None and bytes(probed.update) == _PROBE
        return cls(params.session_id, head, tail) if is_there else None

    def count(self, lines: Sequence[bytes]) -> int:
        """How many lines, from the first on, have an object in this; none if one must not be passed on as it is."""
        head, tail = self.head + b"{", b"}" + self.tail
        # In one look, because nearly always all of them do.
        joined = b"\0".join(lines)
        if _LF in joined or _CR in joined or not _is_utf8(joined):
            return 0
        if (
            joined.count(tail + b"\0" + head) == len(lines) - 1
            and joined.startswith(head)
            and joined.endswith(tail)
        ):
            return len(lines)
        unlike = (place for place, each in enumerate(lines) if not (each.startswith(head) and each.endswith(tail)))
        return next(unlike, 0)


class PieceReader:
    """Reads the lines of one peer."""

    def __init__(self) -> None:
        self._around: _Around | None = None

    def read(self, lines: Sequence[bytes]) -> Iterator[Pieces | bytes]:
        """The lines in their order, pieces together."""
        for start in range(0, len(lines), TOGETHER):
            some = lines[start : start + TOGETHER]
            yield from self._find(some) if len(some) >= FEW and sum(map(len, some)) <= TOGETHER_BYTES else some

    def _find(self, lines: Sequence[bytes]) -> Sequence[Pieces | bytes]:
        """The same for a few."""
        around, first = self._around, lines[0]
        if around is None or not (first.startswith(around.head) and first.endswith(around.tail)):
            around = self._around = _Around.learn(first)
        count = 0 if around is None else around.count(lines)
        if around is None or count < FEW:
            return lines
        before, behind = len(around.head), -len(around.tail)
        updates = [line[before:behind] for line in lines[:count]]
        found: list[Pieces | bytes] = []
        place = 0
        for kind, run in groupby(_kinds(updates)):
            begun, place = place, place + len(list(run))
            if kind in PIECES:
                found.append(Pieces(around.session_id, kind, list(map(Raw, updates[begun:place]))))
            else:
                found += lines[begun:place]
        return [*found, *lines[place:]]


def _kinds(updates: list[bytes]) -> list[str]:
    """The kind of each update; none at all if one is not as it should be."""
    try:
        kinds = list(map(_KIND, _read_all(b"\n".join(updates))))
    except (msgspec.DecodeError, RecursionError):
        return []
    return kinds if len(kinds) == len(updates) else []


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
