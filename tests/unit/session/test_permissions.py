"""Requests of the agent: the first answer wins, a repeat is harmless, a late one is reported, each ends once."""

from __future__ import annotations

import time

import pytest
from msgspec import Raw
from tests.unit.session.driving import (
    ELICITATION,
    PERMISSION,
    REFUSED,
    Session,
    agent_is,
    answer,
    answered,
    asks,
    cancel,
    chosen,
    close,
    gone,
    prompt,
    types,
    withdraws,
)

from turnwire.errors import InvalidOption, LocalProtocolError, PermissionNotFound
from turnwire.ids import ClientId, PermissionId
from turnwire.session import events as ev
from turnwire.session.effects import AnswerAgent
from turnwire.session.permissions import MAX_OPEN, NOT_ANSWERED, TOO_MANY, PermissionAnswer
from turnwire.session.turn import TurnState


def asked(turn_end: ev.TurnEnd = ev.TurnEnd.RESPONSE) -> Session:
    """Return a session whose running turn `p1` waits for an answer to `q1`."""
    session = Session(turn_end)
    session.take(prompt("p1"), asks("q1", 1))
    return session


def turn_state(session: Session) -> TurnState | None:
    return session.state.turn.state if session.state.turn else None


def resolutions(session: Session) -> list[tuple[str, ev.PermissionEnd]]:
    return [(each.request_id, each.end) for each in session.found(ev.PermissionResolved)]


def test_a_question_blocks_the_turn_until_it_is_answered() -> None:
    session = Session()
    plan = session.take(prompt("p1"), asks("q1", 1))
    assert types(plan.events) == ["permission_request", "turn_blocked"]
    assert turn_state(session) is TurnState.REQUIRES_ACTION
    plan = session.take(answer("q1"))
    assert types(plan.events) == ["permission_resolved", "turn_unblocked"]
    assert plan.effects == (AnswerAgent(1, chosen("allow")),)
    assert turn_state(session) is TurnState.RUNNING


def test_beyond_the_limit_of_open_requests_the_agent_gets_an_error() -> None:
    session = asked()
    session.take(*[asks(f"q{each}", each) for each in range(2, MAX_OPEN + 1)])
    plan = session.take(asks("q0", 9_999))
    assert (plan.events, plan.effects) == ((), (AnswerAgent(9_999, TOO_MANY),))
    session.take(answer("q1"))
    assert types(session.take(asks("q0", 9_999)).events) == ["permission_request"]
    began = time.process_time()
    session.take(cancel("p1"))
    assert time.process_time() - began < 1, "all of them are resolved in one step, while other sessions wait"
    assert session.state.permissions == ()


def test_a_turn_that_waits_before_the_agent_asks_names_the_request_once_it_comes() -> None:
    session = Session(ev.TurnEnd.IDLE)
    session.take(prompt("p1"), agent_is("running"), agent_is("requires_action"), asks("q1", 1), asks("q2", 2))
    blocked = [each.waits_for for each in session.found(ev.TurnBlocked)]
    assert blocked == [None, (ev.Awaited(PermissionId("q1"), "permission"),)]


def test_the_turn_goes_on_when_the_last_of_several_questions_is_answered() -> None:
    session = asked()
    session.take(asks("q2", 2), answer("q1"))
    assert turn_state(session) is TurnState.REQUIRES_ACTION
    session.take(answer("q2"))
    assert turn_state(session) is TurnState.RUNNING
    assert len(session.found(ev.TurnBlocked)) == len(session.found(ev.TurnUnblocked)) == 1


def test_the_first_answer_wins_and_all_others_are_told_who_won() -> None:
    session = asked()
    won = session.take(answer("q1", "allow", client="c1"))
    assert won.answer == PermissionAnswer(True, chosen("allow"), ClientId("c1"))
    late = session.take(answer("q1", "reject", client="c2"))
    assert late.answer == PermissionAnswer(False, chosen("allow"), ClientId("c1"))
    assert types(late.events) == ["permission_already_resolved"]
    assert late.effects == ()
    same = session.take(answer("q1", "allow", client="c2"))
    assert same.answer == PermissionAnswer(False, chosen("allow"), ClientId("c1"))
    assert len(session.effects_of(AnswerAgent)) == 1


def test_a_repeat_by_the_winner_is_harmless() -> None:
    session = asked()
    session.take(answer("q1", "allow"))
    plan = session.take(answer("q1", "allow"))
    assert plan.answer == PermissionAnswer(True, chosen("allow"), ClientId("c1"))
    assert (plan.events, plan.effects) == ((), ())


def test_a_winner_who_changes_the_answer_is_told_that_it_is_too_late() -> None:
    session = asked()
    session.take(answer("q1", "allow"))
    plan = session.take(answer("q1", "reject"))
    assert plan.answer == PermissionAnswer(False, chosen("allow"), ClientId("c1"))


def test_an_option_that_was_not_offered_is_refused() -> None:
    session = asked()
    assert session.refuses(answer("q1", "always"), InvalidOption).context["options"] == "allow, reject"
    assert turn_state(session) is TurnState.REQUIRES_ACTION


def test_an_answer_may_select_no_option() -> None:
    session = asked()
    session.take(answer("q1", None))
    assert session.effects_of(AnswerAgent) == [AnswerAgent(1, REFUSED)]


def test_an_unknown_question_is_refused() -> None:
    asked().refuses(answer("q9"), PermissionNotFound)


def test_a_cancel_answers_every_open_question_with_cancelled() -> None:
    session = asked()
    session.take(asks("q2", "2"))
    plan = session.take(cancel())
    assert types(plan.events) == ["prompt_cancelled", "permission_resolved", "permission_resolved"]
    assert session.effects_of(AnswerAgent) == [AnswerAgent(1, REFUSED), AnswerAgent("2", REFUSED)]
    assert resolutions(session) == [("q1", ev.PermissionEnd.CANCELLED), ("q2", ev.PermissionEnd.CANCELLED)]
    late = session.take(answer("q1")).answer
    assert late == PermissionAnswer(False, REFUSED, None)


def test_a_question_while_the_turn_is_being_cancelled_is_answered_at_once() -> None:
    session = Session()
    session.take(prompt("p1"), cancel())
    plan = session.take(asks("q1", 1))
    assert types(plan.events) == ["permission_request", "permission_resolved"]
    assert plan.effects == (AnswerAgent(1, REFUSED),)
    assert turn_state(session) is TurnState.CANCELLING


def test_an_elicitation_that_nobody_answered_is_cancelled_in_its_own_words() -> None:
    session = Session()
    session.take(prompt("p1"), asks("q1", 1, method=ELICITATION, options=()), cancel())
    assert session.effects_of(AnswerAgent) == [AnswerAgent(1, Raw(b'{"action":"cancel"}'))]


def test_a_free_answer_to_an_elicitation_is_passed_on() -> None:
    session = Session()
    session.take(prompt("p1"), asks("q1", 1, method=ELICITATION, options=()), answer("q1", None))
    assert session.effects_of(AnswerAgent) == [AnswerAgent(1, REFUSED)]


def test_no_question_is_ever_approved_without_a_user() -> None:
    assert set(NOT_ANSWERED) == {PERMISSION, ELICITATION}
    assert all(b"cancel" in bytes(each) for each in NOT_ANSWERED.values())


def test_a_question_that_users_cannot_be_asked_is_refused() -> None:
    session = Session()
    session.take(prompt("p1"))
    session.refuses(asks("q1", 1, method="fs/read_text_file"), LocalProtocolError)


def test_a_question_outlives_neither_its_turn_nor_its_agent() -> None:
    session = asked()
    plan = session.take(answered("p1"))
    assert types(plan.events) == ["permission_resolved", "turn_complete"]
    assert resolutions(session) == [("q1", ev.PermissionEnd.WITHDRAWN)]
    session.take(prompt("p2"), asks("q2", 2))
    answers = len(session.effects_of(AnswerAgent))
    session.take(gone())
    assert resolutions(session)[-1] == ("q2", ev.PermissionEnd.WITHDRAWN)
    assert len(session.effects_of(AnswerAgent)) == answers


@pytest.mark.parametrize(("asked_with", "withdrawn_with"), [(1, "1"), ("1", 1), (1, 2)])
def test_a_withdrawal_with_another_id_touches_nothing(asked_with: int | str, withdrawn_with: int | str) -> None:
    session = Session()
    session.take(prompt("p1"), asks("q1", asked_with))
    plan = session.take(withdraws(withdrawn_with))
    assert (plan.events, plan.effects) == ((), ())
    assert turn_state(session) is TurnState.REQUIRES_ACTION


def test_a_withdrawn_question_is_answered_and_the_turn_goes_on() -> None:
    session = Session()
    session.take(prompt("p1"), asks("q1", "1"), asks("q2", 1))
    plan = session.take(withdraws("1"))
    assert plan.effects == (AnswerAgent("1", REFUSED),)
    plan = session.take(withdraws(1))
    assert types(plan.events) == ["permission_resolved", "turn_unblocked"]
    assert {end for _, end in resolutions(session)} == {ev.PermissionEnd.WITHDRAWN}
    assert session.take(withdraws(1)).events == ()


def test_a_question_outside_a_turn_is_asked_and_stays_open() -> None:
    session = Session()
    plan = session.take(asks("q1", 1))
    assert types(plan.events) == ["permission_request"]
    assert session.state.unsettled
    session.take(prompt("p1"), cancel(), answered("p1", "cancelled"))
    assert [each.request_id for each in session.state.permissions] == ["q1"]
    plan = session.take(answer("q1"))
    assert types(plan.events) == ["permission_resolved"]
    assert not session.state.unsettled


def test_a_question_outside_a_turn_ends_with_the_session() -> None:
    session = Session()
    session.take(asks("q1", 1), close())
    assert resolutions(session) == [("q1", ev.PermissionEnd.CANCELLED)]
    assert session.effects_of(AnswerAgent) == [AnswerAgent(1, REFUSED)]


def test_a_v2_agent_says_itself_whether_it_is_blocked() -> None:
    session = asked(ev.TurnEnd.IDLE)
    assert turn_state(session) is TurnState.RUNNING
    session.take(agent_is("requires_action"), answer("q1"))
    assert turn_state(session) is TurnState.REQUIRES_ACTION
    session.take(agent_is("running"))
    assert turn_state(session) is TurnState.RUNNING
    session.take(agent_is("running"))
    assert len(session.found(ev.TurnBlocked)) == len(session.found(ev.TurnUnblocked)) == 1


def test_a_late_answer_to_a_forgotten_question_is_refused() -> None:
    session = asked()
    session.take(answer("q1"))
    for number in range(64):
        session.take(asks(f"x{number}", number), answer(f"x{number}"))
    session.refuses(answer("q1"), PermissionNotFound)
