"""An agent as a process on standard input and output, and inside the process of its client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.agent.kit import DIALECTS, V1, V2, Driver, Json, check, say_nothing

import turnwire
from turnwire.agent import Agent, AgentFailure, Turn
from turnwire.errors import TurnError
from turnwire.hosting.stdio import StdioLink
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("talking_agent.py")
each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


class Started:
    """The process, and the client that started it."""

    def __init__(self, process: subprocess.Popen[bytes], driver: Driver, link: StdioLink) -> None:
        self.process = process
        self.driver = driver
        self.link = link

    async def exited(self) -> int:
        return await anyio.to_thread.run_sync(self.process.wait)


@asynccontextmanager
async def started(hello: Json) -> AsyncGenerator[Started]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: ASYNC220  a start is quick
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                link = StdioLink(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
                process.stdout.close()
                process.stdin.close()
                driver = Driver(link, hello)
                tasks.start_soon(driver.read)
                await driver.call("initialize", **hello)
                yield Started(process, driver, link)
                await link.aclose()
                check(driver)
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


@each_dialect
async def test_a_process_speaks_nothing_but_acp_and_ends_when_its_client_leaves(hello: Json) -> None:
    async with started(hello) as agent:
        driver = agent.driver
        session = await driver.new()
        assert await driver.take_turn(session, "stdin") == "end_turn"
        assert driver.said() == "''begun "
        agent.link.end_output()
        assert await agent.exited() == 0
        assert agent.process.stderr is not None
        assert b"must not be on the wire" in agent.process.stderr.read()


@pytest.mark.parametrize("how", ["leaves", "SIGTERM", "SIGINT"])
async def test_a_process_that_is_to_end_ends_its_turns_first(how: str) -> None:
    async with started(V1) as agent:
        driver = agent.driver
        request = await driver.prompt(await driver.new(), "hang")
        await driver.update("agent_message_chunk")
        if how == "leaves":
            agent.link.end_output()
        else:
            agent.process.send_signal(signal.Signals[how])
        assert await driver.end_of(request) == "cancelled"
        assert driver.said() == "begun stopped"
        assert await agent.exited() == (130 if how == "SIGINT" else 0)


# -- in process ----------------------------------------------------------------------------------------------------


async def test_a_client_of_this_process_drives_an_agent_of_it(tmp_path: Path) -> None:
    agent = Agent("near")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        if turn.text == "fail":
            raise AgentFailure("on purpose")
        turn.say("near ")
        async with turn.tool("Delete") as call:
            turn.say("allowed" if await turn.ask(call) else "refused")

    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(agent.source()) as client:
            client.on_permission(lambda question: question.options[0].option_id)
            session = await client.new_session(tmp_path)
            result = await session.prompt("hello")
            assert result.stop_reason == "end_turn"
            assert result.text == "allowed"
            with pytest.raises(TurnError) as failed:
                await session.prompt("fail")
            assert b"on purpose" in (failed.value.agent_error or b"")


async def test_the_source_gives_as_many_connections_as_are_asked_for() -> None:
    agent = Agent("near")
    agent.prompt(say_nothing)
    source = agent.source()
    with anyio.fail_after(WAIT_S):
        handles = [await source.connect() for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            for handle, hello in zip(handles, (V1, V2), strict=True):
                driver = Driver(handle.link, hello)
                tasks.start_soon(driver.read)
                await driver.call("initialize", **hello)
                assert await driver.take_turn(await driver.new()) == "end_turn"
                await handle.aclose()
                await handle.aclose()
