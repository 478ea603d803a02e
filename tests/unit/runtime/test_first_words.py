"""What an agent hears first from us, and in which form: the handshake before all else, and readiness."""

from __future__ import annotations

import anyio
import pytest
from tests.support.agents import READY, V1, HandSource

from turnwire.log.memory import MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.testing.patience import WAIT_S, quiet
from turnwire.wire.jsonrpc import Notification, Request

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("R1")
async def test_no_session_is_asked_for_before_the_agent_has_initialized() -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            first = await agent.next("initialize")
            assert isinstance(first, Request)
            await quiet()
            assert agent.waiting() == 0, "nothing follows an `initialize` that is not answered"
            agent.send({"id": first.id, "result": V1})
            assert isinstance(await agent.next("session/new"), Request)


@pytest.mark.requirement("R1")
async def test_an_agent_that_refuses_to_initialize_is_never_asked_for_a_session() -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            for _ in range(2):
                request = await agent.next("initialize")
                assert isinstance(request, Request)
                agent.send({"id": request.id, "error": {"code": -32603, "message": "no"}})
            await quiet()
            assert agent.waiting() == 0


@pytest.mark.requirement("R8", "R46")
@pytest.mark.parametrize("offers_ready", [True, False])
async def test_readiness_is_a_notification_sent_once_and_only_to_an_agent_that_offers_it(
    offers_ready: bool,
) -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            await agent.greet(READY if offers_ready else V1)
            if offers_ready:
                assert isinstance(await agent.next("session/ready"), Notification)
            await quiet()
            assert agent.waiting() == 0
