"""Situations in which a client's position in a session may be lost: trimmed logs, agents that exit, limits."""

from __future__ import annotations

import pytest
from tests.support.acp import MARKED, V1, V2, acp_daemon, connected
from tests.support.acp_client import is_update
from tests.support.daemons import OWN_PROCESS

from turnwire.limits import Limits
from turnwire.wire.methods import STATE_RESYNC_REQUIRED
from turnwire_testing import AgentOptions

pytestmark = pytest.mark.anyio


@pytest.mark.guarantee("G9")
async def test_a_client_that_missed_what_the_log_forgot_is_told_so() -> None:
    async with acp_daemon() as place, connected(place, MARKED) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 seen"))
        client.stop_reading()
        async with connected(place, V1) as other:
            await other.open("session/resume", session_id)
            await other.answer(await other.prompt(session_id, "say 20 missed"))
            await other.answer(await other.prompt(session_id, "say 1 kept"))
        await place.daemon.node.retain(session_id, keep_events=6)
        client.read()
        lost = await client.until(lambda each: each.get("method") == STATE_RESYNC_REQUIRED)
        head = await place.daemon.node.head(session_id)
        assert lost["params"]["sessionId"] == session_id
        assert lost["params"]["lastDeliveredId"] < lost["params"]["earliestAvailableId"] == head.first
        await client.until(lambda each: is_update(each, "turn_complete", {}), client.frames.index(lost))


async def test_a_trimmed_session_is_loaded_with_what_is_kept_and_what_is_now() -> None:
    async with acp_daemon("v1", AgentOptions(inside="commands build")) as place, connected(place, V1) as first:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 20 old"))
        await first.answer(await first.prompt(session_id, "say 1 new"))
        await place.daemon.node.retain(session_id, keep_events=6)
        async with connected(place, V1) as client:
            await client.open("session/load", session_id)
            await client.update("available_commands_update")
            assert "says new" in client.kinds()
            assert "says old" not in client.kinds()
            error = await client.fails(
                "session/load",
                sessionId=session_id,
                cwd=place.cwd,
                mcpServers=[],
                _meta={"turnwire": {"after": 1}},
            )
            assert error["data"]["why"] == "trimmed"


async def test_the_clients_of_a_session_hear_its_next_agent_too() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await place.source.cut()
        assert "result" in await client.answer(await client.prompt(session_id, "say 1 again"))
        assert place.source.started == 2
        agent = place.daemon.node.loaded[session_id].state.agent
        assert agent is not None
        said = f'notify _x/y {{"sessionId":"{agent.agent_session_id}"}}'
        await client.answer(await client.prompt(session_id, said))
        await client.until(lambda each: each.get("method") == "_x/y")


@pytest.mark.parametrize("initialize", [V1, V2])
async def test_an_agent_of_its_own_for_each_session_serves_clients_alike(initialize: dict[str, object]) -> None:
    async with acp_daemon("v2", **OWN_PROCESS) as place, connected(place, initialize) as client:
        one, two = await client.new(), await client.new()
        for session_id in (one, two):
            assert "result" in await client.answer(await client.prompt(session_id, "say 1 x"))
        # One was started to read its capabilities, and then each session got its own.
        assert place.source.started == 3


async def test_a_client_logs_out_where_it_logged_in() -> None:
    async with acp_daemon("v1", AgentOptions(auth_required=True)) as place, connected(place, V1) as client:
        await client.call("authenticate", methodId="token")
        await client.new()
        assert await client.call("logout") == {}
        assert (await client.fails("session/new", cwd=place.cwd, mcpServers=[]))["code"] == -32000


async def test_sessions_beyond_the_limit_are_refused_with_its_name() -> None:
    async with acp_daemon(limits=Limits(loaded_sessions=1)) as place, connected(place, V1) as client:
        await client.new()
        error = await client.fails("session/new", cwd=place.cwd, mcpServers=[])
        assert error["data"]["code"] == "session_limit_exceeded"


async def test_while_the_daemon_stops_nothing_new_is_taken() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        place.daemon.stopping.set()
        error = (await client.answer(await client.prompt(session_id, "say 1 x")))["error"]
        assert error["data"]["code"] == "shutting_down"
