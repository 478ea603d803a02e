"""The fold: illegal events raise and change nothing, legal ones step the turn, memory stays bounded."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.unit.session.driving import AT, PERMISSION, SAMPLES, Session, answer, answered, asks, prompt, tool

from turnwire.errors import LocalProtocolError
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.limits import REMEMBERED_ANSWERS, REMEMBERED_TOOLS
from turnwire.session import events as ev
from turnwire.session.codec import encode_state
from turnwire.session.evolve import evolve, fold
from turnwire.session.state import NOTHING, Ended, PermissionRequest, Phase, SessionState, Turn, find_turn
from turnwire.session.turn import NEXT, TurnState

T1, HOST = PromptId("t1"), PromptId("host")
OPEN = SessionState(phase=Phase.OPEN, session_id=SessionId("s1"))
ABOUT_TURNS = [each for each in SAMPLES if getattr(each, "prompt_id", None) == T1]
QUESTION = PermissionRequest(PermissionId("q1"), "7", PERMISSION, ("allow",), T1)


def holding(state: TurnState) -> SessionState:
    """Return a session whose turn `t1` is in `state`."""
    turn = Turn(T1, state, content=Raw(b"[]"), waited=True)
    if state is TurnState.NEW:
        return OPEN
    if state is TurnState.ENDED:
        return replace(OPEN, last=Ended(T1, "end_turn"))
    if state is TurnState.QUEUED:
        return replace(OPEN, queue=(turn,))
    if state is TurnState.OFFERED:
        return replace(OPEN, offered=(turn,))
    if state is TurnState.JOINED:
        return replace(OPEN, turn=Turn(HOST, TurnState.RUNNING), joined=(turn,))
    return replace(OPEN, turn=turn)


def as_written(state: TurnState, event: ev.AnyEvent) -> tuple[SessionState, ev.AnyEvent]:
    """Return the state with the data that `event` needs besides its turn: an open request, or the origin of the
    turn.
    """
    session = holding(state)
    if isinstance(event, ev.PermissionResolved):
        session = replace(session, permissions=(QUESTION,))
    if isinstance(event, ev.TurnStarted) and state in {TurnState.QUEUED, TurnState.OFFERED}:
        event = replace(event, origin=ev.Origin.CLIENT)
    return session, event


def state_of(session: SessionState) -> TurnState:
    turn = find_turn(session, T1)
    return turn.state if turn is not None else TurnState.ENDED


@pytest.mark.parametrize("state", TurnState)
def test_the_fold_keeps_the_table(state: TurnState) -> None:
    for each in ABOUT_TURNS:
        session, event = as_written(state, each)
        before = encode_state(session)
        following = NEXT[state].get(type(event))
        if following is None:
            with pytest.raises(LocalProtocolError):
                evolve(session, event)
        else:
            assert state_of(evolve(session, event)) is following, event
        assert encode_state(session) == before, event


@pytest.mark.parametrize("state", TurnState)
def test_every_event_has_a_fold(state: TurnState) -> None:
    for event in SAMPLES:
        with suppress(LocalProtocolError):
            evolve(as_written(state, event)[0], event)


@pytest.mark.parametrize("origin", ev.Origin)
@pytest.mark.parametrize("state", [TurnState.NEW, TurnState.QUEUED, TurnState.JOINED, TurnState.ENDED])
def test_a_turn_begins_once_whoever_begins_it(state: TurnState, origin: ev.Origin) -> None:
    session = holding(state)
    event = ev.TurnStarted(at=AT, prompt_id=T1, origin=origin)
    if (state, origin) in {(TurnState.NEW, ev.Origin.AGENT), (TurnState.QUEUED, ev.Origin.CLIENT)}:
        assert state_of(evolve(session, event)) is TurnState.RUNNING
        return
    with pytest.raises(LocalProtocolError):
        evolve(session, event)


@pytest.mark.parametrize("state", [TurnState.RUNNING, TurnState.REQUIRES_ACTION, TurnState.CANCELLING])
@pytest.mark.parametrize("origin", ev.Origin)
def test_a_second_turn_does_not_start_while_one_is_active(state: TurnState, origin: ev.Origin) -> None:
    session = replace(holding(state), queue=(Turn(PromptId("t2"), TurnState.QUEUED),))
    with pytest.raises(LocalProtocolError):
        evolve(session, ev.TurnStarted(at=AT, prompt_id=PromptId("t2"), origin=origin))


@pytest.mark.parametrize("kind", [ev.TurnCompleted, ev.TurnFailed])
def test_a_turn_does_not_end_before_its_questions(kind: type[ev.Event]) -> None:
    session = replace(holding(TurnState.RUNNING), permissions=(QUESTION,))
    end = next(each for each in SAMPLES if type(each) is kind)
    with pytest.raises(LocalProtocolError):
        evolve(session, end)
    other = replace(session, permissions=(replace(QUESTION, prompt_id=None),))
    assert evolve(other, end).turn is None


def test_a_permission_is_resolved_once() -> None:
    resolved = next(each for each in SAMPLES if isinstance(each, ev.PermissionResolved))
    session = evolve(replace(holding(TurnState.RUNNING), permissions=(QUESTION,)), resolved)
    assert session.permissions == ()
    with pytest.raises(LocalProtocolError):
        evolve(session, resolved)


@pytest.mark.parametrize(
    "open_",
    [
        {"turn": Turn(T1, TurnState.RUNNING)},
        {"queue": (Turn(T1, TurnState.QUEUED),)},
        {"joined": (Turn(T1, TurnState.JOINED),)},
        {"permissions": (QUESTION,)},
    ],
    ids=lambda open_: next(iter(open_)),
)
def test_a_session_with_anything_open_is_unsettled_and_does_not_close(open_: dict[str, object]) -> None:
    session = replace(OPEN, **open_)
    assert session.unsettled
    with pytest.raises(LocalProtocolError):
        evolve(session, ev.SessionClosed(at=AT, reason="closed"))
    assert not OPEN.unsettled
    assert evolve(OPEN, ev.SessionClosed(at=AT, reason="closed")).phase is Phase.CLOSED


def test_a_session_is_created_once() -> None:
    created = ev.SessionCreated(at=AT, session_id=SessionId("s1"), cwd="/w")
    session = evolve(NOTHING, created)
    with pytest.raises(LocalProtocolError):
        evolve(session, created)


def test_fold_is_evolve_over_many() -> None:
    session = Session()
    session.take(prompt(), asks(), answer(), tool("a"), answered())
    assert fold(session.log, NOTHING) == session.state
    for cut in range(len(session.log) + 1):
        assert fold(session.log[cut:], fold(session.log[:cut], NOTHING)) == session.state


@pytest.mark.parametrize("status", ["completed", "in_progress"])
def test_tool_calls_of_a_turn_are_remembered_up_to_a_bound(status: str) -> None:
    session = Session()
    session.take(prompt())
    for number in range(REMEMBERED_TOOLS + 20):
        update = tool(f"tool-{number}", status)
        session.state = evolve(
            session.state,
            ev.SessionUpdated(at=AT, kind=update.peek.kind, update=update.update, prompt_id=PromptId("p1")),
        )
        assert session.state.turn is not None
        assert len(session.state.turn.tools) <= REMEMBERED_TOOLS
        assert list(session.state.turn.tools)[-1] == f"tool-{number}"


def test_a_running_tool_call_is_remembered_longer_than_a_finished_one() -> None:
    session = Session()
    session.take(prompt(), tool("slow", "in_progress"))
    session.take(*(tool(f"tool-{number}", "completed") for number in range(REMEMBERED_TOOLS)))
    assert session.state.turn is not None
    assert session.state.turn.tools["slow"] == "in_progress"
    assert "tool-0" not in session.state.turn.tools


def test_a_tool_call_keeps_its_last_status() -> None:
    session = Session()
    session.take(prompt(), tool("a", "in_progress"), tool("a", "completed"))
    assert session.state.turn is not None
    assert session.state.turn.tools == {"a": "completed"}


def test_resolved_permissions_are_remembered_up_to_a_bound() -> None:
    session = Session()
    session.take(prompt())
    for number in range(REMEMBERED_ANSWERS + 3):
        session.take(asks(f"q{number}"), answer(f"q{number}"))
    assert len(session.state.resolved) == REMEMBERED_ANSWERS
    assert session.state.resolved[-1].request_id == f"q{REMEMBERED_ANSWERS + 2}"
