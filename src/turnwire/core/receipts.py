"""Receipts: what the end of a turn proves of the events before it, and the check of it where no log is.

A session's stored bodies are hashed in the order of their offsets. When a turn's end is about to be stored, the
hash so far goes into it, with where it begins and with the hash of the receipt before, so that the receipts of a
session are one chain. Takes bodies as they are stored and never encodes an event; never looks at what they mean,
but for which of them end a turn.

    C1  A receipt is about every event behind the end before, whichever turn it is of or none, up to its own end, of
        which it has the stored form without the receipt. What comes behind the last end waits for the next one.
    C2  SHA-256 is over a head (`turnwire receipt 1`, the first offset, the previous hash, each with a zero byte
        behind it), then over each body, as C4 has it. Behind every 1024 bodies the hash begins anew with its digest
        so far: a hash cannot be kept half-way, and these links can.
    C3  A chain begins anew, without a previous hash, behind an end that has no receipt, and where a snapshot
        without a chain ends: whatever wrote those knew of none.
    C4  Nearly half of what is stored of a burst is the same around every piece, and is hashed once. The body of an
        update has a front, up to the `{` behind its first `,"update":`, and a back, from its last `,"promptId":`
        on; one that lacks either, or has a line end, counts as any other body. What is between is hashed with a
        line end behind it. Before it, if front or back are not those of the update before in this link, come a byte
        1, the front, a zero byte, the back, a zero byte. Any other body has a byte 2 before and a zero byte behind.
    C5  So other bodies are another hash. No JSON has bytes 0, 1 or 2, so what was hashed can be taken apart in one
        way only. Nor is there another way for bodies that are no JSON: one that has a zero byte would be several
        of those that were hashed, and their number is in the receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from turnwire.core.events import AnyEvent, Receipt, TerminalEvent

LINK: Final = 1024
"""Bodies behind which a hash begins anew (C2)."""

_UPDATE: Final = b'{"type":"session_update",'
_FRONT_ENDS: Final = b',"update":{'
_BACK_BEGINS: Final = b',"promptId":'
_LF: Final = 10
_encode = msgspec.json.Encoder().encode


class Run(NamedTuple):
    """Updates in a row of which their maker knows that they have one front and one back (C4)."""

    begin: int
    """The place of the first among the events that are stored with them."""
    payloads: Sequence[Raw]
    lines: bytes
    """The payloads again, with a line end behind each."""


class Mark(Struct, frozen=True, omit_defaults=True):
    """A chain as a snapshot keeps it: up to its last link. What came since is read again."""

    first: int
    previous: str | None = None
    links: int = 0
    digest: str = ""
    """Of the last link."""

    @property
    def offset(self) -> int:
        """The last event that is in it."""
        return self.first - 1 + self.links * LINK


class _Around(NamedTuple):
    """Front and back of updates (C4)."""

    begin: bytes
    """The front, and `{`."""
    back: bytes
    least: int
    """So long is a body that has both."""

    @classmethod
    def of(cls, body: bytes) -> _Around | None:
        """Those of an update; none of another event."""
        front, back = body.find(_FRONT_ENDS), body.rfind(_BACK_BEGINS)
        begin = front + len(_FRONT_ENDS)
        if not body.startswith(_UPDATE) or front < 0 or back < begin or _LF in body:
            return None
        return cls(body[:begin], body[back:], begin + len(body) - back)

    def has(self, body: bytes) -> bool:
        is_long = len(body) >= self.least
        return is_long and body.startswith(self.begin) and body.endswith(self.back) and _LF not in body

    def payload(self, body: bytes) -> bytes:
        return body[len(self.begin) - 1 : len(body) - len(self.back)]

    @property
    def item(self) -> bytes:
        return b"\1%b\0%b\0" % (self.begin[:-1], self.back)


class Chain:
    """The hash of what came since the last end."""

    __slots__ = ("_around", "_digest", "_hash", "count", "first", "previous")

    def __init__(self, first: int = 1, previous: str | None = None) -> None:
        self._begin(first, previous)

    @classmethod
    def at(cls, mark: Mark) -> Chain:
        """Go on from what a snapshot kept, with the event behind `mark.offset`."""
        chain = cls(mark.first, mark.previous)
        if mark.links:
            chain.count = mark.links * LINK
            chain._go_on(bytes.fromhex(mark.digest))
        return chain

    @property
    def offset(self) -> int:
        """The last event that is in it."""
        return self.first - 1 + self.count

    @property
    def mark(self) -> Mark:
        return Mark(self.first, self.previous, self.count // LINK, self._digest.hex())

    def copy(self) -> Chain:
        """Another that goes its own way."""
        other = object.__new__(Chain)
        other.first, other.previous, other.count = self.first, self.previous, self.count
        other._digest, other._hash, other._around = self._digest, self._hash.copy(), self._around
        return other

    def take(self, bodies: Sequence[bytes], runs: Iterable[Run] = ()) -> None:
        """Add what comes next. None of it ends a turn. `runs`: what is known of it; without, it is found."""
        begin = 0
        for run in runs:
            if begin < run.begin:
                self._take_each(bodies[begin : run.begin])
            self._take_run(bodies, run)
            begin = run.begin + len(run.payloads)
        if begin < len(bodies):
            self._take_each(bodies[begin:])

    def close(self, body: bytes) -> Receipt:
        """The receipt of an end that is stored like this but for the receipt. The chain goes on behind it."""
        self._take_each((body,))
        last = self.first + self.count - 1
        receipt = Receipt(self._hash.hexdigest(), self.count, self.first, last, self.previous)
        self.pass_end(last, receipt)
        return receipt

    def pass_end(self, offset: int, receipt: Receipt | None) -> None:
        """Go on behind an end that is stored (C3)."""
        self._begin(offset + 1, None if receipt is None else receipt.hash)

    def seal(self, events: list[AnyEvent], bodies: list[bytes], runs: Sequence[Run] = ()) -> None:
        """Put receipts into what is about to be stored: into the ends, and the stored form of each."""
        begin = 0
        for place, event in enumerate(events):
            if isinstance(event, TerminalEvent):
                self.take(bodies[begin:place], _between(runs, begin, place))
                receipt = self.close(bodies[place])
                events[place] = replace(event, receipt=receipt)
                bodies[place] = bodies[place][:-1] + _behind(receipt)
                begin = place + 1
        self.take(bodies[begin:], _between(runs, begin, len(bodies)))

    def _take_each(self, bodies: Sequence[bytes]) -> None:
        parts: list[bytes] = []
        for body in bodies:
            around = self._around
            if around is None or not around.has(body):
                around = _Around.of(body)
                if around is not None:
                    self._around = around
                    parts.append(around.item)
            parts += (b"\2", body, b"\0") if around is None else (around.payload(body), b"\n")
            self.count += 1
            if self.count % LINK == 0:
                self._hash.update(b"".join(parts))
                self._begin_link()
                parts.clear()
        self._hash.update(b"".join(parts))

    def _take_run(self, bodies: Sequence[bytes], run: Run) -> None:
        """The same at once for those that are in one link."""
        lines, place, count = run.lines, run.begin, len(run.payloads)
        around = self._surround(bodies[place])
        while count >= (room := LINK - self.count % LINK):
            # Cut where the lines of these end: nothing is joined anew. What `least` counts twice is the `{`.
            size = sum(map(len, bodies[place : place + room])) - room * (around.least - 2)
            self._hash.update(lines[:size])
            self.count += room
            self._begin_link()
            lines, place, count = lines[size:], place + room, count - room
            if not count:
                return
            around = self._surround(bodies[place])
        self._hash.update(lines)
        self.count += count

    def _surround(self, body: bytes) -> _Around:
        """Hash what is around this update of a run, if it is something else than around the one before."""
        around = self._around
        # A payload has two bytes at least, so front and back are not over each other.
        if around is None or not (body.startswith(around.begin) and body.endswith(around.back)):
            self._around = around = _Around.of(body)
            assert around is not None, "a run is of updates"
            self._hash.update(around.item)
        return around

    def _begin(self, first: int, previous: str | None) -> None:
        self.first = first
        """The offset of the first event that the next receipt is about."""
        self.previous = previous
        self.count = 0
        self._digest = b""
        self._hash = sha256(b"turnwire receipt 1\0%d\0%b\0" % (first, (previous or "").encode()))
        self._around: _Around | None = None

    def _begin_link(self) -> None:
        self._go_on(self._hash.digest())

    def _go_on(self, digest: bytes) -> None:
        """Behind the link with this digest."""
        self._digest = digest
        self._hash = sha256(digest)
        self._around = None


def without_receipt(body: bytes, receipt: Receipt) -> bytes | None:
    """The stored form of an end as its receipt has it; none if it is not as `Chain.seal` writes it."""
    behind = _behind(receipt)
    return body[: -len(behind)] + b"}" if body.endswith(behind) else None


def _between(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    """Those of some of the events, with their places among these."""
    return [each._replace(begin=each.begin - begin) for each in runs if begin <= each.begin < end]


def _behind(receipt: Receipt) -> bytes:
    return b',"receipt":%b}' % _encode(receipt)
