"""Rules of ACP v2 for clients, which turnwire is to its agents."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, json
from tests.server.acp.recorder import V2_AGENT, Recorder, recorded
from tests.support.acp import V1, V2, Json, connected

from turnwire.ids import AgentSessionId
from turnwire.projections.view import View
from turnwire.projections.view.transcript import ToolCall
from turnwire.session.events import AgentStarted, SessionUpdated, TurnEnd

pytestmark = pytest.mark.anyio

STDIO: Json = {"type": "stdio", "name": "own", "command": "/bin/own", "args": [], "env": []}
HTTP: Json = {"type": "http", "name": "far", "url": "https://example.org/mcp", "headers": []}
OURS: Json = {"type": "_pigeon", "name": "slow"}
RUNNING: Json = {"sessionUpdate": "state_update", "state": "running"}


def takes(**servers: Any) -> Json:
    return {**V2_AGENT, "capabilities": {"session": {"mcp": servers}}}


async def test_servers_reach_only_agents_that_take_their_transport() -> None:
    async with recorded(takes(stdio={})) as (place, agent), connected(place, V2) as client:
        assert client.frames[0]["result"]["capabilities"]["session"]["mcp"] == {"stdio": {}}
        assert (await client.fails("session/new", cwd=place.cwd, mcpServers=[HTTP]))["code"] == -32602
        await client.call("session/new", cwd=place.cwd, mcpServers=[STDIO, OURS])
        assert (await agent.asked("session/new"))["params"]["mcpServers"] == [STDIO, OURS]
    async with recorded(takes(http={})) as (place, agent), connected(place, V2) as client:
        assert client.frames[0]["result"]["capabilities"]["session"]["mcp"] == {"http": {}}
        assert (await client.fails("session/new", cwd=place.cwd, mcpServers=[STDIO]))["code"] == -32602
        await client.call("session/new", cwd=place.cwd, mcpServers=[HTTP])


async def test_a_state_that_was_told_before_the_session_was_opened_still_holds() -> None:
    def opens(_: Json) -> Json:
        agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": RUNNING}})
        return {"result": {"sessionId": "a1"}}

    async with recorded(V2_AGENT, session__new=opens) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        await client.update("state_update", state="running")
        async with connected(place, V2) as other:
            await other.open("session/resume", session_id)
            assert other.kinds() == ["state_update running"]


def finish(agent: Recorder, prompt: Json) -> None:
    """All of a short turn."""
    agent.update("state_update", state="running")
    agent.send({"id": prompt["id"], "result": {"messageId": "u"}})
    agent.update("state_update", state="idle", stopReason="end_turn")


async def test_a_session_comes_back_in_its_own_directory_and_that_ends_no_turn() -> None:
    def resumes(_: Json) -> Json:
        idle = {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn"}
        agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": idle}})
        return {"result": {}}

    async with recorded(V2_AGENT, session__resume=resumes) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        await client.prompt(session_id, "one")
        finish(agent, await agent.prompted())
        await client.idle()
        await agent.cut()
        await client.prompt(session_id, "two")
        second = await agent.prompted(2)
        resumed = (await agent.asked("session/resume"))["params"]
        assert (resumed["sessionId"], resumed["cwd"]) == ("a1", place.cwd)
        agent.send({"id": second["id"], "result": {"messageId": "v"}})
        await client.call("session/list")
        assert client.kinds().count("state_update idle") == 1, "neither the resume nor the answer ends the turn"
        agent.update("state_update", state="running")
        agent.update("state_update", state="idle", stopReason="end_turn")
        await client.idle(2)


async def test_a_question_that_the_agent_takes_back_is_answered_as_cancelled() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V1) as client:
        await client.prompt(await client.new(), "work")
        await agent.prompted()
        agent.update("state_update", state="running")
        params: Json = {"sessionId": "a1", "title": "May I?", "options": []}
        agent.send({"id": "q", "method": "session/request_permission", "params": params})
        await client.until(lambda each: each.get("method") == "session/request_permission")
        agent.send({"method": "$/cancel_request", "params": {"requestId": "q"}})
        answer = await agent.until(lambda each: each.get("id") == "q")
        assert answer["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_ids_of_our_requests_are_whole_numbers_that_are_used_once() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        for number in range(1, 4):
            await client.prompt(session_id, "work")
            finish(agent, await agent.prompted(number))
            await client.idle(number)
        ids = [each["id"] for each in agent.frames if "method" in each and "id" in each]
        assert all(type(each) is int for each in ids)
        assert len(ids) == len(set(ids))


async def test_no_batch_is_sent_and_none_is_taken_from_an_agent() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        request: Json = {"jsonrpc": "2.0", "id": "b", "method": "session/request_permission", "params": {}}
        agent.send_line(json.encode([request, request]))
        agent.say("behind it", messageId="m")
        await client.update("agent_message_chunk")
        await client.prompt(session_id, "work")
        await agent.prompted()
        assert all(isinstance(each, dict) for each in agent.frames)
        assert not [each for each in client.frames if each.get("method") == "session/request_permission"]
        assert not [each for each in agent.frames if each.get("id") == "b"]
        [refused] = [each for each in agent.frames if "error" in each]
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)


def started(how: str) -> AgentStarted:
    """Start a session at a v2 agent."""
    return AgentStarted(
        at=1, agent_session_id=AgentSessionId("a1"), protocol_version=2, turn_end=TurnEnd.IDLE, how=how
    )


def said(update: Json) -> SessionUpdated:
    return SessionUpdated(at=2, kind=update["sessionUpdate"], update=Raw(json.encode(update)))


def view_of(*events: AgentStarted | SessionUpdated) -> View:
    """Return the view of a v2 session with these events."""
    view = View()
    for each in events:
        view.apply(each)
    return view


def test_a_terminal_and_a_tool_call_of_one_name_are_two_things() -> None:
    tool = {"sessionUpdate": "tool_call_update", "toolCallId": "x", "title": "Run", "status": "in_progress"}
    terminal = {
        "sessionUpdate": "terminal_update",
        "terminalId": "x",
        "command": "ls",
        "exitStatus": {"exitCode": 0},
    }
    view = view_of(started("new"), said(tool), said(terminal))
    [call] = [each for each in view.items if isinstance(each, ToolCall)]
    assert (call.status, call.title, call.content) == ("in_progress", "Run", [])
    assert view.terminals["x"].command == "ls"


@pytest.mark.parametrize(("how", "count"), [("resume", 1), ("lost", 2)])
def test_an_agent_that_lost_the_session_and_names_it_as_before_writes_into_no_old_message(
    how: str, count: int
) -> None:
    chunk = said(
        {"sessionUpdate": "agent_message_chunk", "messageId": "m1", "content": {"type": "text", "text": "x"}}
    )
    assert len(view_of(started("new"), chunk, started(how), chunk).items) == count
