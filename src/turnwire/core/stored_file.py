"""A session's events in a file, byte for byte as they are stored, and the check that nothing of it was altered.

    {"form":"turnwire stored events 1","sessionId":…,"epoch":…,"first":1,"last":44}
    {"offset":1,"sum":"61b0…","body":{"type":"session_created",…}}

The first line says what is in the file, so that it cannot be cut unseen. Each line has a sum over all that is above
it and over its own event: it says where a file was altered. What it cannot say is whether the sums were made anew;
that is what the receipts in the events are for (`core.receipts`), which are as old as the turns that they end.
A body with line ends between its tokens is in `base64` instead.

Takes the lines of a file twice, never all at once; gives a report. Never raises for what is wrong with one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.codec import decode, stored_prefix
from turnwire.core.events import Receipt, SessionCreated, TerminalEvent, TurnCompleted, TurnFailed
from turnwire.core.receipts import Chain, without_receipt
from turnwire.errors import LogCorrupt, LogTooNew
from turnwire.ids import Epoch, SessionId
from turnwire.wire.jsonrpc import UNREADABLE

FORM: Final = "turnwire stored events 1"

_ENDS: Final = tuple(stored_prefix(each, any_version=True) for each in (TurnCompleted, TurnFailed))
_CREATED: Final = stored_prefix(SessionCreated, any_version=True)
_encode = msgspec.json.Encoder().encode


class Head(Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line."""

    form: str = FORM
    session_id: SessionId
    epoch: Epoch
    first: int
    last: int


class _Line(Struct, gc=False):
    offset: int
    sum: str
    body: Raw | UnsetType = UNSET
    base64: str | None = None


_read_head = msgspec.json.Decoder(Head).decode
_read_line = msgspec.json.Decoder(_Line).decode


class StoredFile:
    """Writes one."""

    def __init__(self, head: Head) -> None:
        self.head = _encode(head)
        self._sum = _sum_of_head(self.head)

    def lines(self, stored: Iterable[tuple[int, bytes]]) -> bytes:
        """The lines of what comes next, offsets and bodies."""
        parts: list[bytes] = []
        for offset, body in stored:
            self._sum = _next_sum(self._sum, offset, body)
            if b"\n" in body or b"\r" in body:
                kept = b'"base64":"%b"' % b64encode(body)
            else:
                kept = b'"body":' + body
            parts.append(b'{"offset":%d,"sum":"%b",%b}\n' % (offset, self._sum.encode(), kept))
        return b"".join(parts)


def read_head(line: bytes) -> Head | None:
    """The first line of such a file; none if it is that of another one."""
    try:
        head = _read_head(line)
    except UNREADABLE:
        return None
    return head if head.form == FORM else None


def _sum_of_head(line: bytes) -> str:
    return sha256(line).hexdigest()[:16]


def _next_sum(above: str, offset: int, body: bytes) -> str:
    return sha256(b"%b %d %b" % (above.encode(), offset, body)).hexdigest()[:16]


class Fault(StrEnum):
    """What was done to a file."""

    CHANGED = "changed"
    DROPPED = "dropped"
    ADDED = "added"
    SWAPPED = "swapped"


class Problem(Struct, frozen=True):
    """The first thing that is wrong with a file."""

    fault: Fault
    event: int
    """The offset of the event, or of the first of those among which it is."""
    why: str


class Span(NamedTuple):
    """Events by offset, both ends included."""

    first: int
    last: int


class Report(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a check came to."""

    session_id: SessionId
    first: int
    last: int
    receipts: int = 0
    """Those that are right."""
    proven: tuple[Span, ...] = ()
    """The events that they are about."""
    unproven: tuple[Span, ...] = ()
    """Those that no receipt is about, or one whose first events are not in the file."""
    ends: int = 0
    """Ends of turns."""
    is_last_end_proven: bool = False
    hash: str | None = None
    """Of the last receipt: it stands for all that are proven."""
    problem: Problem | None = None


def check(head: Head, lines: Callable[[], Iterable[bytes]], expected: str | None = None) -> Report:
    """Whether the events of a file are those that were stored.

    Args:
        head: The first line.
        lines: The file from its first line, each time.
        expected: The hash that the receipt of the last end must have.
    """
    walk = _Walk(head, lines)
    receipts = list(walk.receipts())
    proven = [Span(each.first, each.last) for each in walk.prove(receipts)]
    walk.compare(expected)
    return Report(
        session_id=head.session_id,
        first=head.first,
        last=head.last,
        receipts=len(proven),
        proven=tuple(_joined(proven)),
        unproven=tuple(_between(head, proven)),
        ends=walk.ends,
        is_last_end_proven=bool(proven) and proven[-1].last == walk.last_end,
        hash=receipts[-1].hash if receipts and walk.problem is None else None,
        problem=walk.problem,
    )


class _Walk:
    """Walks over the events of a file, up to the first thing that is wrong with them."""

    def __init__(self, head: Head, lines: Callable[[], Iterable[bytes]]) -> None:
        self._head = head
        self._lines = lines
        self.ends = 0
        self.last_end = 0
        self._last_receipt: Receipt | None = None
        """That of the last end."""
        self.problem: Problem | None = None

    def receipts(self) -> Iterator[Receipt]:
        """Those that fit to the one before and to their place."""
        end, before = self._head.first - 1, None
        is_cut = self._head.first > 1
        for offset, body in self._events():
            if offset == 1 and not self._is_of_this_session(body):
                return
            if not body.startswith(_ENDS):
                continue
            event = _end_of(body)
            if event is None:
                self._find(Fault.CHANGED, offset, "it ends a turn in a way that this version cannot read")
                return
            receipt = event.receipt
            self.ends, self.last_end, self._last_receipt = self.ends + 1, offset, receipt
            if receipt is not None:
                if receipt.last != offset or receipt.events != receipt.last - receipt.first + 1:
                    self._find(Fault.CHANGED, offset, "its receipt is of another event")
                    return
                if not is_cut and not _fits(receipt, end, before):
                    why = f"the receipt of event {offset} does not follow the one before it"
                    self._find(Fault.CHANGED, max(end, self._head.first), why)
                    return
                yield receipt
            end, before, is_cut = offset, receipt, False

    def prove(self, receipts: Iterable[Receipt]) -> Iterator[Receipt]:
        """Those whose events come to their hash."""
        if self.problem is not None:
            return
        waiting = iter(receipts)
        receipt, chain = next(waiting, None), None
        for offset, body in self._events():
            if receipt is None:
                return
            if offset == receipt.first:
                chain = Chain(receipt.first, receipt.previous)
            if offset < receipt.last:
                if chain is not None:
                    chain.take((body,))
                continue
            if chain is not None:
                own = without_receipt(body, receipt)
                if own is None or chain.close(own) != receipt:
                    why = f"events {receipt.first}-{offset} do not come to the receipt of event {offset}"
                    self._find(Fault.CHANGED, receipt.first, why)
                    return
                yield receipt
            receipt, chain = next(waiting, None), None

    def compare(self, expected: str | None) -> None:
        """The last end must have this receipt: nothing else tells of receipts that were all made anew."""
        if expected is not None and (self._last_receipt is None or self._last_receipt.hash != expected):
            why = "the last end has another receipt than was expected, or none; or ends behind it are missing"
            self._find(Fault.CHANGED, self.last_end or self._head.last, why)

    def _is_of_this_session(self, first: bytes) -> bool:
        """The receipts are about the first event, and not about the line above it."""
        created = _created(first)
        if created is None or created.session_id == self._head.session_id:
            return True
        self._find(Fault.CHANGED, 1, f"it is of session {created.session_id}, and the file says another one")
        return False

    def _events(self) -> Iterator[tuple[int, bytes]]:
        """The events, as long as they are numbered without a gap and have the sums that were written with them."""
        rest, last = iter(self._lines()), self._head.last
        above, expected = _sum_of_head(next(rest, b"").rstrip(b"\r\n")), self._head.first
        for line in rest:
            read = _read(line)
            if read is None:
                return self._find(Fault.CHANGED, expected, "its line is not readable")
            offset, body, written = read
            if offset != expected:
                fault = _misplaced(expected, offset, rest)
                return self._find(fault, min(expected, offset), f"event {offset} stands where {expected} should be")
            if expected > last:
                return self._find(Fault.ADDED, offset, f"the file says that it ends with event {last}")
            above = _next_sum(above, offset, body)
            if above != written:
                return self._find(Fault.CHANGED, offset, "its sum is another one")
            yield offset, body
            expected += 1
        if expected <= last:
            self._find(Fault.DROPPED, expected, f"the file says that it ends with event {last}")
        return None

    def _find(self, fault: Fault, event: int, why: str) -> None:
        self.problem = self.problem or Problem(fault, event, why)


def _read(line: bytes) -> tuple[int, bytes, str] | None:
    try:
        read = _read_line(line)
        if read.base64 is not None:
            return read.offset, b64decode(read.base64, validate=True), read.sum
    except (*UNREADABLE, ValueError):
        return None
    return None if read.body is UNSET else (read.offset, bytes(read.body), read.sum)


def _misplaced(expected: int, offset: int, rest: Iterator[bytes]) -> Fault:
    if offset < expected:
        return Fault.ADDED
    later = (read[0] for line in rest if (read := _read(line)) is not None)
    return Fault.SWAPPED if expected in later else Fault.DROPPED


def _fits(receipt: Receipt, end: int, before: Receipt | None) -> bool:
    if receipt.previous is None:
        return receipt.first > end
    return before is not None and receipt.previous == before.hash and receipt.first == end + 1


def _created(body: bytes) -> SessionCreated | None:
    try:
        event = decode(body) if body.startswith(_CREATED) else None
    except (LogCorrupt, LogTooNew):
        return None
    return event if isinstance(event, SessionCreated) else None


def _end_of(body: bytes) -> TerminalEvent | None:
    try:
        event = decode(body)
    except (LogCorrupt, LogTooNew):
        return None
    return event if isinstance(event, TerminalEvent) else None


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans that touch, as one."""
    open_span: Span | None = None
    for each in spans:
        if open_span is not None and each.first == open_span.last + 1:
            open_span = Span(open_span.first, each.last)
            continue
        if open_span is not None:
            yield open_span
        open_span = each
    if open_span is not None:
        yield open_span


def _between(head: Head, spans: Iterable[Span]) -> Iterator[Span]:
    """What of a file the spans leave out."""
    at = head.first
    for each in spans:
        if at < each.first:
            yield Span(at, each.first - 1)
        at = each.last + 1
    if at <= head.last:
        yield Span(at, head.last)
