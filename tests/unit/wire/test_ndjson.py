"""Lines from chunks: ends, blanks, the limit and its cost."""

from __future__ import annotations

import sys

from turnwire.wire.ndjson import HEAD_BYTES, LineReader, Oversized


def test_lines_are_given_without_their_ends() -> None:
    assert LineReader(10).feed(b"a\nb\r\nc\r\r\n") == [b"a", b"b", b"c\r"]


def test_a_line_over_several_chunks_is_given_when_it_ends() -> None:
    reader = LineReader(10)
    assert reader.feed(b"ab") == []
    assert reader.feed(b"") == []
    assert reader.feed(b"c\r") == []
    assert reader.feed(b"\nd") == [b"abc"]
    assert reader.feed(b"\n") == [b"d"]


def test_blank_lines_are_skipped() -> None:
    reader = LineReader(10)
    assert reader.feed(b"\n \n\r\n\t\r\na\n\n ") == [b"a"]
    assert reader.feed(b"\n") == []
    assert reader.end() == []


def test_the_rest_without_a_line_end_is_given_at_the_end() -> None:
    reader = LineReader(10)
    reader.feed(b"a\nrest\r")
    assert reader.end() == [b"rest"]
    assert reader.end() == []


def test_a_line_of_exactly_the_limit_is_given() -> None:
    assert LineReader(3).feed(b"abc\nabcd\n") == [b"abc", Oversized(4, b"abcd")]


def test_a_line_over_the_limit_is_dropped_and_reported_once_with_its_size_and_head() -> None:
    reader = LineReader(1000)
    assert reader.feed(b"a\n" + b"x" * 900) == [b"a"]
    assert reader.feed(b"y" * 900) == []
    assert reader.feed(b"z" * 900 + b"\nb\n") == [Oversized(2700, b"x" * HEAD_BYTES), b"b"]


def test_an_endless_line_is_reported_when_the_input_ends() -> None:
    reader = LineReader(3)
    reader.feed(b"abcdef")
    assert reader.end() == [Oversized(6, b"abcdef")]
    assert reader.feed(b"a\n") == [b"a"]


def held_by(reader: LineReader) -> int:
    return sum(sys.getsizeof(value) for value in vars(reader).values())


def test_a_line_that_is_too_long_does_not_stay_in_memory() -> None:
    reader = LineReader(100_000)
    chunk = b"x" * 60_000
    for _ in range(50):
        reader.feed(chunk)
        assert held_by(reader) < 100_000 + 2 * len(chunk)
    assert held_by(reader) < 2 * HEAD_BYTES + 200
    assert reader.feed(b"\n") == [Oversized(3_000_000, b"x" * HEAD_BYTES)]
