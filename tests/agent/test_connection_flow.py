"""Clients that do not read: senders that wait are blocked, others are stopped, and cancelling always works."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from tests.agent.kit import V1, V2, Driver, Json, served, word_of
from tests.support.acp_client import is_answer

from turnwire.agent import Agent, AgentOptions, Turn
from turnwire.errors import LimitExceeded
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


class Deaf:
    """A client that writes, and reads only when asked to."""

    def __init__(self, hello: Json) -> None:
        self.ours, self.theirs = memory_pair(16)
        self.driver = Driver(self.ours, hello)

    async def read_some(self) -> None:
        for line in await self.ours.receive():
            await self.driver.take(line)

    async def read_until(self, fits: Callable[[Json], bool]) -> None:
        while not any(map(fits, self.driver.frames)):
            await self.read_some()


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_a_turn_that_awaits_what_it_says_waits_for_its_client_and_can_be_cancelled(hello: Json) -> None:
    agent, said = Agent("flood"), [0]

    @agent.prompt
    async def answer(turn: Turn) -> None:
        while True:
            await turn.say("x" * 100)
            said[0] += 1

    client = Deaf(hello)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, client.theirs)
            session = await open_session(client)
            await client.driver.prompt(session)
            await full(client.ours)
            before = said[0]
            assert before < 100
            await client.read_some()
            await full(client.ours)
            assert said[0] > before
            await client.driver.notify("session/cancel", sessionId=session)
            await client.read_until(lambda each: word_of(each) == "idle" or is_answer(each, 3))
            if hello is V2:
                await client.read_until(lambda each: word_of(each) == "idle")
            assert "'cancelled'" in str(client.driver.frames[-1])
            await client.ours.aclose()


async def test_a_turn_that_never_waits_is_stopped_at_the_bound_and_still_ends() -> None:
    agent, failures = Agent("flood", options=AgentOptions(max_unsent=100_000)), list[str]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        try:
            while True:
                turn.say("x" * 1000)
        except LimitExceeded as error:
            failures.append(str(error.context["limit"]))
            raise

    client = Deaf(V1)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, client.theirs)
            session = await open_session(client)
            await client.driver.prompt(session)
            await client.read_until(lambda each: is_answer(each, 3))
            assert failures == ["max_unsent"]
            assert client.driver.frames[-1]["error"]["code"] == -32603
            said = len(client.driver.updates("agent_message_chunk"))
            assert 90 < said < 130
            await client.ours.aclose()


async def test_a_loop_that_awaits_without_need_to_wait_lets_others_run() -> None:
    agent = Agent("busy")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        while True:
            await turn.session.notify({"sessionUpdate": "session_info_update"}, 2)

    async with served(agent, V1, checks=False, max_frames=10_000_000) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(request) == "cancelled"


async def test_a_second_client_that_does_not_read_loses_its_connection_and_holds_up_nobody() -> None:
    agent, go = Agent("shared", options=AgentOptions(max_unsent=50_000)), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        await go.wait()
        for _ in range(200):
            await turn.say("x" * 1000)

    other = Deaf(V2)
    async with served(agent, V1, max_frames=64) as driver, anyio.create_task_group() as tasks:
        tasks.start_soon(agent.serve, other.theirs)
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        await other.driver.ask("initialize", **V2)
        await other.driver.ask("session/resume", sessionId=session, cwd="/tmp")
        await other.read_until(lambda each: is_answer(each, 2))
        await other.driver.notify("session/ready", sessionId=session)
        go.set()
        assert await driver.end_of(request) == "end_turn"
        assert len(driver.said()) == 200_005


async def test_a_client_that_leaves_ends_its_turn() -> None:
    agent, stopped = Agent("left"), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with served(agent, V2) as driver:
        await driver.prompt(await driver.new())
        await driver.update("agent_message_chunk")
    assert stopped.is_set()


async def open_session(client: Deaf) -> str:
    driver = client.driver
    await driver.ask("initialize", **driver.hello)
    await driver.ask("session/new", cwd="/tmp", mcpServers=[])
    await client.read_until(lambda each: is_answer(each, 2))
    session: str = driver.frames[-1]["result"]["sessionId"]
    return session


async def full(link: MemoryLink) -> None:
    """Return once the link is full, and senders have had time to notice."""
    while link.waiting < 16:
        await anyio.lowlevel.checkpoint()
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def test_a_prompt_and_the_ends_of_tools_are_told_however_much_waits() -> None:
    agent = Agent("flood", options=AgentOptions(max_unsent=20_000))

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.tool("Left open").start()
        async with turn.tool("Failing"):
            while True:
                turn.say("x" * 1000)

    client = Deaf(V2)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, client.theirs)
            session = await open_session(client)
            first = await client.driver.prompt(session)
            second = await client.driver.prompt(session)
            for request in (first, second):
                await client.read_until(lambda each, request=request: is_answer(each, request))
            await client.read_until(lambda _: client.driver.kinds().count("idle") == 2)
            statuses = [each["status"] for each in client.driver.updates("tool_call_update") if "status" in each]
            assert statuses.count("failed") == 4
            await client.ours.aclose()
