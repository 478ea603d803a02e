"""Opening a session through the SDK, with an agent that is played by hand."""

from __future__ import annotations

import anyio
import pytest
from tests.support.agents import HandSource

from turnwire.client import connect
from turnwire.errors import AgentLaunchFailed
from turnwire.wire.jsonrpc import Request
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


async def test_an_agent_that_refuses_the_session_is_heard_in_its_own_words_and_no_session_is_left() -> None:
    source = HandSource()

    async def refuse() -> None:
        agent = await source.agent()
        await agent.answer("initialize", {"protocolVersion": 1, "agentCapabilities": {}})
        request = await agent.next("session/new")
        assert isinstance(request, Request)
        agent.send({"id": request.id, "error": {"code": -32603, "message": "no", "data": {"details": "why"}}})

    with anyio.fail_after(WAIT_S):
        async with connect(source) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            with pytest.raises(AgentLaunchFailed) as caught:
                await client.new_session()
            assert b'"details":"why"' in (caught.value.agent_error or b"")
            assert "why" not in str(caught.value)
            assert await client.sessions() == []
