"""The agent's output: every update once, in its turn, after it or outside; and the updates that end a turn."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.unit.session.driving import (
    RECOVER,
    REPLAYED,
    Session,
    agent_is,
    answered,
    asks,
    cancel,
    chunk,
    close,
    gone,
    has_prompt,
    marked,
    overdue,
    prompt,
    refused,
    said,
    settle,
    tool,
    types,
)

from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.decide import decide
from turnwire.session.effects import AwaitAnswer
from turnwire.session.speech import RESPONSE_S

RESPONSE, MARKER, IDLE = ev.TurnEnd.RESPONSE, ev.TurnEnd.MARKER, ev.TurnEnd.IDLE
DONE = agent_is("idle", stopReason="end_turn")
P1 = PromptId("p1")
USAGE = Raw(b'{"totalTokens":3}')


def places(session: Session) -> list[tuple[str, str | None, str | None]]:
    """Kind, turn and followed turn of every update."""
    return [(each.kind, each.prompt_id, each.after) for each in session.found(ev.SessionUpdated)]


def working() -> Session:
    """Return a v2 agent in the middle of the turn `p1`."""
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), answered("p1", None, "m1"))
    session.take(agent_is("running"))
    return session


# -- where an update belongs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("turn_end", ev.TurnEnd)
@pytest.mark.parametrize("kind", ["agent_message_chunk", "plan", "usage_update", "no_such_kind", "tool_call"])
def test_output_of_a_running_turn_belongs_to_it_and_is_kept_byte_for_byte(turn_end: ev.TurnEnd, kind: str) -> None:
    session = Session(turn_end)
    given = said(kind, odd=1.5, toolCallId="a")
    session.take(prompt("p1"), given)
    [update] = session.found(ev.SessionUpdated)
    assert (update.kind, update.prompt_id, update.after) == (kind, "p1", None)
    assert bytes(update.update) == bytes(given.update)


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("kind", ["session_info_update", "agent_message_chunk", "tool_call_update"])
def test_output_after_the_end_is_kept_and_marked_late(kind: str) -> None:
    session = Session()
    session.take(prompt("p1"), answered("p1"))
    state = session.state
    plan = session.take(said(kind, toolCallId="a"))
    assert types(plan.events) == ["session_update"]
    assert places(session) == [(kind, None, "p1")]
    assert session.state == state


@pytest.mark.guarantee("G4")
def test_late_output_of_a_tool_is_told_from_the_next_turns_own() -> None:
    session = Session()
    session.take(prompt("p1"), tool("old"), answered("p1"), prompt("p2"))
    session.take(tool("old", "completed"), tool("new"), tool("old"))
    assert places(session)[1:] == [
        ("tool_call_update", None, "p1"),
        ("tool_call_update", "p2", None),
        ("tool_call_update", None, "p1"),
    ]


def test_a_tool_id_that_the_next_turn_uses_again_is_its_own() -> None:
    session = Session()
    session.take(prompt("p1"), tool("a"), answered("p1"), prompt("p2"))
    assert session.state.turn is not None
    session.state = replace(session.state, turn=replace(session.state.turn, tools={"a": "pending"}))
    plan = i.AgentUpdate(at=1, update=tool("a").update, peek=tool("a").peek)
    found = decide(session.state, plan, offset=len(session.log), limits=session.limits).events[0]
    assert isinstance(found, ev.SessionUpdated)
    assert (found.prompt_id, found.after) == ("p2", None)


def test_output_before_the_first_turn_belongs_to_none() -> None:
    session = Session()
    session.take(said("available_commands_update"))
    assert places(session) == [("available_commands_update", None, None)]


def test_background_output_while_idle_leaves_the_state_as_it_is() -> None:
    session = working()
    session.take(agent_is("idle", stopReason="end_turn", background=[{"toolCallId": "b"}]))
    state = session.state
    session.take(tool("b", "in_progress"))
    assert session.state == state
    session.take(tool("b", "completed"))
    assert (session.running(), session.state.last, session.state.work) == (None, state.last, ())
    assert places(session)[-2:] == [("tool_call_update", None, None)] * 2


def test_background_output_during_a_turn_is_not_of_the_turn() -> None:
    session = working()
    session.take(agent_is("running", background=[{"toolCallId": "b"}, {"terminalId": "t"}]))
    session.take(tool("b"), said("terminal_output_chunk", terminalId="t"), tool("own"))
    assert [turn for _, turn, _ in places(session)[-3:]] == [None, None, "p1"]
    session.take(agent_is("running", background=[]), tool("b"))
    assert places(session)[-1][1] == "p1"


def test_background_work_ends_with_its_agent() -> None:
    session = working()
    session.take(agent_is("running", background=[{"toolCallId": "b"}]), gone())
    assert session.state.background == frozenset()


# -- the agent's copy of the prompt --------------------------------------------------------------------------


@pytest.mark.parametrize("turn_end", ev.TurnEnd)
def test_the_agents_copy_of_the_prompt_is_marked_as_echo(turn_end: ev.TurnEnd) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"), said("user_message_chunk", messageId="m1"))
    session.take(said("user_message_chunk", messageId="m1"), said("user_message", messageId="m2"))
    assert [each.echo for each in session.found(ev.SessionUpdated)] == [True, True, False]


def test_a_copy_without_an_id_is_an_echo_too() -> None:
    session = Session()
    session.take(prompt("p1"), said("user_message_chunk"), said("user_message_chunk"))
    assert [each.echo for each in session.found(ev.SessionUpdated)] == [True, True]


def test_a_user_message_outside_a_clients_turn_is_no_echo() -> None:
    session = Session(IDLE)
    session.take(said("user_message", messageId="m0"), agent_is("running"))
    session.take(said("user_message", messageId="m1"), DONE, said("user_message", messageId="m1"))
    assert not any(each.echo for each in session.found(ev.SessionUpdated))


def test_the_answer_of_a_v2_agent_names_the_message_that_will_be_the_echo() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), answered("p1", None, "m1"), said("user_message", messageId="m0"))
    session.take(said("user_message", messageId="m1"))
    assert [each.echo for each in session.found(ev.SessionUpdated)] == [False, True]
    assert [each.agent_message_id for each in session.found(ev.PromptInserted)] == ["m1"]


@pytest.mark.parametrize("turn_end", ev.TurnEnd)
def test_a_prompt_that_was_sent_is_recorded_with_the_agents_request_id(turn_end: ev.TurnEnd) -> None:
    session = Session(turn_end)
    session.take(prompt("p1"), prompt("p2"), has_prompt("p1", "4"))
    assert [(each.prompt_id, each.agent_request_id) for each in session.found(ev.PromptSent)] == [("p1", "4")]
    assert session.take(has_prompt("p2")).events == ()
    session.take(refused("p1"))
    assert session.take(has_prompt("p1")).events == ()


def test_a_replayed_history_is_shown_and_changes_nothing() -> None:
    session = Session()
    session.take(prompt("p1"))
    state = session.state
    plan = session.take(REPLAYED)
    assert types(plan.events) == ["history_compared"]
    assert session.state == state


# -- v1 ------------------------------------------------------------------------------------------------------


def test_a_v1_agent_ends_its_turn_by_the_answer_only() -> None:
    session = Session(RESPONSE)
    session.take(prompt("p1"), marked(ends="p1"), agent_is("running"), DONE)
    assert session.ends() == {}
    session.take(answered("p2"), refused("p2"))
    assert session.ends() == {}
    session.take(answered("p1"))
    assert session.ends() == {"p1": "end_turn"}


@pytest.mark.parametrize("kind", ["turn_complete", "_turn_complete"])
@pytest.mark.parametrize("names", [True, False])
def test_the_marker_ends_the_turn_and_the_answer_only_adds_what_was_used(kind: str, names: bool) -> None:
    session = Session(MARKER)
    plan = session.take(prompt("p1"), chunk(), marked("max_tokens", ends="p1" if names else None, kind=kind))
    assert plan.effects == (AwaitAnswer(P1, RESPONSE_S),)
    assert places(session)[-1] == (kind, "p1", None)
    session.take(replace(answered("p1", "refusal"), usage=USAGE))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.ending, end.usage) == ("max_tokens", ev.Ending.MARKER, USAGE)


def test_usage_of_an_answer_that_comes_before_the_marker_is_kept() -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), replace(answered("p1"), usage=USAGE), marked("max_tokens", ends="p1"))
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.usage) == ("max_tokens", USAGE)


def test_a_marker_that_says_what_was_used_waits_for_nothing() -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), said("turn_complete", stopReason="end_turn", usage={"totalTokens": 3}))
    assert session.ends() == {"p1": "end_turn"}
    assert session.found(ev.TurnCompleted)[0].usage == USAGE


@pytest.mark.guarantee("G3", "G4")
@pytest.mark.parametrize("second", [chunk(), asks(), gone(), cancel(), settle("p1"), close(), RECOVER, overdue()])
def test_whatever_else_comes_behind_a_marker_finds_the_turn_ended(second: i.AnyInput) -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), marked("max_tokens", ends="p1"), second)
    [end] = session.found(ev.TurnCompleted)
    assert (end.stop_reason, end.ending, end.cancelled_by) == ("max_tokens", ev.Ending.MARKER, None)
    assert {each.prompt_id for each in session.found(ev.SessionUpdated)[1:]} <= {None}
    assert session.found(ev.TurnFailed) == []
    assert [each.prompt_id for each in session.found(ev.PermissionRequested)] in ([], [None])


def test_a_marker_of_an_agent_that_did_not_offer_it_ends_nothing() -> None:
    session = Session(RESPONSE)
    session.take(prompt("p1"), marked("end_turn"), chunk())
    assert session.running() == "p1"


def test_an_answer_and_a_marker_that_both_give_no_reason_are_an_error() -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), answered("p1", None), marked(None, ends="p1"))
    assert session.ends() == {"p1": "agent_error"}


def test_an_answer_before_the_marker_is_not_the_end() -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), answered("p1"), chunk())
    assert session.ends() == {}
    session.take(marked(ends="p1"))
    assert session.ends() == {"p1": "end_turn"}
    assert {turn for _, turn, _ in places(session)} == {"p1"}


@pytest.mark.parametrize(
    ("word", "end"),
    [
        (refused("p1"), "agent_error"),
        (answered("p1", None), "agent_error"),
        (answered("p1", "refusal"), "refusal"),
    ],
)
def test_a_marker_without_a_reason_leaves_the_end_to_the_answer(word: i.AnyInput, end: str) -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), marked(None, ends="p1"))
    assert session.ends() == {}
    session.take(word)
    assert session.ends() == {"p1": end}


@pytest.mark.parametrize("reason", ["end_turn", None])
@pytest.mark.parametrize("named", ["p1", ""])
def test_a_marker_for_another_prompt_is_late_and_ends_nothing(reason: str | None, named: str) -> None:
    session = Session(MARKER)
    session.take(prompt("p1"), settle("p1"), prompt("p2"), marked(reason, ends=named))
    assert session.running() == "p2"
    assert places(session) == [("turn_complete", None, "p1")]
    session.take(answered("p2"), marked(reason, ends=named))
    assert session.ends() == {"p1": "end_turn"}
    session.take(marked("refusal", ends="p2"))
    assert session.ends() == {"p1": "end_turn", "p2": "refusal"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (answered("p1", None), "the agent answered the prompt without a stop reason"),
        (refused("p1"), "the agent answered the prompt with an error"),
    ],
)
def test_an_answer_without_a_stop_reason_is_not_called_an_error(word: i.AnyInput, message: str) -> None:
    session = Session()
    session.take(prompt("p1"), word)
    [end] = [each for each in session.log if isinstance(each, ev.TurnFailed)]
    assert (end.code, end.message) == ("agent_error", message)


def test_an_error_answer_ends_the_turn_in_every_dialect() -> None:
    for turn_end in ev.TurnEnd:
        session = Session(turn_end)
        session.take(prompt("p1"), refused("p1"))
        assert session.ends() == {"p1": "agent_error"}
