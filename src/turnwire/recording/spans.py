"""Parts of a text that something else stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turnwire.server.telemetry.logs import MASK


class Span(NamedTuple):
    """A part of a text, and what stands there instead."""

    start: int
    end: int
    new: str

    def moved(self, by: int) -> Span:
        return Span(self.start + by, self.end + by, self.new)


def merged(spans: Iterable[Span]) -> list[Span]:
    """In their order, none over another. What holds another is left of the two; secrets that cross are one."""
    left: list[Span] = []
    for each in sorted(spans, key=lambda span: (span.start, -span.end)):
        last = left[-1] if left else None
        if last is None or each.start >= last.end:
            left.append(each)
        elif each.end > last.end and MASK in each.new:
            left[-1] = Span(last.start, each.end, MASK)
    return left


def shown(text: str, spans: Sequence[Span], start: int = 0, end: int | None = None) -> str:
    """A part of the text with what stands there instead: where a span begins, and nothing in the rest of it."""
    stop = len(text) if end is None else end
    parts: list[str] = []
    at = start
    for span in spans:
        if span.end <= start or span.start >= stop:
            continue
        parts.append(text[at : max(span.start, at)])
        if span.start >= start:
            parts.append(span.new)
        at = span.end
    parts.append(text[at:stop])
    return "".join(parts)
