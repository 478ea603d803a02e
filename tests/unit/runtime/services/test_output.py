"""The output of a terminal ends where the command ended, and begins at a character."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.runtime.services.output import Output


def fed(max_bytes: int, *chunks: bytes) -> Output:
    output = Output(max_bytes)
    for chunk in chunks:
        output.feed(chunk)
    return output


def test_what_fits_is_kept_whole() -> None:
    output = fed(10, b"12345", b"67890")
    assert (output.text(), output.is_truncated) == ("1234567890", False)


def test_what_is_too_much_is_dropped_from_the_beginning() -> None:
    output = fed(10, b"12345", b"67890", b"x")
    assert (output.text(), output.is_truncated) == ("234567890x", True)


@pytest.mark.parametrize(
    ("limit", "left"), [(7, "€€"), (6, "€€"), (5, "€"), (4, "€"), (3, "€"), (2, ""), (1, ""), (0, "")]
)
def test_a_character_that_does_not_fit_goes_as_a_whole(limit: int, left: str) -> None:
    assert fed(limit, "€€€".encode()).text() == left


def test_a_character_that_arrives_in_pieces_is_one() -> None:
    output = Output(100)
    for byte in "aß€😀".encode():
        output.feed(bytes([byte]))
    assert output.text() == "aß€😀"


def test_a_character_is_not_shown_before_all_of_it_is_there() -> None:
    output = fed(100, b"a\xe2\x82")
    assert output.text() == "a"
    output.end()
    assert output.text() == "a\ufffd"


def test_bytes_that_are_no_text_are_shown_as_such_and_counted_as_shown() -> None:
    output = fed(6, b"\xff\xfe\xfd")
    assert (output.text(), output.is_truncated) == ("\ufffd\ufffd", True)


@given(st.text(), st.integers(0, 40), st.data())
def test_any_text_in_any_pieces_leaves_its_longest_end_that_fits(
    text: str, limit: int, data: st.DataObject
) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    output = fed(limit, *pieces)
    output.end()
    shown = output.text()
    assert text.endswith(shown)
    assert len(shown.encode()) <= limit
    assert output.is_truncated is (len(whole) > limit)
    longer = text[len(text) - len(shown) - 1 :] if len(shown) < len(text) else ""
    assert not longer or len(longer.encode()) > limit


def test_a_flood_costs_no_more_than_the_bound() -> None:
    output = Output(64 * 1024)
    chunk = b"y\n" * 32 * 1024
    tracemalloc.start()
    try:
        for _ in range(200):
            output.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(output.text()) == 64 * 1024
    assert peak < 16 * len(chunk)
