"""Child sessions: their names, the turn of their updates, and the time when their requests are resolved."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.session.driving import (
    AT,
    RECOVER,
    Session,
    agent_is,
    answer,
    answered,
    asks,
    cancel,
    chunk,
    close,
    gone,
    has_prompt,
    prompt,
    ready,
    said,
    settle,
    tool,
)

from turnwire.errors import ChildRestricted, NotFound
from turnwire.ids import AgentSessionId, ChildId
from turnwire.limits import REMEMBERED_CHILDREN
from turnwire.projections.view import ChildSession, Message, View
from turnwire.session import effects as fx
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.child_names import ids_in, renamed, session_of
from turnwire.session.state import ChildState

ONE, TWO = ChildId("s1.1"), ChildId("s1.2")


def announced(name: str = "in/ner", /, **fields: object) -> i.AgentUpdate:
    return said("subagent_update", sessionId=name, **fields)


def of(update: i.AgentUpdate, name: str = "in/ner") -> i.AgentUpdate:
    return replace(update, child=name)


def child_asks(request_id: str = "q1", agent_id: int = 1, name: str = "in/ner") -> i.AgentAsks:
    return replace(asks(request_id, agent_id), child=name)


def cancelled(child: str = ONE) -> i.CancelChild:
    return i.CancelChild(at=AT, child=ChildId(child), author="bob")


def at_work() -> Session:
    """Return a v2 agent in a turn, with one child that runs."""
    session = Session(ev.TurnEnd.IDLE)
    session.take(prompt(), has_prompt(), said("user_message", messageId="m1"), answered("p1", None, "m1"))
    session.take(agent_is("running"), announced(title="look"), of(agent_is("running")))
    assert session.running() == "p1"
    return session


def updates(session: Session) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.child, each.prompt_id) for each in session.found(ev.SessionUpdated)]


def view_of(session: Session) -> View:
    view = View()
    for each in session.log:
        view.apply(each)
    return view


def test_a_child_is_named_by_its_session_and_a_number() -> None:
    session = at_work()
    session.take(announced("b"), announced(title="again"))
    assert {name: each.child_id for name, each in session.state.children.items()} == {"in/ner": ONE, "b": TWO}
    assert [each.names for each in session.found(ev.SessionUpdated) if each.kind == "subagent_update"] == [
        {"in/ner": ONE},
        {"b": TWO},
        {"in/ner": ONE},
    ]
    assert (session_of(ONE), session_of("s1"), session_of("s.x")) == ("s1", None, None)


def test_the_words_of_a_child_are_of_the_turn_that_runs_and_change_nothing_of_it() -> None:
    session = at_work()
    turn = session.state.turn
    session.take(of(chunk("inside")), of(tool("t1")), of(agent_is("requires_action")), of(said("turn_complete")))
    assert session.state.turn == turn
    assert updates(session)[-4:] == [
        ("agent_message_chunk", ONE, "p1"),
        ("tool_call_update", ONE, "p1"),
        ("state_update", ONE, "p1"),
        ("turn_complete", ONE, "p1"),
    ]


def test_a_child_that_is_idle_does_not_end_the_turn_of_its_session() -> None:
    session = at_work()
    session.take(of(agent_is("idle", stopReason="end_turn")))
    assert session.running() == "p1"
    assert session.state.running_children == ()
    session.take(agent_is("idle", stopReason="end_turn"))
    assert session.ends() == {"p1": "end_turn"}


def test_a_child_that_runs_begins_no_turn_and_is_never_late() -> None:
    session = at_work()
    session.take(agent_is("idle", stopReason="end_turn"))
    session.take(of(agent_is("running")), of(chunk("still here")), announced(state={"state": "idle"}))
    assert session.running() is None
    assert updates(session)[-2:] == [("agent_message_chunk", ONE, None), ("subagent_update", None, None)]
    assert all(each.after is None for each in session.found(ev.SessionUpdated))


def test_a_child_does_not_speak_for_a_prompt_that_its_agent_has_not_taken() -> None:
    session = at_work()
    session.take(agent_is("idle", stopReason="end_turn"), prompt("p2"), has_prompt("p2"), of(chunk("from before")))
    assert updates(session)[-1] == ("agent_message_chunk", ONE, None)
    assert not any(isinstance(each, ev.UserMessage) and each.prompt_id == "p2" for each in session.log)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"state": {"state": "running"}}, ChildState.RUNNING),
        ({"state": {"state": "requires_action"}}, ChildState.REQUIRES_ACTION),
        ({"state": {"state": "idle"}}, ChildState.IDLE),
        ({"state": {"state": "_own"}}, ChildState.RUNNING),
        ({"state": {"state": "unknown"}}, ChildState.UNKNOWN),
        ({"state": None}, ChildState.UNKNOWN),
        ({}, ChildState.RUNNING),
    ],
)
def test_an_announcement_is_a_patch(told: dict[str, object], state: ChildState) -> None:
    session = at_work()
    session.take(announced(**told))
    assert session.state.children["in/ner"].state is state


def test_what_a_child_may_be_asked_is_what_was_announced_last() -> None:
    session = at_work()
    session.refuses(cancelled(), ChildRestricted)
    session.take(announced(capabilities={"cancel": {}}), announced(title="other"))
    session.take(cancelled())
    assert session.effects_of(fx.CancelChildWork) == [fx.CancelChildWork("in/ner")]
    assert session.running() == "p1"
    session.take(announced(capabilities=None))
    session.refuses(cancelled(), ChildRestricted)
    session.refuses(cancelled("s1.9"), NotFound)


def test_a_child_at_rest_is_not_cancelled() -> None:
    session = at_work()
    session.take(announced(capabilities={"cancel": {}}, state={"state": "idle"}))
    assert session.take(cancelled()).events == ()


def resolutions(session: Session) -> list[tuple[str, str]]:
    return [(each.request_id, each.end.value) for each in session.found(ev.PermissionResolved)]


def test_what_a_child_asks_says_which_child_and_is_answered_like_any_other() -> None:
    session = at_work()
    session.take(child_asks())
    assert [each.child for each in session.found(ev.PermissionRequested)] == [ONE]
    session.take(answer())
    assert resolutions(session) == [("q1", "answered")]


@pytest.mark.parametrize(
    ("then", "end"),
    [
        (cancel(), "cancelled"),
        (settle("p1"), "withdrawn"),
        (gone(), "withdrawn"),
        (RECOVER, "withdrawn"),
        (close(), "cancelled"),
        (of(agent_is("idle")), "withdrawn"),
        (announced(state={"state": "idle"}), "withdrawn"),
    ],
    ids=["cancel", "settle", "gone", "restart", "close", "rest", "mirrored rest"],
)
def test_what_a_child_asks_is_resolved_once(then: i.AnyInput, end: str) -> None:
    session = at_work()
    session.take(child_asks(), then)
    assert resolutions(session) == [("q1", end)]
    assert session.state.permissions == ()


def test_a_child_may_go_on_asking_after_the_turn_of_its_session() -> None:
    session = at_work()
    session.take(child_asks(), asks("q2", 2), agent_is("idle", stopReason="end_turn"))
    assert resolutions(session) == [("q2", "withdrawn")]
    assert session.ends() == {"p1": "end_turn"}
    assert session.state.unsettled
    session.take(answer("q1"))
    assert resolutions(session)[-1] == ("q1", "answered")
    assert session.found(ev.PermissionResolved)[-1].prompt_id is None


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ((cancel(), agent_is("idle", stopReason="cancelled")), "cancelled"),
        ((gone(),), "failed"),
        ((agent_is("idle", stopReason="end_turn"), gone()), "failed"),
        ((agent_is("idle", stopReason="end_turn"), RECOVER), "failed"),
    ],
    ids=["cancel", "gone", "gone after the turn", "restart after the turn"],
)
def test_calls_that_a_child_left_open_are_closed_with_those_of_its_session(
    then: tuple[i.AnyInput, ...], status: str
) -> None:
    session = at_work()
    session.take(of(tool("t1", "in_progress")), of(tool("t2")), of(tool("t2", "completed")), *then)
    closed = [each for each in session.found(ev.SessionUpdated) if b'"closed"' in bytes(each.update)]
    assert [(each.child, msgspec.json.decode(each.update)["toolCallId"]) for each in closed] == [(ONE, "t1")]
    assert msgspec.json.decode(closed[0].update)["status"] == status
    assert session.state.children["in/ner"].tools == ()


def test_a_child_that_is_listed_outlives_a_cancel_with_its_calls() -> None:
    session = at_work()
    session.take(of(tool("t1", "in_progress")))
    session.take(agent_is("running", background=[{"type": "subagent", "sessionId": "in/ner"}]))
    session.take(cancel(), agent_is("idle", stopReason="cancelled"))
    assert session.state.children["in/ner"].tools == ("t1",)


def test_a_cancelled_child_is_not_asked_for_any_more() -> None:
    session = at_work()
    session.take(announced(capabilities={"cancel": {}}), announced("b"), child_asks(), child_asks("q2", 2, "b"))
    session.take(cancelled())
    assert resolutions(session) == [("q1", "cancelled")]


def test_nobody_knows_what_the_children_of_a_lost_agent_do() -> None:
    for lost in (gone(), RECOVER, close()):
        session = at_work()
        session.take(lost)
        assert session.state.running_children == ()
        assert session.state.children["in/ner"].state is ChildState.UNKNOWN
        assert view_of(session).children[ONE].record.state is ChildState.UNKNOWN


@pytest.mark.parametrize(("how", "known"), [("resume", ONE), ("load", ONE), ("lost", TWO), ("new", TWO)])
def test_an_id_that_comes_again_is_the_same_child_if_the_agent_has_its_session_back(how: str, known: str) -> None:
    session = at_work()
    session.take(gone(), replace(ready(ev.TurnEnd.IDLE), how=how), announced())
    assert session.state.children["in/ner"].child_id == known


def test_another_session_of_the_agent_has_other_children() -> None:
    session = at_work()
    other = replace(ready(ev.TurnEnd.IDLE), how="resume", agent_session_id=AgentSessionId("a2"))
    session.take(gone(), other)
    assert session.state.children == {}


def test_no_more_children_are_remembered_than_there_is_room_for_and_no_id_is_given_twice() -> None:
    session = at_work()
    for number in range(REMEMBERED_CHILDREN):
        session.take(announced(f"c{number}"))
    assert len(session.state.children) == REMEMBERED_CHILDREN
    assert "in/ner" in session.state.children, "one that runs is not the first to be forgotten"
    assert "c0" not in session.state.children
    session.take(of(chunk(), "c0"))
    assert session.found(ev.SessionUpdated)[-1].child == f"s1.{REMEMBERED_CHILDREN + 2}"


def test_ids_are_ours_wherever_an_update_names_sessions() -> None:
    names = {"x": "s1.1", "a1": "s1"}
    for kind, update, told in (
        ("subagent_update", {"sessionId": "x", "title": "t"}, {"sessionId": "s1.1", "title": "t"}),
        (
            "subagent_update",
            {"sessionId": "x", "state": {"state": "idle", "background": [{"type": "subagent", "sessionId": "x"}]}},
            {
                "sessionId": "s1.1",
                "state": {"state": "idle", "background": [{"type": "subagent", "sessionId": "s1.1"}]},
            },
        ),
        (
            "state_update",
            {"background": [{"type": "terminal", "terminalId": "x"}, {"type": "subagent", "sessionId": "x"}]},
            {"background": [{"type": "terminal", "terminalId": "x"}, {"type": "subagent", "sessionId": "s1.1"}]},
        ),
        (
            "session_message",
            {"messageId": "x", "senderSessionId": "a1", "recipientSessionId": "x"},
            {"messageId": "x", "senderSessionId": "s1", "recipientSessionId": "s1.1"},
        ),
        ("session_message", {"senderSessionId": "stranger"}, {"senderSessionId": "stranger"}),
        ("agent_message", {"sessionId": "x"}, {"sessionId": "x"}),
    ):
        body = said(kind, **update).update
        assert msgspec.json.decode(renamed(kind, body, names)) == {"sessionUpdate": kind, **told}
    assert ids_in("state_update", said("state_update", background=3).update) == []


def test_the_log_knows_whom_a_message_between_sessions_is_from() -> None:
    session = at_work()
    session.take(said("session_message", messageId="m", senderSessionId="a1", recipientSessionId="in/ner"))
    assert session.found(ev.SessionUpdated)[-1].names == {"a1": "s1", "in/ner": ONE}


def test_a_session_that_announces_itself_has_no_child() -> None:
    session = at_work()
    session.take(announced("a1"))
    assert list(session.state.children) == ["in/ner"]
    assert list(view_of(session).children) == [ONE]


def test_the_view_has_a_child_where_it_was_announced_and_its_words_beside() -> None:
    session = at_work()
    session.take(chunk("before"), of(announced("deep", description="d", cwd="/x")), of(chunk("inside")))
    session.take(of(chunk("deeper"), "deep"), announced(title=None, capabilities={"cancel": {}}))
    view = view_of(session)
    outer, inner = view.children[ONE], view.children[TWO]
    assert [type(each).__name__ for each in view.items] == ["Message", "ChildSession", "Message"]
    assert [each.child_id for each in outer.view.items if isinstance(each, ChildSession)] == [TWO]
    assert [each.content for each in inner.view.items if isinstance(each, Message)] == [
        [msgspec.Raw(b'{"type":"text","text":"deeper"}')]
    ]
    assert (inner.record.parent_id, inner.record.cwd, inner.record.description) == (ONE, "/x", "d")
    assert (outer.record.title, outer.record.can_cancel, outer.record.prompt_id) == (None, True, "p1")
    assert view.result_text(view.turns["p1"].prompt_id) is not None  # pyright: ignore[reportArgumentType]
