"""The breaker: how many failures are tolerated, how long it then says no, and what begins the count anew."""

from __future__ import annotations

import pytest

from turnwire.errors import AgentUnavailable
from turnwire.limits import Limits
from turnwire.runtime.breaker import Breaker
from turnwire.testing import ManualClock

LIMITS = Limits(breaker_failures=2, breaker_first_s=1.0, breaker_most_s=5.0)


def left(breaker: Breaker) -> float | None:
    """How long it still says no; none if it does not."""
    try:
        breaker.check()
    except AgentUnavailable as error:
        seconds = error.context["retry_after_s"]
        assert isinstance(seconds, float)
        return seconds
    return None


def test_so_many_failures_in_a_row_are_bad_luck_and_the_next_is_a_loop(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(2):
        breaker.failed("it dies")
        assert left(breaker) is None
    breaker.failed("it dies")
    assert left(breaker) == 1.0


def test_the_wait_doubles_with_each_failure_up_to_the_most(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    waits: list[float | None] = []
    for _ in range(7):
        breaker.failed("it dies")
        waits.append(left(breaker))
        manual_clock.advance(10.0)
        assert left(breaker) is None
    assert waits == [None, None, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_long_row_of_failures_is_still_a_wait_of_the_most(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(3000):
        breaker.failed("it dies")
    assert left(breaker) == 5.0


def test_the_refusal_says_why_and_when_it_is_tried_again(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    breaker.failed("the program was not found", definite=True)
    manual_clock.advance(0.75)
    with pytest.raises(AgentUnavailable) as refused:
        breaker.check()
    assert str(refused.value) == "the program was not found; it is not started again for 1 s"
    assert refused.value.context == {"retry_after_s": 0.2}
    manual_clock.advance(0.25)
    assert left(breaker) is None


def test_a_definite_failure_is_not_tolerated_once(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    breaker.failed("no such program", definite=True)
    assert left(breaker) == 1.0


def test_a_success_begins_a_new_count_and_opens_at_once(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(3):
        breaker.failed("it dies")
    breaker.succeeded()
    assert left(breaker) is None
    for _ in range(2):
        breaker.failed("it dies")
    assert left(breaker) is None


def test_a_failure_is_news_the_first_time_and_when_its_reason_changes(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    assert [breaker.failed(reason) for reason in ("a", "a", "b", "b", "a")] == [True, False, True, False, True]
    breaker.succeeded()
    assert breaker.failed("a"), "it had worked in between"
