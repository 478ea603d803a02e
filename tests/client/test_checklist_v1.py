"""Rules of ACP v1 for clients, which turnwire is to its agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.recorder import INFO, Recorder, recorded, v1_agent
from tests.support.acp import V1, Client, Json, Place, connected

pytestmark = pytest.mark.anyio

STDIO: Json = {"name": "own", "command": "/bin/own", "args": ["-v"], "env": []}
HTTP: Json = {"type": "http", "name": "far", "url": "https://example.org/mcp", "headers": []}
SSE: Json = {**HTTP, "type": "sse"}


async def new_params(agent: Recorder) -> Json:
    return (await agent.asked("session/new"))["params"]


async def test_a_session_is_opened_in_the_directory_that_the_client_names() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        await client.new()
        params = await new_params(agent)
        assert params["cwd"] == place.cwd
        assert "additionalDirectories" not in params


async def test_servers_over_stdio_reach_every_agent() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        await client.call("session/new", cwd=place.cwd, mcpServers=[STDIO])
        assert (await new_params(agent))["mcpServers"] == [STDIO]


@pytest.mark.parametrize("server", [HTTP, SSE])
async def test_servers_over_other_transports_reach_only_agents_that_take_them(server: Json) -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        error = await client.fails("session/new", cwd=place.cwd, mcpServers=[STDIO, server])
        assert error["code"] == -32602
        assert server["type"] in error["message"]
        assert "session/new" not in agent.methods()
    able = v1_agent(mcpCapabilities={server["type"]: True})
    async with recorded(able) as (place, agent), connected(place, V1) as client:
        await client.call("session/new", cwd=place.cwd, mcpServers=[STDIO, server])
        assert (await new_params(agent))["mcpServers"] == [STDIO, server]


IMAGE: Json = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
AUDIO: Json = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
RESOURCE: Json = {"type": "resource", "resource": {"uri": "file:///a", "text": "a"}}


@pytest.mark.parametrize(
    ("block", "capability"), [(IMAGE, "image"), (AUDIO, "audio"), (RESOURCE, "embeddedContext")]
)
async def test_content_reaches_only_agents_that_take_it(block: Json, capability: str) -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        session_id = await client.new()
        error = await client.fails("session/prompt", sessionId=session_id, prompt=[block])
        assert error["code"] == -32602
        assert "session/prompt" not in agent.methods()
    able = v1_agent(promptCapabilities={capability: True})
    async with recorded(able) as (place, agent), connected(place, V1) as client:
        await client.ask("session/prompt", sessionId=await client.new(), prompt=[block])
        assert (await agent.prompted())["params"] == {"sessionId": "a1", "prompt": [block]}


async def a_whole_life(place: Place, agent: Recorder, client: Client) -> None:
    """Run a session with a turn, a restart of its agent, a second turn, and its end."""
    session_id = await client.new()
    for _ in range(2):
        assert "result" in await client.answer(await client.prompt(session_id, "work"))
        await agent.cut()
    await client.call("session/list")
    await client.call("session/close", sessionId=session_id)
    await client.call("session/delete", sessionId=session_id)
    await place.daemon.node.agents.profile()


ALL_OFFERS: Json = {
    "loadSession": True,
    "sessionCapabilities": {"resume": {}, "close": {}, "list": {}, "delete": {}},
}


@pytest.mark.parametrize(
    ("capabilities", "comes_back_by"),
    [({}, "session/new"), ({"loadSession": True}, "session/load"), (ALL_OFFERS, "session/resume")],
)
async def test_an_agent_is_asked_for_nothing_that_it_does_not_offer(
    capabilities: dict[str, Any], comes_back_by: str
) -> None:
    done: Json = {"result": {"stopReason": "end_turn"}}
    nothing: Json = {"result": {}}
    replies: dict[str, Any] = {"session__load": nothing, "session__resume": nothing, "session__close": nothing}
    async with recorded(v1_agent(**capabilities), session__prompt=done, **replies) as (place, agent):
        async with connected(place, V1) as client:
            await a_whole_life(place, agent, client)
        ways = [each for each in agent.methods() if each in {"session/new", "session/load", "session/resume"}]
        assert ways == ["session/new", comes_back_by]
        assert not {"session/list", "session/delete", "logout"} & set(agent.methods())
        if "sessionCapabilities" not in capabilities:
            assert "session/close" not in agent.methods()


def asked(client: Client) -> list[Json]:
    return [each for each in client.frames if each.get("method") == "session/request_permission"]


async def test_what_an_agent_says_of_no_open_question_is_ignored() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "work")
        prompt = await agent.prompted()
        sent = len(agent.frames)
        agent.send({"method": "elicitation/complete", "params": {"elicitationId": "nobody's"}})
        agent.send({"method": "$/of_a_later_acp", "params": {}})
        agent.send({"method": "no/such", "params": {"sessionId": "a1"}})
        agent.send({"id": prompt["id"], "result": {"stopReason": "end_turn"}})
        assert (await client.answer(request_id))["result"]["stopReason"] == "end_turn"
        assert not [each for each in client.frames if each.get("method") == "elicitation/complete"]
        assert len(agent.frames) == sent, "a notification is not answered"


OPENING = ("session/new", "session/resume")
TAKES: Json = {"additionalDirectories": {}}
TAKING = [
    v1_agent(sessionCapabilities={**TAKES, "resume": {}}),
    {"protocolVersion": 2, "info": INFO, "capabilities": {"session": TAKES}},
]


def directories_of(agent: Recorder) -> list[list[str] | None]:
    """Return the additional directories in each request to the agent to open the session."""
    opened = [each["params"] for each in agent.frames if each.get("method") in OPENING]
    return [each.get("additionalDirectories") for each in opened]


@pytest.mark.parametrize("says", TAKING)
async def test_directories_go_to_agents_that_take_them_until_a_client_leaves_them_out(says: Json) -> None:
    async with recorded(says, session__resume={"result": {}}) as (place, agent), connected(place, V1) as client:
        more = Path(place.cwd) / "more"
        more.mkdir()
        params: Json = {"cwd": place.cwd, "mcpServers": [], "additionalDirectories": [str(more)]}
        session_id = (await client.call("session/new", **params))["sessionId"]
        await reopened(client, agent, session_id)
        assert directories_of(agent) == [[str(more)]] * 2, "all of them, each time"
        await client.open("session/resume", session_id)
        await reopened(client, agent, session_id)
        assert directories_of(agent)[2:] == [None], "what a request does not name is not in force again"


async def reopened(client: Client, agent: Recorder, session_id: str) -> None:
    """End the agent, and let the next prompt reopen the session."""
    count = agent.methods().count("session/prompt")
    await agent.cut()
    await client.prompt(session_id, "work")
    await agent.prompted(count + 1)


async def test_an_elicitation_in_a_way_that_was_not_offered_is_refused() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        await client.new()
        params: Json = {"sessionId": "a1", "mode": "telepathy", "message": "Think of a number."}
        agent.send({"id": "e", "method": "elicitation/create", "params": params})
        [refused] = [await agent.until(lambda frame: frame.get("id") == "e")]
        assert refused["error"]["code"] == -32602
        assert not [each for each in client.frames if each.get("method") == "elicitation/create"]
