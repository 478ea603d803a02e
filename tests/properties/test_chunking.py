"""The split of bytes makes no difference: whole, byte by byte and at random give the same lines and events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.errors import LimitExceeded
from turnwire.wire.ndjson import LineReader, Oversized
from turnwire.wire.sse import SseEvent, SseReader, encode_event

Lines = list[bytes | Oversized]


def pieces(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        yield stream[start:stop]


def lines_of(chunks: Iterator[bytes], limit: int) -> Lines:
    reader = LineReader(limit)
    found: Lines = []
    for chunk in chunks:
        found += reader.feed(chunk)
    return found + reader.end()


def events_of(chunks: Iterator[bytes], limit: int) -> tuple[list[SseEvent], str]:
    reader = SseReader(limit)
    found: list[SseEvent] = []
    try:
        for chunk in chunks:
            found += reader.feed(chunk)
        reader.end()
    except LimitExceeded:
        return found, "too large"
    return found, f"{reader.last_event_id} {reader.retry}"


cuts = st.lists(st.integers(0, 10_000), max_size=12)
words = st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"a", b'{"x":1}', "é".encode(), b"x" * 300])
ndjson_streams = st.lists(words, max_size=30).map(b"".join)
fields = st.sampled_from(
    [
        *(b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"data: a", b"data:b", b"data", b"data: " + b"y" * 40),
        *(
            b"id: 1",
            b"id: 2",
            b"id: \0",
            b"id",
            b"event: tick",
            b"retry: 5",
            b": note",
            b"other: x",
            "data: é".encode(),
        ),
    ]
)
sse_streams = st.lists(fields, max_size=40).map(b"".join) | st.lists(fields, max_size=40).map(b"\n".join)


@settings(deadline=None, max_examples=300)
@given(ndjson_streams, cuts, st.sampled_from([1, 7, 256, 10_000]))
def test_lines_do_not_depend_on_the_cuts(stream: bytes, cuts: list[int], limit: int) -> None:
    whole = lines_of(iter([stream]), limit)
    assert lines_of(pieces(stream, cuts), limit) == whole
    assert lines_of((bytes([byte]) for byte in stream), limit) == whole


@settings(deadline=None)
@given(ndjson_streams)
def test_every_line_is_given_or_reported_or_blank(stream: bytes) -> None:
    expected = [line.removesuffix(b"\r") for line in stream.split(b"\n") if line.strip()]
    assert lines_of(iter([stream]), 10_000) == expected
    sizes = [len(line) for line in stream.split(b"\n") if len(line) > 7]
    assert [each.size for each in lines_of(iter([stream]), 7) if isinstance(each, Oversized)] == sizes


@settings(deadline=None, max_examples=300)
@given(sse_streams, cuts, st.sampled_from([8, 30, 10_000]))
def test_events_do_not_depend_on_the_cuts(stream: bytes, cuts: list[int], limit: int) -> None:
    whole = events_of(iter([stream]), limit)
    assert events_of(pieces(stream, cuts), limit) == whole
    assert events_of((bytes([byte]) for byte in stream), limit) == whole


@settings(deadline=None)
@given(st.binary(max_size=60), cuts)
def test_any_bytes_are_read_as_lines_and_as_events(stream: bytes, cuts: list[int]) -> None:
    assert lines_of(pieces(stream, cuts), 10) == lines_of(iter([stream]), 10)
    assert events_of(pieces(stream, cuts), 10) == events_of(iter([stream]), 10)


names = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1)


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    names,
    names | st.integers(0, 2**63),
    st.integers(0, 10**15 - 1),
)
def test_an_event_that_is_written_is_read_back(data: str, event: str, ident: str | int, retry: int) -> None:
    stream = encode_event(data=data.encode(), event=event, id=ident, retry=retry)
    expected = data.replace("\r\n", "\n").replace("\r", "\n")
    assert SseReader(10_000).feed(stream) == [SseEvent(str(ident), event, expected, retry)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_long_stream_in_pieces_of_one_size_gives_every_event(size: int) -> None:
    stream = b"".join(encode_event(data=b'{"n":%d}' % n, id=n) for n in range(50))
    chunks = (stream[start : start + size] for start in range(0, len(stream), size))
    events, _ = events_of(chunks, 1000)
    assert [(event.id, event.data) for event in events] == [(str(n), f'{{"n":{n}}}') for n in range(50)]
