"""The position of a prompt's message: with an agent that reports it, in every possible order."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.unit.session.driving import (
    ERROR,
    RECOVER,
    Session,
    agent_is,
    answered,
    cancel,
    chunk,
    close,
    edit,
    gone,
    has_prompt,
    prompt,
    raw,
    ready,
    refused,
    remove,
    said,
    types,
)

from turnwire.errors import PromptNotQueued
from turnwire.ids import PromptId
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.effects import AskAgent, CancelAgent

IDLE, RESPONSE = ev.TurnEnd.IDLE, ev.TurnEnd.RESPONSE
SHOWN, TAKEN, RUNNING = said("user_message", messageId="m1"), answered("p1", None, "m1"), agent_is("running")
DONE = agent_is("idle", stopReason="end_turn")
AGENT = i.WhenBusy.AGENT
SECOND = (said("user_message", messageId="m2"), answered("p2", None, "m2"))


def message(session: Session, prompt_id: str = "p1") -> ev.UserMessage:
    [found] = [each for each in session.found(ev.UserMessage) if each.prompt_id == prompt_id]
    return found


def has_message(session: Session, prompt_id: str = "p1") -> bool:
    return prompt_id in {each.prompt_id for each in session.found(ev.UserMessage)}


def view_of(session: Session) -> View:
    view = View()
    for event in session.log:
        view.apply(event)
    return view


# -- one prompt ----------------------------------------------------------------------------------------------


def test_the_message_is_not_in_the_conversation_before_the_agent_says_so() -> None:
    session = Session(IDLE)
    plan = session.take(prompt("p1"), has_prompt("p1"))
    assert types(plan.events) == ["prompt_sent"]
    assert not has_message(session)
    assert session.found(ev.PromptAccepted)[0].content == prompt("p1").content, "and is not lost either"
    assert view_of(session).user_text(PromptId("p1")) == "p1"


@pytest.mark.parametrize("order", [*permutations([SHOWN, TAKEN, RUNNING])])
def test_the_message_stands_where_the_agent_shows_it_with_the_agents_name(order: tuple[i.AnyInput, ...]) -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), has_prompt("p1"))
    for word in order:
        plan = session.take(word)
        assert (ev.UserMessage in map(type, plan.events)) == (word is SHOWN)
        assert (ev.PromptInserted in map(type, plan.events)) == (word is TAKEN)
    session.take(chunk(), DONE)
    assert (message(session).message_id, message(session).content) == ("m1", prompt("p1").content)
    assert (message(session).author, message(session).client_id) == ("ann", "c1")
    assert [each.agent_message_id for each in session.found(ev.PromptInserted)] == ["m1"]
    assert session.ends() == {"p1": "end_turn"}


@pytest.mark.parametrize("before", [(), (RUNNING,)])
def test_a_prompt_that_the_agent_refuses_has_no_message_and_ends_with_its_error(
    before: tuple[i.AnyInput, ...],
) -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), has_prompt("p1"), *before, refused("p1"))
    [end] = session.found(ev.TurnFailed)
    assert (end.code, end.agent_error) == ("agent_error", ERROR)
    assert not has_message(session)
    assert view_of(session).user_text(PromptId("p1")) == "p1", "its turn still tells what was asked"
    assert view_of(session).items == []


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("loss", [gone(), RECOVER])
def test_a_prompt_whose_agent_is_lost_before_it_answers_ends_once_and_keeps_its_words(loss: i.AnyInput) -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), has_prompt("p1"), loss)
    assert list(session.ends()) == ["p1"]
    assert not has_message(session)
    assert view_of(session).user_text(PromptId("p1")) == "p1"


@pytest.mark.parametrize("loss", [gone(), RECOVER, close(), DONE])
def test_a_message_that_the_agent_has_and_never_showed_is_in_the_log_before_the_end(loss: i.AnyInput) -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), TAKEN, RUNNING, loss)
    assert message(session).message_id == "m1"
    assert session.log.index(message(session)) < len(session.log) - 1
    assert list(session.ends()) == ["p1"]


def test_the_first_words_of_a_turn_come_behind_a_message_that_the_agent_has_and_did_not_show() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), TAKEN)
    assert types(session.take(said("usage_update")).events) == ["session_update"], "which says nothing of it"
    assert types(session.take(chunk()).events) == ["user_message", "session_update"]
    late = session.take(SHOWN).events[0]
    assert isinstance(late, ev.SessionUpdated)
    assert late.echo, "shown after all, it is the copy of it"


def test_words_before_the_agent_has_said_anything_of_the_prompt_do_not_place_it() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), chunk("a notice"), SHOWN)
    assert types(session.log)[-3:] == ["session_update", "user_message", "session_update"]


@pytest.mark.parametrize("shown_first", [True, False])
def test_an_answer_that_names_no_message_is_confirmed_by_the_message_itself(shown_first: bool) -> None:
    session = Session(IDLE)
    nameless = answered("p1", None)
    session.take(prompt("p1"), *((SHOWN, nameless) if shown_first else (nameless, SHOWN)))
    assert [each.agent_message_id for each in session.found(ev.PromptInserted)] == ["m1"]
    assert message(session).message_id == "m1"


def test_a_message_that_the_agent_never_names_has_a_name_of_ours() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), answered("p1", None), RUNNING, chunk(), DONE)
    assert message(session).message_id == "msg-p1"
    assert [each.agent_message_id for each in session.found(ev.PromptInserted)] == ["msg-p1"]
    assert session.ends() == {"p1": "end_turn"}


def test_with_a_v1_agent_the_message_is_there_from_the_start() -> None:
    session = Session(RESPONSE)
    assert types(session.take(prompt("p1")).events) == ["prompt_accepted", "user_message", "turn_started"]
    assert session.found(ev.PromptAccepted)[0].content is UNSET


def test_a_v1_agent_that_follows_a_v2_agent_does_not_leave_the_message_out() -> None:
    session = Session(IDLE)
    session.take(gone(), prompt("p1"))
    assert not has_message(session), "the last one would have said where it goes"
    session.take(ready(RESPONSE))
    assert message(session).message_id == "msg-p1"
    session.take(answered("p1"))
    assert session.ends() == {"p1": "end_turn"}


def test_the_words_of_the_lifecycle_draft_are_read_as_those_that_were_published() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), answered("p1", None), SHOWN, said("state_change", state="running"), chunk())
    session.take(said("state_change", state="requires_action"))
    session.take(said("state_change", state="running"))
    session.take(said("state_change", state="idle", stop_reason="max_tokens", usage={"totalTokens": 3}))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.ending) == ("max_tokens", ev.Ending.IDLE)
    assert [type(each) for each in session.log if isinstance(each, ev.TurnBlocked | ev.TurnUnblocked)] == [
        ev.TurnBlocked,
        ev.TurnUnblocked,
    ]


def test_a_v1_agent_that_tells_states_and_answers_without_a_reason_ends_by_its_idle() -> None:
    session = Session(RESPONSE)
    session.take(prompt("p1"), said("state_change", state="running"), answered("p1", None), chunk())
    assert session.ends() == {}
    session.take(said("state_change", state="idle", stop_reason="refusal"), prompt("p2"))
    assert session.ends() == {"p1": "refusal"}
    assert not has_message(session, "p2"), "from now on it says itself where prompts go"


def offers_the_draft() -> Session:
    """A v1 agent that offers the lifecycle draft."""
    session = Session(None)
    session.take(replace(ready(IDLE), protocol_version=1))
    return session


def test_an_agent_that_offers_the_draft_and_answers_at_the_end_as_v1_does_is_understood() -> None:
    session = offers_the_draft()
    session.take(prompt("p1"), chunk(), answered("p1", "max_tokens"))
    assert types(session.log)[2:] == [
        *("prompt_accepted", "turn_started", "user_message", "prompt_inserted"),
        *("session_update", "turn_complete"),
    ]
    assert session.ends() == {"p1": "max_tokens"}
    session.take(prompt("p2"), answered("p2", "end_turn"))
    assert message(session, "p2").message_id == "msg-p2"
    assert session.ends() == {"p1": "max_tokens", "p2": "end_turn"}


def test_an_agent_that_offers_the_draft_may_speak_before_it_answers() -> None:
    session = offers_the_draft()
    session.take(prompt("p1"), chunk(), answered("p1", None), RUNNING)
    assert session.ends() == {}
    session.take(said("state_change", state="idle", stop_reason="end_turn"))
    assert session.ends() == {"p1": "end_turn"}
    assert len(session.found(ev.PromptInserted)) == 1


def test_an_idle_without_a_reason_is_an_end_whose_reason_is_assumed() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), SHOWN, RUNNING, agent_is("idle"))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.assumed) == ("end_turn", True)


# -- a second prompt, handed over while a turn runs ----------------------------------------------------------


def offered() -> Session:
    """Return a session in which `p1` runs, and the agent has `p2` and has not reported its position."""
    session = Session(IDLE)
    session.take(prompt("p1"), SHOWN, TAKEN, RUNNING, prompt("p2", when=AGENT), has_prompt("p2", 5))
    return session


def test_the_agent_is_handed_the_second_prompt_at_once() -> None:
    session = offered()
    asked = session.effects_of(AskAgent)
    assert [(each.prompt_id, each.offered) for each in asked] == [("p1", False), ("p2", True)]
    assert [each.prompt_id for each in session.state.offered] == ["p2"]
    session.refuses(edit("p2", "x"), PromptNotQueued)
    session.refuses(remove("p2"), PromptNotQueued)


@pytest.mark.parametrize("turn_end", [RESPONSE, ev.TurnEnd.MARKER])
def test_an_agent_that_does_not_decide_it_gets_the_second_prompt_in_its_turn(turn_end: ev.TurnEnd) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"), prompt("p2", when=AGENT))
    assert (session.waiting(), session.state.offered) == (["p2"], ())


@pytest.mark.parametrize("order", [SECOND, SECOND[::-1]])
def test_a_prompt_that_goes_into_the_running_work_ends_with_it_and_has_an_end_of_its_own(
    order: tuple[i.AnyInput, ...],
) -> None:
    session = offered()
    session.take(*order, chunk(), DONE)
    assert session.ends() == {"p1": "end_turn", "p2": "end_turn"}
    assert message(session, "p2").message_id == "m2"
    assert [each.ending for each in session.found(ev.TurnCompleted)] == [ev.Ending.IDLE, ev.Ending.JOINED]


def test_a_prompt_that_the_agent_keeps_for_later_is_the_next_turn() -> None:
    session = offered()
    session.take(prompt("p3"), chunk(), DONE)
    assert session.ends() == {"p1": "end_turn"}
    assert session.running() == "p2", "before what waits with us: the agent has it"
    session.take(said("user_message", messageId="m2"), answered("p2", None, "m2"), RUNNING, chunk("second"), DONE)
    assert session.ends() == {"p1": "end_turn", "p2": "end_turn"}
    assert session.running() == "p3"
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1", "p2", "p3"], "each is asked once"
    assert session.found(ev.SessionUpdated)[-2].prompt_id == "p2"


def test_a_second_prompt_that_the_agent_refuses_disturbs_nothing() -> None:
    session = offered()
    session.take(refused("p2"))
    assert session.ends() == {"p2": "agent_error"}
    assert session.running() == "p1"
    assert not has_message(session, "p2")
    session.take(DONE)
    assert session.ends() == {"p2": "agent_error", "p1": "end_turn"}


def test_a_second_prompt_that_a_cancel_kept_out_is_cancelled() -> None:
    session = offered()
    session.take(cancel(), replace(refused("p2"), error=raw({"code": -32800, "message": "cancelled"})))
    session.take(agent_is("idle", stopReason="cancelled"))
    assert session.ends() == {"p2": "cancelled", "p1": "cancelled"}


def test_a_second_prompt_can_be_taken_back_from_the_agent() -> None:
    session = offered()
    plan = session.take(cancel("p2"))
    assert plan.effects == (CancelAgent(PromptId("p2"), ev.CancelRung.REQUEST),)
    assert session.take(cancel("p2")).effects == ()
    session.take(refused("p2"))
    assert session.ends() == {"p2": "cancelled"}
    assert session.found(ev.TurnCompleted)[0].cancelled_by == "bob"


def test_a_second_prompt_that_the_agent_does_not_let_go_of_is_cancelled_when_it_runs() -> None:
    session = offered()
    session.take(cancel("p2"), DONE)
    assert session.running() == "p2"
    assert session.effects[-2] == CancelAgent(PromptId("p2"), ev.CancelRung.NOTIFY)


@pytest.mark.guarantee("G3", "G7")
@pytest.mark.parametrize("loss", [gone(), RECOVER, close()])
def test_what_the_agent_was_handed_ends_with_the_agent_and_is_not_asked_again(loss: i.AnyInput) -> None:
    session = offered()
    session.take(loss)
    assert set(session.ends()) == {"p1", "p2"}
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1", "p2"]
    assert not session.state.unsettled


@pytest.mark.parametrize("is_shown", [True, False])
def test_an_offered_prompt_that_is_answered_without_a_name_joins_and_has_its_message_once(is_shown: bool) -> None:
    session = offered()
    session.take(answered("p2", None))
    assert session.found(ev.PromptInjected)[0].prompt_id == "p2"
    if is_shown:
        session.take(said("user_message", messageId="m2"))
        assert message(session, "p2").message_id == "m2"
    session.take(DONE)
    assert has_message(session, "p2")
    assert len([each for each in session.found(ev.PromptInserted) if each.prompt_id == "p2"]) == 1
    assert session.ends() == {"p1": "end_turn", "p2": "end_turn"}
