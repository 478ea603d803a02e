"""Adoption after a restart: pending effects are performed, and performed ones are not repeated."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.session.driving import (
    ADOPT,
    AT,
    RECOVER,
    Session,
    agent_is,
    answered,
    asks,
    cancel,
    chunk,
    marked,
    prompt,
    types,
)

from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.effects import (
    AnyEffect,
    ArmDeadline,
    ArmTimeLimit,
    AskAgent,
    AwaitAnswer,
    CancelAgent,
    SteerAgent,
)
from turnwire.session.queue import STOPPING

P1 = PromptId("p1")
SENT = replace(ADOPT, sent=((P1, 7),))
STEER = i.WhenBusy.STEER


def adopted(session: Session, adopt: i.Adopt) -> tuple[list[str], list[AnyEffect]]:
    """Return the events and effects of an adoption."""
    events, effects = len(session.log), len(session.effects)
    session.take(adopt)
    return types(session.log[events:]), session.effects[effects:]


def test_a_turn_whose_prompt_the_log_says_was_sent_just_continues() -> None:
    session = Session()
    session.take(prompt("p1"), i.AgentHasPrompt(at=AT, prompt_id=P1, agent_request_id=7), chunk())
    assert adopted(session, SENT) == ([], [])
    session.take(answered("p1"))
    assert session.ends() == {"p1": "end_turn"}


def test_a_prompt_that_was_sent_without_a_record_is_recorded_and_not_sent_again() -> None:
    session = Session()
    session.take(prompt("p1"))
    assert adopted(session, SENT) == (["prompt_sent"], [])


@pytest.mark.parametrize("turn_end", [ev.TurnEnd.RESPONSE, ev.TurnEnd.IDLE])
def test_a_prompt_that_was_not_sent_is_sent_with_its_content(turn_end: ev.TurnEnd) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"))
    [asked] = session.effects_of(AskAgent)
    assert adopted(session, ADOPT) == ([], [asked])


def test_a_prompt_that_was_not_sent_and_is_cancelled_ends() -> None:
    session = Session()
    session.take(prompt("p1"), cancel())
    adopted(session, ADOPT)
    assert session.ends() == {"p1": "cancelled"}


def test_a_cancel_in_progress_is_repeated_and_escalates_again() -> None:
    session = Session()
    session.take(prompt("p1"), i.AgentHasPrompt(at=AT, prompt_id=P1, agent_request_id=7), cancel())
    events, effects = adopted(session, SENT)
    assert events == []
    assert [type(each) for each in effects] == [CancelAgent, ArmDeadline]


def test_queued_prompts_wait_on_and_a_hold_for_a_stop_ends() -> None:
    session = Session()
    session.take(prompt("p1"), prompt("p2"), i.HoldQueue(at=AT, reason=STOPPING))
    assert adopted(session, SENT)[0] == ["queue_released", "prompt_sent"]
    assert session.waiting() == ["p2"]
    session.take(answered("p1"))
    assert session.running() == "p2"


def test_time_limits_are_armed_again() -> None:
    session = Session()
    session.take(replace(prompt("p1"), deadline_at=AT + 5000), prompt("p2"))
    assert ArmTimeLimit(P1, 5.0) in adopted(session, SENT)[1]


def test_permission_requests_stay_open() -> None:
    session = Session()
    session.take(prompt("p1"), asks("q1", 1))
    assert adopted(session, SENT)[0] == ["prompt_sent"]
    assert [each.agent_request_id for each in session.state.permissions] == [1]


def test_a_steering_prompt_is_sent_unless_it_was() -> None:
    session = Session(steering=True)
    session.take(prompt("p1"), prompt("s1", when=STEER))
    [steer] = session.effects_of(SteerAgent)
    assert adopted(session, replace(SENT, steered=(PromptId("s1"),)))[1] == []
    assert adopted(session, SENT)[1] == [steer]


def test_an_agent_s_own_turn_is_not_sent() -> None:
    session = Session(ev.TurnEnd.IDLE)
    session.take(agent_is("running"))
    assert adopted(session, ADOPT) == ([], [])


def test_a_marked_turn_waits_for_its_answer_again() -> None:
    session = Session(ev.TurnEnd.MARKER)
    session.take(prompt("p1"), i.AgentHasPrompt(at=AT, prompt_id=P1, agent_request_id=7), marked())
    assert [type(each) for each in adopted(session, SENT)[1]] == [AwaitAnswer]


def test_content_is_kept_until_it_is_sent_and_no_longer() -> None:
    session = Session()
    session.take(prompt("p1"))
    assert session.state.turn is not None
    assert session.state.turn.unsent
    session.take(i.AgentHasPrompt(at=AT, prompt_id=P1, agent_request_id=7))
    assert not session.state.turn.unsent


def test_an_adoption_can_be_followed_by_a_loss() -> None:
    session = Session()
    session.take(prompt("p1"), SENT, RECOVER)
    assert session.ends() == {"p1": "daemon_restarted"}
