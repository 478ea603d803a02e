"""A v2 agent's output: states, echoes and idles, and the idle that ends a turn."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec import Raw
from tests.unit.session.driving import (
    ERROR,
    Session,
    agent_is,
    answered,
    asks,
    cancel,
    chunk,
    marked,
    prompt,
    ready,
    refused,
    said,
    steered,
    types,
)

from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.turn import TurnState

RESPONSE, MARKER, IDLE = ev.TurnEnd.RESPONSE, ev.TurnEnd.MARKER, ev.TurnEnd.IDLE
DONE = agent_is("idle", stopReason="end_turn")


def places(session: Session) -> list[tuple[str, str | None, str | None]]:
    """Kind, turn and followed turn of every update."""
    return [(each.kind, each.prompt_id, each.after) for each in session.found(ev.SessionUpdated)]


def working() -> Session:
    """Return a v2 agent in the middle of the turn `p1`."""
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), answered("p1", None, "m1"))
    session.take(agent_is("running"))
    return session


INSERTED: list[i.AnyInput] = [
    said("user_message", messageId="m1"),
    answered("p1", None, "m1"),
    agent_is("running"),
]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_message_answer_and_running_may_come_in_any_order(order: tuple[int, ...]) -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), *(INSERTED[each] for each in order))
    assert session.ends() == {}
    session.take(chunk(), DONE)
    assert session.ends() == {"p1": "end_turn"}
    assert session.found(ev.TurnCompleted)[0].ending is ev.Ending.IDLE
    assert len([each for each in session.found(ev.SessionUpdated) if each.echo]) == 1


def test_a_repeated_idle_is_no_second_end() -> None:
    session = working()
    session.take(DONE, DONE, prompt("p2"), DONE)
    assert session.ends() == {"p1": "end_turn"}
    assert session.running() == "p2"
    assert [each.prompt_id for each in session.found(ev.TurnStarted)] == ["p1", "p2"]


def test_the_answer_to_a_v2_prompt_is_not_its_end() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), answered("p1", "end_turn", "m1"))
    assert session.ends() == {}
    assert session.take(answered("p1", "end_turn", "m1")).events == ()


def test_an_idle_before_the_agent_works_on_the_turn_is_of_the_time_before_it() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), DONE, DONE)
    assert session.ends() == {}


def test_an_idle_between_the_message_and_the_work_is_of_the_time_before() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), answered("p1", None, "m1"), DONE)
    assert session.ends() == {}
    session.take(agent_is("running"), DONE)
    assert session.ends() == {"p1": "end_turn"}


def test_work_of_the_agents_own_does_not_end_a_prompt_it_does_not_have_yet() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), agent_is("running"), chunk(), DONE)
    assert session.ends() == {}
    session.take(*INSERTED, DONE)
    assert session.ends() == {"p1": "end_turn"}


def test_a_cancel_is_confirmed_also_by_an_agent_that_had_not_begun() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), cancel())
    session.take(agent_is("idle", stopReason="cancelled"))
    assert session.ends() == {"p1": "cancelled"}


def test_the_copy_of_an_injected_prompt_is_an_echo_too() -> None:
    session = Session(IDLE, steering=True)
    session.take(prompt("p1"), *INSERTED, prompt("p2", when=i.WhenBusy.STEER))
    session.take(steered("p2", injected=True))
    session.take(said("user_message", messageId="m2"), said("user_message", messageId="m3"))
    assert [each.echo for each in session.found(ev.SessionUpdated) if each.kind == "user_message"] == [
        True,
        True,
        False,
    ]


def test_an_idle_without_a_reason_ends_the_turn_as_its_state_says() -> None:
    session = working()
    session.take(agent_is("idle"))
    assert session.ends() == {"p1": "end_turn"}
    session = working()
    session.take(cancel(), agent_is("idle"))
    assert session.ends() == {"p1": "cancelled"}


def test_an_idle_with_an_error_fails_the_turn() -> None:
    session = working()
    session.take(agent_is("idle", stopReason="error", error={"code": 1, "message": "x"}))
    end = session.found(ev.TurnFailed)[0]
    assert (end.code, end.agent_error) == ("agent_error", Raw(b'{"code":1,"message":"x"}'))


def test_an_idle_carries_the_usage_of_the_turn() -> None:
    session = working()
    session.take(agent_is("idle", stopReason="end_turn", usage={"totalTokens": 3}))
    assert session.found(ev.TurnCompleted)[0].usage == Raw(b'{"totalTokens":3}')


@pytest.mark.parametrize("state", ["unknown", "compacting"])
def test_a_state_that_is_not_known_ends_and_changes_nothing(state: str) -> None:
    session = working()
    before = session.state
    session.take(agent_is(state))
    assert session.state.turn == before.turn


@pytest.mark.parametrize("first", ["running", "requires_action"])
def test_an_agent_can_start_and_end_a_turn_without_a_prompt(first: str) -> None:
    session = Session(IDLE)
    plan = session.take(agent_is(first))
    assert types(plan.events)[0] == "turn_started"
    turn = session.state.turn
    assert turn is not None
    assert turn.origin is ev.Origin.AGENT
    assert turn.state is (TurnState.RUNNING if first == "running" else TurnState.REQUIRES_ACTION)
    session.take(chunk(), DONE, DONE)
    assert session.ends() == {turn.prompt_id: "end_turn"}
    assert places(session)[:-1] == [
        ("state_update", turn.prompt_id, None),
        ("agent_message_chunk", turn.prompt_id, None),
        ("state_update", turn.prompt_id, None),
    ]


def test_turns_that_an_agent_begins_have_names_of_their_own() -> None:
    session = Session(IDLE)
    session.take(agent_is("running"), DONE, agent_is("running"), DONE)
    assert len({each.prompt_id for each in session.found(ev.TurnStarted)}) == 2


@pytest.mark.parametrize("turn_end", [RESPONSE, MARKER])
def test_a_v1_agent_begins_no_turns(turn_end: ev.TurnEnd) -> None:
    session = Session(turn_end)
    session.take(agent_is("running"), chunk(), DONE)
    assert session.found(ev.TurnStarted) == []


def test_a_question_in_an_agents_own_turn_belongs_to_it() -> None:
    session = Session(IDLE)
    session.take(agent_is("running"), asks("q1", 1))
    assert session.found(ev.PermissionRequested)[0].prompt_id == session.running()
    session.take(DONE)
    assert session.found(ev.PermissionResolved)[0].end is ev.PermissionEnd.WITHDRAWN


def test_words_of_an_agent_that_is_not_ready_end_nothing() -> None:
    session = Session(None)
    session.take(prompt("p1"), answered("p1"), DONE, marked(ends="p1"))
    assert session.ends() == {}
    session.take(ready(), answered("p1"))
    assert session.ends() == {"p1": "end_turn"}


def test_the_agents_error_is_kept_as_it_came() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), refused("p1"))
    assert session.found(ev.TurnFailed)[0].agent_error == ERROR
