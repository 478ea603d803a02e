"""Situations in which a client's position in a session may be lost: trimmed logs, agents that exit, limits."""

from __future__ import annotations

import pytest
from tests.support.acp import MARKED, V1, acp_daemon, connected
from tests.support.acp_client import is_update

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
