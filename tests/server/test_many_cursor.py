"""The cursor of many sessions holds a stream's position, after any history, in one short line."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.ids import Epoch, SessionId
from turnwire.server.readers.many_stream import NAMED, ManyCursor, digest, read_cursor, tag_of

TAGS = [tag_of(SessionId(f"s{number}"), Epoch("e")) for number in range(NAMED + 20)]
steps = st.lists(st.tuples(st.sampled_from(range(len(TAGS))), st.integers(1, 5_000)), max_size=200)


def run(count: int, moves: list[tuple[int, int]]) -> tuple[ManyCursor, dict[bytes, int]]:
    """Return a cursor over `count` sessions that moved, and the position of each."""
    cursor, places = ManyCursor(), dict.fromkeys(TAGS[:count], 7)
    for tag, offset in places.items():
        cursor.place(tag, offset)
    for index, by in moves:
        tag = TAGS[index % count]
        cursor.move(tag, places[tag], places[tag] + by)
        places[tag] += by
    return cursor, places


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, NAMED), moves=steps)
def test_up_to_the_bound_every_session_is_named_with_its_place(count: int, moves: list[tuple[int, int]]) -> None:
    cursor, places = run(count, moves)
    back = read_cursor(cursor.text().decode())
    assert back.named == places
    assert back.rest == 0


@settings(max_examples=100, deadline=None)
@given(moves=steps)
def test_beyond_the_bound_the_rest_is_known_by_one_number(moves: list[tuple[int, int]]) -> None:
    cursor, places = run(len(TAGS), moves)
    back = read_cursor(cursor.text().decode())
    assert len(back.named) == NAMED
    assert back.named.items() <= places.items()
    rest = 0
    for tag, offset in places.items():
        if tag not in back.named:
            rest ^= digest(tag, offset)
    assert back.rest == rest != 0
    if moves:
        assert TAGS[moves[-1][0]] in back.named


@given(moves=steps.filter(bool))
def test_the_text_of_an_event_is_the_cursor_right_after_it(moves: list[tuple[int, int]]) -> None:
    cursor, places = run(12, moves)
    tag = TAGS[moves[-1][0] % 12]
    assert cursor.before(tag) + b"%d" % places[tag] == cursor.text()
    earlier = read_cursor((cursor.before(tag) + b"3").decode())
    assert earlier.named == places | {tag: 3}


def test_a_cursor_of_a_dozen_sessions_is_short_and_of_the_most_it_names_fits_a_header() -> None:
    assert len(run(12, [(index, 100_000) for index in range(12)])[0].text()) < 200
    assert len(run(len(TAGS), [(index, 100_000) for index in range(len(TAGS))])[0].text()) < 1024


def test_another_life_of_a_session_has_another_name() -> None:
    assert tag_of(SessionId("s"), Epoch("a")) != tag_of(SessionId("s"), Epoch("b"))
