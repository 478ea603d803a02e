"""A prompt's own deadline: armed at its acceptance and after a restart; then a cancel like any other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.session.driving import AT, RECOVER, Session, answered, prompt, ready, steered

from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.effects import ArmTimeLimit, CancelAgent


def limited(prompt_id: str, after_ms: int = 5000, when: i.WhenBusy = i.WhenBusy.QUEUE) -> i.Prompt:
    return replace(prompt(prompt_id, when=when), deadline_at=AT + after_ms)


def passed(prompt_id: str) -> i.TimeLimitPassed:
    return i.TimeLimitPassed(at=AT + 5000, prompt_id=PromptId(prompt_id))


def test_only_a_prompt_with_a_deadline_is_timed() -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    session.take(prompt("p1"), limited("p2", 1500))
    assert session.effects_of(ArmTimeLimit) == [ArmTimeLimit(PromptId("p2"), 1.5)]
    assert session.found(ev.PromptAccepted)[1].deadline_at == AT + 1500


def test_a_running_turn_is_cancelled_by_the_ladder_and_says_by_whom() -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    session.take(limited("p1"), passed("p1"))
    assert session.effects_of(CancelAgent) == [CancelAgent(PromptId("p1"), ev.CancelRung.NOTIFY)]
    assert session.ends() == {}, "the agent confirms it, or the ladder goes on"
    session.take(answered("p1", "cancelled"))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.cancelled_by) == ("cancelled", "deadline")


def test_a_waiting_prompt_is_removed_and_the_queue_goes_on() -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    session.take(prompt("p1"), limited("p2"), prompt("p3"), passed("p2"))
    [end] = session.found(ev.TurnCompleted)
    assert (end.prompt_id, end.ending, end.cancelled_by) == ("p2", ev.Ending.REMOVED, "deadline")
    assert (session.running(), session.waiting()) == ("p1", ["p3"])


def test_a_turn_that_has_ended_is_left_alone() -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    session.take(limited("p1"), prompt("p2"), answered("p1"))
    plan = session.take(passed("p1"))
    assert (plan.events, plan.effects) == ((), ())


def test_a_repeated_prompt_is_not_timed_twice() -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    given = replace(limited("p1"), key="k", digest="d")
    session.take(given, replace(given, prompt_id=PromptId("p2")))
    assert len(session.effects_of(ArmTimeLimit)) == 1


@pytest.mark.parametrize(("after_ms", "left"), [(5000, 5.0), (-1, 0.0)])
def test_after_a_restart_what_is_left_is_timed_again(after_ms: int, left: float) -> None:
    session = Session(ev.TurnEnd.RESPONSE)
    session.take(limited("p1"), limited("p2", after_ms), prompt("p3"), limited("p4"))
    before = len(session.effects_of(ArmTimeLimit))
    session.take(RECOVER)
    assert session.running() == "p2"
    again = session.effects_of(ArmTimeLimit)[before:]
    assert again == [ArmTimeLimit(PromptId("p2"), left), ArmTimeLimit(PromptId("p4"), 5.0)]


def test_the_deadline_of_an_injected_prompt_cancels_the_turn_that_it_is_in() -> None:
    session = Session(ev.TurnEnd.RESPONSE, steering=True)
    session.take(prompt("p1"), limited("s1", when=i.WhenBusy.STEER), steered("s1", injected=True), passed("s1"))
    assert session.effects_of(CancelAgent) == [CancelAgent(PromptId("p1"), ev.CancelRung.NOTIFY)]


def test_the_deadline_is_kept_through_the_agents_start() -> None:
    session = Session(None)
    session.take(limited("p1"), ready(), passed("p1"))
    assert len(session.found(ev.CancelAsked)) == 1
