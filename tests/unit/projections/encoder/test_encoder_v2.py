"""A session as ACP v2 clients see it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw
from tests.unit.projections.encoder.frame_words import (
    LIFECYCLE,
    PLAIN,
    V2,
    V2_INPUTS,
    answer,
    error,
    one_turn,
    seen,
    told,
    words,
)
from tests.unit.session import driving as d

from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.projections.encoder import Dialect, Fail, SessionEncoder, TellBlocked
from turnwire.session import events as ev
from turnwire.session import inputs as i

V2_TURN = ["user_message", "answer p1", "state_update running", "agent_message_chunk", "state_update idle"]


def test_a_v2_client_of_a_v1_agent_is_answered_on_insertion_and_hears_one_running_and_one_idle() -> None:
    outgoing = seen(V2, one_turn())
    assert words(outgoing) == V2_TURN
    [message] = told(outgoing, "user_message")
    assert message["content"] == [{"type": "text", "text": "p1"}]
    assert answer(outgoing) == {"messageId": message["messageId"]}
    assert told(outgoing, "state_update")[-1]["stopReason"] == "end_turn"


def test_a_v2_client_of_a_v2_agent_hears_the_same_whatever_the_agent_repeats() -> None:
    repeated = (*V2_INPUTS, d.said("state_update", state="idle", stopReason="end_turn"))
    assert words(seen(V2, one_turn(ev.TurnEnd.IDLE, *repeated))) == V2_TURN


def test_a_turn_that_fails_after_insertion_is_an_idle_with_its_error() -> None:
    outgoing = seen(V2, one_turn(ev.TurnEnd.RESPONSE, d.refused("p1")))
    assert words(outgoing) == V2_TURN
    [*_, idle] = told(outgoing, "state_update")
    assert (idle["stopReason"], idle["error"]) == ("error", msgspec.json.decode(d.ERROR))


def test_a_question_is_asked_and_the_state_says_that_the_turn_waits() -> None:
    log = one_turn(ev.TurnEnd.RESPONSE, d.asks("q1"), d.answer("q1"), d.answered("p1"))
    v2 = words(seen(V2, log))
    assert v2[v2.index("ask q1") - 1 : -1].count("state_update requires_action") == 1
    assert v2.index("state_update requires_action") < v2.index("withdraw q1")
    assert v2[-2:] == ["state_update running", "state_update idle"]
    assert [each for each in words(seen(PLAIN, log)) if "q1" in each] == ["ask q1", "withdraw q1"]


@pytest.mark.parametrize("dialect", [V2, LIFECYCLE])
def test_a_turn_that_waits_says_for_what(dialect: Dialect) -> None:
    asked = d.asks("q2", 2, method=d.ELICITATION)
    log = one_turn(ev.TurnEnd.RESPONSE, d.asks("q1"), asked, d.answer("q1"), d.answer("q2", None), d.answered("p1"))
    waits = [each.waits for each in seen(dialect, log) if isinstance(each, TellBlocked)]
    assert waits == [(("q1", "permission"),), (("q1", "permission"), ("q2", "elicitation"))]
    [blocked] = [each for each in log if isinstance(each, ev.TurnBlocked)]
    assert blocked.waits_for == (ev.Awaited(PermissionId("q1"), "permission"),)


def test_an_agent_that_says_that_it_waits_before_it_asks_is_told_again_with_what_for() -> None:
    log = one_turn(ev.TurnEnd.IDLE, d.agent_is("running"), d.agent_is("requires_action"), d.asks("q1"))
    waits = [each.waits for each in seen(V2, log) if isinstance(each, TellBlocked)]
    assert waits == [(), (("q1", "permission"),)]


def test_an_idle_without_a_reason_stays_without_one() -> None:
    log = one_turn(ev.TurnEnd.IDLE, d.agent_is("running"), d.agent_is("idle"))
    assert told(seen(V2, log), "state_update")[-1] == {"sessionUpdate": "state_update", "state": "idle"}


def test_a_refused_prompt_is_an_error_and_neither_a_message_nor_a_state() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    session.take(d.prompt("p1", request_id=2), d.refused("p1"))
    outgoing = seen(V2, session.log)
    assert words(outgoing) == ["fail p1"]
    assert error(outgoing) == msgspec.json.decode(d.ERROR)
    assert seen(V2, session.log, own=()) == []


def test_a_prompt_is_answered_when_its_agent_answers_and_not_before() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    session.take(d.prompt("p1"), d.agent_is("running"), d.said("user_message", messageId="u1"), d.chunk())
    assert words(seen(V2, session.log)) == ["state_update running", "user_message", "agent_message_chunk"]
    session.take(d.answered("p1", None, "u1"))
    assert words(seen(V2, session.log))[-1] == "answer p1"
    assert answer(seen(V2, session.log)) == {"messageId": "u1"}


def test_usage_is_on_the_idle_and_not_in_what_is_repeated_of_it() -> None:
    encoder = SessionEncoder(V2, SessionId("s1"))
    usage = Raw(b'{"totalTokens":3}')
    end = ev.TurnCompleted(
        at=1, prompt_id=PromptId("p1"), stop_reason="end_turn", ending=ev.Ending.IDLE, usage=usage
    )
    encoder.take(ev.TurnStarted(at=1, prompt_id=PromptId("p1")), own=True)
    assert told(encoder.take(end, own=True), "state_update")[0]["usage"] == {"totalTokens": 3}
    assert told(encoder.state(), "state_update") == [
        {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn"}
    ]


def test_a_second_prompt_waits_and_is_answered_when_its_message_is_inserted() -> None:
    session = d.Session()
    session.take(d.prompt("p1"), d.prompt("p2"))
    assert words(seen(V2, session.log, own=("p1", "p2"))) == V2_TURN[:3]
    session.take(d.answered("p1"), d.answered("p2"))
    assert words(seen(V2, session.log, own=("p1", "p2"))) == [
        *V2_TURN[:3],
        *("state_update idle", "user_message", "answer p2", "state_update running", "state_update idle"),
    ]


def test_a_prompt_that_is_removed_before_insertion_is_refused_as_cancelled() -> None:
    session = d.Session()
    session.take(d.prompt("p1"), d.prompt("p2"), d.remove("p2"))
    outgoing = seen(V2, session.log, own=("p2",))
    assert error(outgoing)["code"] == -32800
    assert len(told(outgoing, "user_message")) == 1
    assert not [each for each in seen(V2, session.log, own=()) if isinstance(each, Fail)]


def test_a_prompt_that_fails_before_insertion_is_refused_with_the_error() -> None:
    encoder = SessionEncoder(V2, SessionId("s1"))
    encoder.take(ev.PromptAccepted(at=1, prompt_id=PromptId("p1"), after_offset=0), own=True)
    failed = ev.TurnFailed(at=1, prompt_id=PromptId("p1"), code="agent_exited", message="it is gone")
    assert words(encoder.take(failed, own=True)) == ["fail p1"]


@pytest.mark.parametrize("last", [d.answered("p1"), d.refused("p1")])
def test_a_prompt_that_joined_ends_no_work_of_its_own(last: i.AnyInput) -> None:
    session = d.Session(steering=True)
    session.take(d.prompt("p1"), d.prompt("p2", when=i.WhenBusy.STEER), d.steered("p2", injected=True), last)
    outgoing = seen(V2, session.log, own=("p1", "p2"))
    assert words(outgoing).count("state_update idle") == 1
    assert words(outgoing).count("answer p2") == 1
    v1 = words(seen(LIFECYCLE, session.log, own=("p1", "p2")))
    assert v1.count("state_change idle") == 1
    assert len([each for each in v1 if each in {"answer p2", "fail p2"}]) == 1


def test_one_who_attaches_learns_the_state_after_the_history() -> None:
    session = d.Session()
    session.take(d.prompt("p1"))
    encoder = SessionEncoder(V2, SessionId("s1"))
    history = [word for event in session.log for word in words(encoder.take(event, own=False))]
    assert history == ["user_message", "state_update running"]
    assert words(encoder.state()) == ["state_update running"]
    session.take(d.answered("p1"))
    assert words(encoder.take(session.log[-1], own=False)) == ["state_update idle"]
    lifecycle = SessionEncoder(LIFECYCLE, SessionId("s1"))
    assert words(lifecycle.state()) == ["state_change idle"]
    assert SessionEncoder(PLAIN, SessionId("s1")).state() == []


def test_a_v2_client_is_told_every_prompt_once() -> None:
    for own in (("p1",), ()):
        assert len(told(seen(V2, one_turn(), own=own), "user_message")) == 1


def test_row_11_background_work_of_a_v2_agent_is_on_every_state() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    running = d.said("state_update", state="running", background=[{"type": "tool_call", "toolCallId": "t"}])
    session.take(d.prompt("p1"), running)
    outgoing = seen(V2, session.log)
    assert words(outgoing)[-2:] == ["state_update running", "state_update running"]
    assert told(outgoing, "state_update")[-1]["background"] == [{"type": "tool_call", "toolCallId": "t"}]
    encoder = SessionEncoder(PLAIN, SessionId("s1"))
    for event in session.log:
        encoder.take(event, own=True)
    assert encoder.losses == {"background": 1}


def test_what_ran_in_the_background_of_an_agent_that_is_gone_does_not_run_any_more() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    work = [{"type": "tool_call", "toolCallId": "t"}]
    session.take(d.prompt("p1"), d.said("state_update", state="running", background=work), d.gone())
    states = told(seen(V2, session.log), "state_update")
    assert (states[1]["background"], states[-1]["background"], states[-1]["state"]) == (work, [], "idle")
