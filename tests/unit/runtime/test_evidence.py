"""Reasons why a turn has not ended: signs for and against a suspicion, and the displayed evidence."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from tests.support.agents import V1, HandAgent
from tests.unit.session.driving import Session, agent_is, asks, cancel, chunk, prompt, said, tool

from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.memory import memory_pair
from turnwire.hosting.source import LinkedAgent
from turnwire.limits import Limits
from turnwire.runtime.evidence import Explanation, Seen, explain
from turnwire.session.events import TurnEnd
from turnwire.session.state import SessionState
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

SUSPECT_S = 30.0


def connected() -> AgentConnection:
    return AgentConnection(LinkedAgent(memory_pair()[0]), Limits())


def explained(state: SessionState, quiet_s: float, seen: Seen | None = None) -> Explanation:
    return explain(state, connected(), seen or Seen(), quiet_s, SUSPECT_S)


def running(turn_end: TurnEnd = TurnEnd.RESPONSE) -> Session:
    """Return a session with a turn that has had output."""
    session = Session(turn_end)
    session.take(prompt("p1"), chunk("all done"))
    return session


async def test_silence_is_a_suspicion_from_the_set_time_on_and_not_before() -> None:
    state = running().state
    assert not explained(state, 29.9).suspected_complete
    found = explained(state, 30.0)
    assert found.suspected_complete
    assert found.reasons == ["nothing has happened for 30 s, and no tool call or permission request is open"]
    assert (found.state, found.prompt_id, found.quiet_s) == ("running", "p1", 30.0)


async def test_a_session_without_a_turn_is_never_suspected() -> None:
    found = explained(Session().state, 1e6)
    assert (found.state, found.suspected_complete, found.reasons, found.quiet_s) == ("idle", False, [], None)


async def test_an_answer_without_the_marker_that_the_agent_offers_is_suspected_at_once() -> None:
    state = running(TurnEnd.MARKER).state
    assert not explained(state, 0.0).suspected_complete
    found = explained(state, 0.0, Seen(response_seen=True))
    assert found.suspected_complete
    assert "did not send the turn_complete" in found.reasons[0]


async def test_an_answer_is_no_sign_where_it_is_not_the_end() -> None:
    session = Session(TurnEnd.IDLE)
    session.take(prompt("p1"), agent_is("running"), chunk())
    assert not explained(session.state, 0.0, Seen(response_seen=True)).suspected_complete


async def test_an_agent_that_has_not_begun_is_not_taken_for_one_that_is_done() -> None:
    session = Session(TurnEnd.IDLE)
    session.take(prompt("p1"))
    assert not explained(session.state, 0.0).suspected_complete
    late = explained(session.state, SUSPECT_S)
    assert late.suspected_complete
    assert late.reasons[0] == "the agent reports that it is idle"


async def test_an_open_tool_call_or_question_or_request_speaks_against_it() -> None:
    session = running()
    session.take(tool("t1", "in_progress"), tool("t2", "completed"))
    found = explained(session.state, 1e6)
    assert (found.suspected_complete, found.tools_in_flight) == (False, ["t1"])
    session.take(tool("t1", "failed"))
    assert explained(session.state, 1e6).suspected_complete
    waits = explained(session.state, 1e6, Seen(requests=["terminal/wait_for_exit"]))
    assert (waits.suspected_complete, waits.reasons) == (False, ["the agent waits for terminal/wait_for_exit"])
    session.take(asks("q1"))
    asked = explained(session.state, 1e6)
    assert (asked.suspected_complete, asked.waiting_for) == (False, ["q1"])
    assert asked.reasons == ["a permission request waits for an answer"]


async def test_a_cancel_that_is_under_way_is_said_and_is_no_suspicion() -> None:
    session = running()
    session.take(cancel("p1"))
    found = explained(session.state, 1e6)
    assert (found.state, found.suspected_complete) == ("cancelling", False)
    assert found.reasons == ["a cancel was asked for and is not confirmed"]


async def test_a_turn_whose_agent_is_being_started_is_no_suspicion() -> None:
    found = explain(running().state, None, Seen(), 1e6, SUSPECT_S)
    assert (found.suspected_complete, found.reasons) == (False, ["the agent is being started"])
    assert not found.agent.connected


async def test_what_waits_in_the_queue_is_listed() -> None:
    session = running()
    session.take(prompt("p2"), prompt("p3"))
    assert explained(session.state, 0.0).queued == ["p2", "p3"]


async def test_the_agent_s_side_is_shown_and_can_be_sent_as_it_is() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        async with anyio.create_task_group() as greeting:
            greeting.start_soon(connection.handshake)
            await agent.answer("initialize", V1)
        agent.link.send_nowait(b"Starting \xff...")
        agent.send({"id": 99, "result": {}})
        agent.update("boo", "stranger")
        await quiet()
        found = explain(running().state, connection, Seen(reads_lines=True), 0.0, SUSPECT_S).agent
        assert found.connected
        assert found.pid is None, "it has no process of its own"
        assert sum(found.breaches.values()) == 2
        assert found.strays == {"unknown_session": 1}
        assert found.broken_lines[0] == "Starting \ufffd..."
        assert (found.last_received, found.last_sent) == ([], []), "none of it is about this session"
        shown = msgspec.json.decode(msgspec.json.encode(found))
        assert shown["brokenLines"] == found.broken_lines
        others = explain(running().state, connection, Seen(), 0.0, SUSPECT_S).agent
        assert others.broken_lines == []
        tasks.cancel_scope.cancel()


async def test_an_unknown_kind_of_update_is_no_tool_call() -> None:
    session = running()
    session.take(said("dance", toolCallId="t9", status="in_progress"))
    assert explained(session.state, SUSPECT_S).suspected_complete
