"""One connection: its handshake, and logging in."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from tests.support.agents import V1, HandAgent

from turnwire.errors import LinkBroken, LocalProtocolError, RemoteProtocolError
from turnwire.limits import Limits
from turnwire.link.memory import memory_pair
from turnwire.runtime.connection import AgentConnection
from turnwire.runtime.source import LinkedAgent
from turnwire.testing.patience import WAIT_S
from turnwire.wire.jsonrpc import Request

pytestmark = pytest.mark.anyio


async def test_an_agent_that_refuses_the_handshake_is_said_so() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    asked: list[int] = []

    async def refuse() -> None:
        for _ in range(2):
            request = await agent.next("initialize")
            assert isinstance(request, Request)
            asked.append(msgspec.json.decode(request.params)["protocolVersion"])
            agent.send({"id": request.id, "error": {"code": -32022, "message": "no common version"}})

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(refuse)
            with pytest.raises(RemoteProtocolError) as refused:
                await connection.handshake()
            assert refused.value.context["jsonrpc"] == -32022
            await connection.aclose()
    assert connection.profile is None
    assert asked == [2, 1], "the newest version, then the oldest"


async def test_an_agent_that_goes_before_it_answers_is_broken() -> None:
    ours, theirs = memory_pair()
    connection = AgentConnection(LinkedAgent(ours), Limits())
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def go() -> None:
                await theirs.receive()
                await theirs.aclose()

            tasks.start_soon(connection.run)
            tasks.start_soon(go)
            with pytest.raises(LinkBroken):
                await connection.handshake()
    assert not connection.is_alive


async def test_an_agent_of_a_version_that_there_is_not_here_is_let_go() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(agent.answer, "initialize", {**V1, "protocolVersion": 3})
            with pytest.raises(RemoteProtocolError, match="speaks version 3"):
                await connection.handshake()
            await connection.aclose()
    assert connection.profile is None


async def test_a_login_that_is_a_program_is_never_asked_of_the_agent() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    methods = [{"id": "in-a-terminal", "name": "Log in", "type": "terminal"}]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(agent.answer, "initialize", {**V1, "authMethods": methods})
            await connection.handshake()
            with pytest.raises(LocalProtocolError, match="run it in a terminal"):
                await connection.authenticate("in-a-terminal")
            await connection.aclose()
    assert theirs.waiting == 0, "nothing was sent"
