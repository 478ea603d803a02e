"""Ends of turns: once, by the first cause, with all consequences of an end and in its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace
from tests.unit.session.driving import (
    ERROR,
    Session,
    agent_is,
    answered,
    asks,
    cancel,
    chunk,
    close,
    deadline,
    gone,
    marked,
    prompt,
    ready,
    refused,
    said,
    settle,
    steered,
    tool,
    types,
)

from turnwire.errors import PromptNotFound
from turnwire.ids import PromptId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.effects import ArmDeadline, AskAgent, CancelAgent, CloseAgentSession
from turnwire.session.ending import Cancelled
from turnwire.session.state import Phase
from turnwire.session.turn import TurnState
from turnwire.wire.peek import peek_update

P1 = PromptId("p1")
IDLE = ev.TurnEnd.IDLE
ANSWERED = answered("p1", "cancelled")
NOTIFY, REQUEST = ev.CancelRung.NOTIFY, ev.CancelRung.REQUEST
TERMINATE, KILL = ev.CancelRung.TERMINATE, ev.CancelRung.KILL


def running() -> Session:
    session = Session(steering=True)
    session.take(prompt("p1", request_id="7"))
    return session


def requires_action() -> Session:
    session = running()
    session.take(asks("q1", 1))
    return session


def cancelling() -> Session:
    session = running()
    session.take(cancel())
    return session


def with_joined() -> Session:
    session = running()
    session.take(prompt("s1", when=i.WhenBusy.STEER), steered("s1", injected=True))
    return session


def with_queue() -> Session:
    session = running()
    session.take(prompt("s1", when=i.WhenBusy.STEER), prompt("p2"), asks("q1", 1))
    return session


def idle() -> Session:
    return Session()


active = pytest.mark.parametrize("begin", [running, requires_action, cancelling, with_joined, with_queue])
any_state = pytest.mark.parametrize("begin", [idle, running, requires_action, cancelling, with_joined, with_queue])


# -- the agent's own word ------------------------------------------------------------------------------------


def test_the_answer_ends_the_turn_after_everything_it_said() -> None:
    session = running()
    usage = Raw(b'{"totalTokens":3}')
    session.take(chunk(), replace(answered("p1", "max_tokens"), usage=usage))
    end = session.found(ev.TurnCompleted)[0]
    assert session.log[-1] is end
    assert (end.stop_reason, end.ending, end.prompt_request_id, end.usage) == (
        "max_tokens",
        ev.Ending.RESPONSE,
        "7",
        usage,
    )
    assert end.cancelled_by is None


def test_an_error_answer_fails_the_turn_and_keeps_the_error() -> None:
    session = running()
    session.take(refused("p1"))
    end = session.found(ev.TurnFailed)[0]
    assert (end.code, end.agent_error, end.prompt_request_id) == ("agent_error", ERROR, "7")


def test_an_answer_without_a_stop_reason_fails_the_turn() -> None:
    session = running()
    session.take(answered("p1", None))
    assert session.ends() == {"p1": "agent_error"}
    assert session.found(ev.TurnFailed)[0].agent_error is UNSET


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    "second",
    [
        answered("p1"),
        answered("p1", "cancelled"),
        refused("p1"),
        cancel("p1"),
        settle("p1"),
        gone(),
        marked(ends="p1"),
        agent_is("idle", stopReason="end_turn"),
        deadline("p1", NOTIFY),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_turn_that_has_ended_does_not_end_again(second: i.AnyInput) -> None:
    session = running()
    session.take(answered("p1", "refusal"), second, second)
    assert session.ends() == {"p1": "refusal"}
    assert [each.prompt_id for each in session.found(ev.SessionUpdated)].count(P1) == 0


@pytest.mark.guarantee("G5")
@active
def test_silence_and_time_alone_never_end_a_turn(begin: Callable[[], Session]) -> None:
    session = begin()
    before = session.state.turn
    for rung in ev.CancelRung:
        session.take(deadline("p1", rung))
    assert session.ends() == {}
    assert session.state.turn is not None
    assert before is not None
    assert session.state.turn.state is before.state


# -- cancelling ----------------------------------------------------------------------------------------------


def test_a_cancel_goes_up_the_ladder_rung_by_rung() -> None:
    session = Session(limits=Limits(cancel_grace_s=3, cancel_rung_s=2))
    session.take(prompt("p1"))
    plan = session.take(cancel())
    assert plan.answer == Cancelled("p1")
    assert plan.effects == (CancelAgent(P1, NOTIFY), ArmDeadline(P1, NOTIFY, 3))
    for rung, following in [(NOTIFY, REQUEST), (REQUEST, TERMINATE)]:
        plan = session.take(deadline("p1", rung))
        assert types(plan.events) == ["cancel_escalated"]
        assert plan.effects == (CancelAgent(P1, following), ArmDeadline(P1, following, 2))
    plan = session.take(deadline("p1", TERMINATE))
    assert plan.effects == (CancelAgent(P1, KILL),)
    assert session.take(deadline("p1", KILL)).events == ()
    assert [each.rung for each in session.found(ev.CancelEscalated)] == [REQUEST, TERMINATE, KILL]
    assert session.ends() == {}


@pytest.mark.parametrize("word", [answered("p1", "cancelled"), refused("p1"), gone(), settle("p1")])
def test_a_cancelled_turn_ends_as_cancelled_however_the_agent_took_it(word: i.AnyInput) -> None:
    session = cancelling()
    session.take(deadline("p1", NOTIFY), word)
    assert session.ends() == {"p1": "cancelled"}
    assert session.found(ev.TurnCompleted)[0].cancelled_by == "bob"


@pytest.mark.parametrize(
    ("turn_end", "word"),
    [
        (ev.TurnEnd.RESPONSE, answered("p1", "end_turn")),
        (ev.TurnEnd.MARKER, answered("p1", "end_turn")),
        (ev.TurnEnd.IDLE, agent_is("idle", stopReason="end_turn")),
    ],
)
def test_an_agent_that_finished_in_spite_of_a_cancel_has_its_own_word_beside_the_end(
    turn_end: ev.TurnEnd, word: i.AnyInput
) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"), said("user_message", messageId="m1"), agent_is("running"), cancel())
    if turn_end is ev.TurnEnd.MARKER:
        session.take(marked("end_turn"))
    session.take(word)
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.cancelled_by, end.agent_stop_reason) == ("cancelled", "bob", "end_turn")


def test_an_agent_that_answers_a_cancel_with_an_error_has_its_error_beside_the_end() -> None:
    session = cancelling()
    session.take(refused("p1"))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.agent_stop_reason, end.agent_error) == ("cancelled", None, ERROR)


@pytest.mark.parametrize(("turn_end", "status"), [(ev.TurnEnd.RESPONSE, "failed"), (ev.TurnEnd.IDLE, "cancelled")])
@pytest.mark.parametrize("word", [answered("p1", "cancelled"), settle("p1"), close(), gone()])
def test_calls_that_are_open_when_a_cancelled_turn_ends_are_closed_before_the_end(
    turn_end: ev.TurnEnd, status: str, word: i.AnyInput
) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"), said("user_message", messageId="m1"), agent_is("running"))
    session.take(tool("open", "in_progress"), tool("done", "completed"), tool("new"), cancel())
    before = len(session.log)
    session.take(agent_is("idle", stopReason="cancelled") if turn_end is IDLE and word == ANSWERED else word)
    closing = [each for each in session.log[before:] if isinstance(each, ev.SessionUpdated)]
    closed = [peek_update(each.update) for each in closing if each.kind == "tool_call_update"]
    assert [(each.tool_call_id, each.status) for each in closed] == [("open", status), ("new", status)]
    assert {each.prompt_id for each in closing} == {P1}
    kinds = types(session.log)
    assert kinds.index("turn_complete") > max(at for at, kind in enumerate(kinds) if kind == "session_update")


def test_a_call_that_the_agent_lists_as_background_outlives_a_cancel() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), tool("b", "in_progress"))
    session.take(agent_is("running", background=[{"type": "tool_call", "toolCallId": "b"}]), cancel())
    plan = session.take(agent_is("idle", stopReason="cancelled"))
    assert types(plan.events) == ["session_update", "turn_complete"]


def test_a_lost_agent_leaves_no_call_open() -> None:
    session = running()
    session.take(tool("open", "in_progress"))
    plan = session.take(gone())
    assert types(plan.events) == ["agent_exited", "session_update", "turn_error"]
    assert peek_update(session.found(ev.SessionUpdated)[-1].update).status == "failed"


def test_what_is_said_between_cancel_and_end_belongs_to_the_turn() -> None:
    session = cancelling()
    session.take(chunk(), answered("p1", "cancelled"))
    assert session.found(ev.SessionUpdated)[0].prompt_id == "p1"


def test_a_second_cancel_changes_nothing() -> None:
    session = cancelling()
    plan = session.take(cancel("p1"))
    assert plan.answer == Cancelled("p1")
    assert (plan.events, plan.effects) == ((), ())


def test_a_cancel_that_names_an_ended_or_unknown_turn_does_nothing() -> None:
    session = running()
    session.take(prompt("p2"), answered("p1"))
    for name in ("p1", "p9"):
        plan = session.take(cancel(name))
        assert plan.answer == Cancelled(None)
        assert (plan.events, plan.effects) == ((), ())
    assert session.running() == "p2"


def test_a_cancel_without_a_turn_does_nothing() -> None:
    plan = Session().take(cancel())
    assert plan.answer == Cancelled(None)
    assert plan.events == ()


def test_a_cancel_of_a_waiting_prompt_takes_it_out() -> None:
    session = with_queue()
    plan = session.take(cancel("p2"))
    assert plan.answer == Cancelled("p2")
    assert session.ends() == {"p2": "cancelled"}
    assert session.running() == "p1"
    assert session.effects_of(CancelAgent) == []


def test_a_cancel_of_a_joined_prompt_cancels_the_turn_it_joined() -> None:
    session = with_joined()
    assert session.take(cancel("s1")).answer == Cancelled("p1")
    session.take(answered("p1", "cancelled"))
    assert session.ends() == {"p1": "cancelled", "s1": "cancelled"}
    assert [each.cancelled_by for each in session.found(ev.TurnCompleted)] == ["bob", "bob"]


def test_who_cancelled_is_the_client_where_no_author_is_known() -> None:
    session = running()
    session.take(cancel(author=None), answered("p1", "cancelled"))
    assert session.found(ev.TurnCompleted)[0].cancelled_by == "c2"


def test_a_deadline_of_another_turn_changes_nothing() -> None:
    session = cancelling()
    session.take(prompt("p2"), answered("p1", "cancelled"), cancel())
    plan = session.take(deadline("p1", NOTIFY))
    assert (plan.events, plan.effects) == ((), ())


# -- settling ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G5")
@active
def test_one_call_settles_a_turn_whose_agent_never_said_the_end(begin: Callable[[], Session]) -> None:
    session = begin()
    was = session.state.turn
    assert was is not None
    session.take(settle("p1"))
    reason = "cancelled" if was.state is TurnState.CANCELLING else "end_turn"
    assert session.ends()["p1"] == reason
    end = session.found(ev.TurnCompleted)[0]
    assert (end.ending, end.settled_by) == (ev.Ending.SETTLED, "bob")
    assert session.take(settle("p1")).events == ()


def test_only_the_running_turn_can_be_settled() -> None:
    session = with_queue()
    session.refuses(settle("p2"), PromptNotFound)
    session.refuses(settle("p9"), PromptNotFound)


# -- losing the agent, closing -------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
@any_state
def test_a_lost_agent_ends_the_turn_and_the_queue_goes_on(begin: Callable[[], Session]) -> None:
    session = begin()
    before, waiting = session.state, session.waiting()
    plan = session.take(gone())
    assert types(plan.events)[0] == "agent_exited"
    assert session.state.agent is None
    assert session.state.permissions == ()
    assert session.state.joined == ()
    if before.turn is not None:
        cancelled = before.turn.state is TurnState.CANCELLING
        assert session.ends()["p1"] == ("cancelled" if cancelled else "agent_exited")
    assert session.running() == next(iter(waiting), None)
    assert set(session.ends()) == {each.prompt_id for each in (before.turn, *before.joined) if each}


def test_a_failed_turn_says_how_the_agent_died() -> None:
    session = running()
    session.take(gone())
    end = session.found(ev.TurnFailed)[0]
    assert (end.code, end.exit_code, end.signal, end.stderr_tail) == ("agent_exited", 9, "KILL", "oops")
    exited = session.found(ev.AgentExited)[0]
    assert (exited.reason, exited.exit_code, exited.signal, exited.stderr_tail) == (
        "agent_exited",
        9,
        "KILL",
        "oops",
    )


def test_an_agent_that_cannot_start_fails_the_turn_that_needed_it() -> None:
    session = Session(None)
    session.take(prompt("p1"))
    plan = session.take(gone("agent_launch_failed"))
    assert types(plan.events) == ["agent_exited", "turn_error"]
    assert session.ends() == {"p1": "agent_launch_failed"}


def test_an_agent_that_cannot_start_is_told_also_when_no_turn_needs_it() -> None:
    session = Session(None)
    assert types(session.take(gone("auth_required")).events) == ["agent_exited"]
    assert types(session.take(gone("agent_exited")).events) == ["agent_exited"], "one that died while it opened it"
    session.take(ready(), gone("agent_exited"))
    assert session.take(gone("agent_exited")).events == (), "it has been told"


def test_the_next_prompt_is_asked_of_a_new_agent() -> None:
    session = running()
    session.take(gone(), prompt("p2"), ready(), answered("p2"))
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1", "p2"]
    assert session.ends() == {"p1": "agent_exited", "p2": "end_turn"}


@pytest.mark.guarantee("G3")
@any_state
def test_closing_ends_everything_then_the_session(begin: Callable[[], Session]) -> None:
    session = begin()
    opened = {each.prompt_id for each in session.found(ev.PromptAccepted)}
    plan = session.take(close())
    assert types(plan.events)[-1] == "session_closed"
    assert plan.effects[-1] == CloseAgentSession()
    assert session.ends() == dict.fromkeys(session.ends(), "cancelled")
    assert set(session.ends()) == opened
    assert (session.state.phase, session.state.unsettled) == (Phase.CLOSED, False)
    assert session.take(close()).events == ()
    assert "bob" in {each.cancelled_by for each in session.found(ev.TurnCompleted)} or not opened


def test_closing_without_an_author_names_the_client() -> None:
    session = running()
    session.take(replace(close(), author=None, client_id="c9"))
    assert session.found(ev.TurnCompleted)[0].cancelled_by == "c9"
