"""After a restart: from every state the log can hold, every obligation is recorded once and the queue continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.session.driving import (
    AT,
    RECOVER,
    Session,
    agent_is,
    answered,
    asks,
    cancel,
    chunk,
    close,
    deadline,
    gone,
    prompt,
    ready,
    steered,
    types,
)

from turnwire.ids import ClientId
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.codec import decode, encode
from turnwire.session.decide import decide
from turnwire.session.effects import AnswerAgent, AskAgent
from turnwire.session.evolve import fold
from turnwire.session.queue import STOPPING
from turnwire.session.state import NOTHING

STEER = i.WhenBusy.STEER
ATTACH = i.Attach(at=AT, client_id=ClientId("c1"))


def session_after(*inputs: i.AnyInput, turn_end: ev.TurnEnd | None = ev.TurnEnd.RESPONSE) -> Session:
    session = Session(turn_end, steering=True)
    session.take(*inputs)
    return session


LEFT: dict[str, Callable[[], Session]] = {
    "nothing": lambda: session_after(turn_end=None),
    "an agent": lambda: session_after(),
    "a client": lambda: session_after(ATTACH),
    "running": lambda: session_after(ATTACH, prompt("p1"), chunk()),
    "running without an agent": lambda: session_after(prompt("p1"), turn_end=None),
    "requires action": lambda: session_after(prompt("p1"), asks("q1", 1), asks("q2", 2)),
    "cancelling": lambda: session_after(prompt("p1"), cancel()),
    "escalated": lambda: session_after(prompt("p1"), cancel(), deadline("p1", ev.CancelRung.NOTIFY)),
    "a question outside a turn": lambda: session_after(asks("q1", 1)),
    "joined": lambda: session_after(prompt("p1"), prompt("s1", when=STEER), steered("s1", injected=True)),
    "steering": lambda: session_after(prompt("p1"), prompt("s1", when=STEER)),
    "steering alone": lambda: session_after(prompt("p1"), prompt("s1", when=STEER), answered("p1")),
    "waiting": lambda: session_after(prompt("p1"), prompt("p2"), prompt("p3")),
    "an agent's own turn": lambda: session_after(agent_is("running"), turn_end=ev.TurnEnd.IDLE),
    "ended": lambda: session_after(prompt("p1"), answered("p1")),
    "a lost agent": lambda: session_after(prompt("p1"), prompt("p2"), gone()),
    "closed": lambda: session_after(prompt("p1"), close()),
}
left = pytest.mark.parametrize("begin", LEFT.values(), ids=LEFT.keys())


@pytest.mark.guarantee("G3")
@left
def test_recovery_ends_what_was_active_and_starts_what_waited(begin: Callable[[], Session]) -> None:
    session = begin()
    before, waiting, asked = session.state, session.waiting(), len(session.effects_of(AskAgent))
    ended = dict(session.ends())
    session.take(RECOVER)
    owed = {each.prompt_id for each in (before.turn, *before.joined) if each}
    assert set(session.ends()) == set(ended) | owed
    for prompt_id in owed:
        cancelled = before.turn is not None and before.turn.cancelled_by is not None
        assert session.ends()[prompt_id] == ("cancelled" if cancelled else "daemon_restarted")
    assert session.running() == next(iter(waiting), None)
    assert session.waiting() == waiting[1:]
    assert len(session.effects_of(AskAgent)) - asked == (1 if waiting else 0)
    assert (session.state.permissions, session.state.agent) == ((), None)
    assert session.state.clients == before.clients, "clients come back with the ids they have"


@left
def test_recovery_answers_nobody_who_is_gone(begin: Callable[[], Session]) -> None:
    session = begin()
    answers = len(session.effects_of(AnswerAgent))
    session.take(RECOVER)
    assert len(session.effects_of(AnswerAgent)) == answers


@left
def test_recovering_again_owes_nothing_more_once_the_queue_is_empty(begin: Callable[[], Session]) -> None:
    session = begin()
    for _ in range(1 + len(session.state.queue)):
        session.take(RECOVER)
    assert not session.state.unsettled
    plan = session.take(RECOVER)
    assert (plan.events, plan.effects) == ((), ())


@left
def test_recovery_from_the_log_is_recovery_from_memory(begin: Callable[[], Session]) -> None:
    session = begin()
    read = fold((decode(encode(each)) for each in session.log), NOTHING)
    again = decide(read, RECOVER, offset=len(session.log), limits=session.limits)
    assert again == decide(session.state, RECOVER, offset=len(session.log), limits=session.limits)


@left
def test_a_session_that_is_settled_has_no_turn_to_recover(begin: Callable[[], Session]) -> None:
    session = begin()
    unsettled = session.state.unsettled
    plan = session.take(RECOVER)
    about_turns = [each for each in plan.events if not isinstance(each, ev.AgentExited)]
    assert bool(about_turns) is unsettled


def test_what_recovery_records_says_that_it_was_a_restart() -> None:
    session = LEFT["running"]()
    plan = session.take(RECOVER)
    assert types(plan.events) == ["agent_exited", "turn_error"]
    exited = session.found(ev.AgentExited)[0]
    assert (exited.reason, exited.message) == ("daemon_restarted", "the daemon was restarted while the turn ran")


def test_what_the_recovery_of_a_lost_node_records_says_so() -> None:
    session = LEFT["running"]()
    session.take(i.Recover(at=AT, code="node_lost"))
    exited = session.found(ev.AgentExited)[0]
    assert (exited.reason, session.ends()) == ("node_lost", {"p1": "node_lost"})
    assert exited.message == "the node that had the session was lost while the turn ran"


def test_a_restart_between_turns_is_not_told_as_one_during_a_turn() -> None:
    session = LEFT["ended"]()
    session.take(RECOVER)
    assert session.found(ev.AgentExited)[0].message == "the daemon was restarted"


@pytest.mark.guarantee("G7")
def test_a_queue_that_was_held_for_the_stop_goes_on_and_one_that_a_user_held_does_not() -> None:
    stopped, asked = (session_after(prompt("p1"), prompt("p2")) for _ in range(2))
    stopped.take(i.HoldQueue(at=AT, reason=STOPPING), gone(), RECOVER)
    assert (stopped.running(), stopped.state.held) == ("p2", None)
    asked.take(i.HoldQueue(at=AT), i.HoldQueue(at=AT, reason=STOPPING), gone(), RECOVER)
    assert (asked.running(), asked.waiting(), asked.state.held) == (None, ["p2"], "asked")


def test_an_answer_of_the_old_life_does_not_end_the_new_turn() -> None:
    session = LEFT["waiting"]()
    session.take(RECOVER, ready(), answered("p1"))
    assert session.running() == "p2"
    session.take(answered("p2"))
    assert session.ends() == {"p1": "daemon_restarted", "p2": "end_turn"}
    assert session.running() == "p3"


@pytest.mark.guarantee("G7")
def test_every_waiting_prompt_gets_its_end_even_if_every_start_crashes() -> None:
    session = LEFT["waiting"]()
    session.take(RECOVER, RECOVER, RECOVER)
    assert session.ends() == dict.fromkeys(["p1", "p2", "p3"], "daemon_restarted")
