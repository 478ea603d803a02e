"""Background work: its definition, its duration, and its end when its agent exits."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.unit.session.driving import (
    AT,
    RECOVER,
    Session,
    agent_is,
    answered,
    cancel,
    close,
    gone,
    prompt,
    ready,
    said,
    tool,
    types,
)

from turnwire.limits import REMEMBERED_TOOLS
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.background import Work, ids, read_list, still_running
from turnwire.session.ending import NODE_LOST, RESTARTED
from turnwire.session.queue import PLACE_GONE, STOPPING
from turnwire.wire.peek import peek_update

IDLE = ev.TurnEnd.IDLE
HOUR_MS = 3_600_000


def left_open(*tools: str, turn_end: ev.TurnEnd = ev.TurnEnd.RESPONSE) -> Session:
    """Return a session whose turn has ended with calls in progress."""
    session = Session(turn_end)
    session.take(prompt("p1"))
    if turn_end is IDLE:
        session.take(said("user_message", messageId="m1"), agent_is("running"))
    session.take(*(tool(each, "in_progress") for each in tools))
    session.take(agent_is("idle", stopReason="end_turn") if turn_end is IDLE else answered("p1"))
    return session


def closed(session: Session, since: int) -> list[tuple[str | None, str | None]]:
    updates = [each for each in session.log[since:] if isinstance(each, ev.SessionUpdated)]
    seen = [peek_update(each.update) for each in updates if each.kind == "tool_call_update"]
    return [(each.tool_call_id, each.status) for each in seen]


# -- what it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "work"),
    [
        (b"[]", ()),
        (
            b'[{"type":"tool_call","toolCallId":"a"},{"terminalId":"b"},{"sessionId":"c"}]',
            (Work("tool_call", "a"), Work("terminal", "b"), Work("subagent", "c")),
        ),
        (b'[{"type":"_job","n":1},{"toolCallId":1},{}]', (Work("_job"), Work("unknown"), Work("unknown"))),
        (b'{"toolCallId":"a"}', None),
        (b"[1]", None),
        (b"null", None),
    ],
)
def test_a_list_names_its_work_and_a_malformed_one_reports_nothing(
    listed: bytes, work: tuple[Work, ...] | None
) -> None:
    assert read_list(Raw(listed)) == work


def test_work_of_a_kind_that_nobody_knows_still_counts_as_running() -> None:
    session = Session(IDLE)
    session.take(agent_is("idle", background=[{"type": "_job"}, {"type": "tool_call", "toolCallId": "t"}]))
    assert session.state.work == (Work("_job"), Work("tool_call", "t"))
    assert ids(session.state.work) == {"t"}
    assert still_running(session.state.work, AT + 100 * HOUR_MS) == session.state.work


@pytest.mark.parametrize("background", [None, "no list", [1]])
def test_a_state_that_reports_nothing_leaves_what_was_listed(background: object) -> None:
    session = Session(IDLE)
    listed = [{"type": "terminal", "terminalId": "t"}]
    session.take(agent_is("idle", background=listed), agent_is("idle", background=background), agent_is("idle"))
    assert session.state.work == (Work("terminal", "t"),)
    session.take(agent_is("idle", background=[]))
    assert session.state.work == ()


@pytest.mark.parametrize("turn_end", [ev.TurnEnd.RESPONSE, IDLE])
def test_a_call_in_progress_at_the_end_of_its_turn_is_work_of_an_agent_that_lists_none(
    turn_end: ev.TurnEnd,
) -> None:
    session = left_open("t1", "t2", turn_end=turn_end)
    session.take(tool("t2", "completed"))
    assert session.state.work == (Work("tool_call", "t1", AT),)
    assert session.state.background == frozenset()
    session.take(tool("t1", "failed"))
    assert session.state.work == ()


def test_a_call_that_waits_or_has_ended_at_the_end_of_its_turn_is_no_work() -> None:
    session = Session()
    session.take(prompt("p1"), tool("waits"), tool("done", "completed"), answered("p1"))
    assert session.state.work == ()


def test_of_an_agent_that_lists_its_work_only_that_runs() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), agent_is("running", background=[]))
    session.take(tool("t1", "in_progress"), agent_is("idle", stopReason="end_turn", background=[]))
    assert session.state.work == ()


def test_a_cancelled_turn_leaves_no_work_that_was_not_listed() -> None:
    session = Session()
    session.take(prompt("p1"), tool("t1", "in_progress"), cancel(), answered("p1", "cancelled"))
    assert session.state.work == ()


# -- for how long --------------------------------------------------------------------------------------------


def test_work_that_is_not_listed_counts_for_a_while_after_the_last_word_about_it() -> None:
    session = left_open("t1")
    assert still_running(session.state.work, AT + HOUR_MS - 1)
    assert not still_running(session.state.work, AT + HOUR_MS)
    session.take(replace(tool("t1", "in_progress"), at=AT + HOUR_MS))
    session.take(replace(said("tool_call_content_chunk", toolCallId="t1", content={}), at=AT + HOUR_MS + 5))
    assert still_running(session.state.work, AT + 2 * HOUR_MS) == (Work("tool_call", "t1", AT + HOUR_MS + 5),)


def test_work_goes_on_through_the_turns_that_follow() -> None:
    session = left_open("t1")
    session.take(prompt("p2"), tool("t2", "in_progress"), answered("p2"), prompt("p3"), answered("p3"))
    assert ids(session.state.work) == {"t1", "t2"}


def test_calls_that_are_left_open_are_remembered_up_to_a_bound() -> None:
    session = Session()
    for number in range(3):
        session.take(prompt(f"p{number}"))
        session.take(*(tool(f"t{number}-{each}", "in_progress") for each in range(100)), answered(f"p{number}"))
    assert len(session.state.work) == REMEMBERED_TOOLS
    assert session.state.work[-1].id == "t2-99"


# -- how it ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "end"), [(gone(), "agent_exited"), (RECOVER, "agent_exited")])
def test_with_its_agent_all_work_is_over_and_its_calls_are_closed(word: i.AnyInput, end: str) -> None:
    session = left_open("t1")
    before = len(session.log)
    plan = session.take(word)
    assert types(plan.events) == [end, "session_update"]
    assert closed(session, before) == [("t1", "failed")]
    session.take(ready())
    assert session.state.work == ()


def test_listed_calls_are_closed_with_their_agent_and_terminals_are_not_calls() -> None:
    session = Session(IDLE)
    listed = [{"type": "tool_call", "toolCallId": "b"}, {"type": "terminal", "terminalId": "t"}, {"type": "_job"}]
    session.take(tool("b", "in_progress"), agent_is("idle", background=listed))
    before = len(session.log)
    session.take(gone())
    assert closed(session, before) == [("b", "failed")]
    assert session.state.work == ()


def test_a_call_of_the_running_turn_that_is_also_listed_is_closed_once() -> None:
    session = Session(IDLE)
    session.take(prompt("p1"), said("user_message", messageId="m1"), tool("b", "in_progress"))
    session.take(agent_is("running", background=[{"type": "tool_call", "toolCallId": "b"}]))
    before = len(session.log)
    session.take(gone())
    assert closed(session, before) == [("b", "failed")]


@pytest.mark.parametrize(("turn_end", "status"), [(ev.TurnEnd.RESPONSE, "failed"), (IDLE, "cancelled")])
def test_closing_the_session_stops_all_of_it(turn_end: ev.TurnEnd, status: str) -> None:
    session = left_open("t1", turn_end=turn_end)
    before = len(session.log)
    plan = session.take(close())
    assert types(plan.events)[-1] == "session_closed"
    assert closed(session, before) == [("t1", status)]
    assert session.state.work == ()


# -- prompts that a restart finds ----------------------------------------------------------------------------

HOLDING = i.Recover(at=AT, holds=RESTARTED)


def waiting() -> Session:
    session = Session()
    session.take(prompt("p1"), prompt("p2"), prompt("p3"))
    return session


def test_a_restart_lets_the_queue_go_on() -> None:
    session = waiting()
    session.take(RECOVER)
    assert (session.running(), session.waiting(), session.state.held) == ("p2", ["p3"], None)


@pytest.mark.parametrize("was_stopped", [True, False])
def test_a_restart_that_holds_starts_nothing_until_it_is_released(was_stopped: bool) -> None:
    session = waiting()
    if was_stopped:
        session.take(i.HoldQueue(at=AT, reason=STOPPING))
    session.take(HOLDING)
    assert (session.running(), session.waiting(), session.state.held) == (None, ["p2", "p3"], RESTARTED)
    assert session.ends() == {"p1": "daemon_restarted"}
    session.take(prompt("p4"))
    assert session.waiting() == ["p2", "p3", "p4"]
    session.take(i.ReleaseQueue(at=AT, author="ann"))
    assert (session.running(), session.state.held) == ("p2", None)


def test_a_restart_that_holds_leaves_an_empty_queue_and_a_hold_of_somebody_as_they_are() -> None:
    session = Session()
    session.take(prompt("p1"), HOLDING)
    assert session.state.held is None
    session = waiting()
    session.take(i.HoldQueue(at=AT, author="ann"), HOLDING)
    assert session.state.held == "asked"


def test_a_crash_during_a_restart_that_holds_changes_nothing_more() -> None:
    session = waiting()
    session.take(HOLDING)
    assert session.take(HOLDING).events == ()
    assert session.take(RECOVER).events == ()
    assert session.state.held == RESTARTED


LOST = i.Recover(at=AT, code=NODE_LOST)
TRUSTEE = i.Recover(at=AT, code=NODE_LOST, holds=PLACE_GONE)


@pytest.mark.parametrize("hold", [None, STOPPING, PLACE_GONE])
def test_a_trustee_ends_what_ran_and_holds_what_waits_until_the_place_is_there(hold: str | None) -> None:
    session = waiting()
    if hold is not None:
        session.take(i.HoldQueue(at=AT, reason=hold))
    session.take(TRUSTEE)
    assert (session.running(), session.waiting(), session.state.held) == (None, ["p2", "p3"], PLACE_GONE)
    assert session.ends() == {"p1": "node_lost"}
    assert session.take(TRUSTEE).events == (), "another trustee has nothing to add"
    session.take(LOST)
    assert (session.running(), session.waiting(), session.state.held) == ("p2", ["p3"], None)


def test_a_trustee_leaves_a_hold_of_somebody_as_it_is_and_so_does_the_place() -> None:
    session = waiting()
    session.take(i.HoldQueue(at=AT, author="ann"), TRUSTEE, LOST)
    assert (session.running(), session.state.held) == (None, "asked")


def test_a_place_that_holds_after_a_restart_keeps_the_queue_held() -> None:
    session = waiting()
    session.take(TRUSTEE, i.Recover(at=AT, code=NODE_LOST, holds=NODE_LOST))
    assert (session.running(), session.state.held) == (None, NODE_LOST)
