"""Request bookkeeping: ids retain their type, each answer matches its request once, nothing stays open at
the end.
"""

from __future__ import annotations

import pytest

from turnwire.errors import LocalProtocolError
from turnwire.ids import RequestId
from turnwire.session.correlation import Correlation, names, same_id


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [(1, 1, True), ("1", "1", True), (1, "1", False), ("1", 1, False), (0, "", False), (2, 3, False)],
)
def test_ids_are_the_same_in_value_and_json_type(one: RequestId, other: RequestId, is_same: bool) -> None:
    assert same_id(one, other) is is_same


@pytest.mark.parametrize(
    ("written", "ours", "is_named"),
    [(2, 2, True), ("2", 2, True), ("02", 2, False), (3, 2, False), ("two", 2, False), ("", 2, False)],
)
def test_a_payload_may_name_our_number_as_text(written: RequestId, ours: int, is_named: bool) -> None:
    assert names(written, ours) is is_named


def test_an_answer_finds_its_request_once() -> None:
    open_requests: Correlation[str, str] = Correlation()
    first, second = open_requests.open("first"), open_requests.open("second")
    assert first != second
    assert open_requests.open_requests == 2
    assert open_requests.close(second) == "second"
    assert open_requests.close(first) == "first"
    assert open_requests.close(first) is None, "a second answer belongs to nobody"
    assert open_requests.open_requests == 0


def test_an_answer_with_the_id_in_another_type_belongs_to_nobody() -> None:
    correlation: Correlation[str, str] = Correlation()
    request_id = correlation.open("ours")
    assert correlation.close(str(request_id)) is None
    assert correlation.close(None) is None
    assert correlation.close(999) is None
    assert correlation.close(request_id) == "ours"


def test_an_id_is_not_used_again() -> None:
    correlation: Correlation[str, str] = Correlation()
    used = [correlation.open("x") for _ in range(3)]
    for each in used:
        correlation.close(each)
    assert correlation.open("y") not in used


def test_their_ids_are_a_space_of_their_own_and_keep_their_type() -> None:
    correlation: Correlation[str, str] = Correlation()
    ours = correlation.open("ours")
    assert correlation.asked(ours, "theirs")
    assert correlation.asked(str(ours), "another")
    assert correlation.find_asked(ours) == "theirs"
    assert correlation.find_asked(str(ours)) == "another"
    correlation.answered(ours)
    assert correlation.find_asked(ours) is None
    assert correlation.find_asked(str(ours)) == "another"
    assert correlation.close(ours) == "ours"


def test_a_second_request_with_an_open_id_is_not_taken_and_the_first_stays() -> None:
    correlation: Correlation[str, str] = Correlation()
    assert correlation.asked(1, "first")
    assert not correlation.asked(1, "second")
    assert correlation.find_asked(1) == "first"
    correlation.answered(1)
    assert correlation.asked(1, "third"), "an answered id may be used again"


def test_nothing_is_answered_that_was_not_asked() -> None:
    correlation: Correlation[str, str] = Correlation()
    with pytest.raises(LocalProtocolError):
        correlation.answered(1)
    correlation.asked(1, "question")
    correlation.answered(1)
    with pytest.raises(LocalProtocolError):
        correlation.answered(1)


def test_at_the_end_our_open_requests_come_back_oldest_first() -> None:
    correlation: Correlation[str, str] = Correlation()
    ids = [correlation.open(name) for name in ("a", "b", "c")]
    correlation.close(ids[1])
    correlation.asked("q", "question")
    assert correlation.end() == ["a", "c"]
    assert correlation.end() == []
    assert correlation.close(ids[0]) is None
    assert correlation.find_asked("q") is None
