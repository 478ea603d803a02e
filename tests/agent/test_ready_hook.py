"""`@agent.ready`: the author is notified when a client accepts unsolicited updates, so that a backend can start.

The clients here know the text of ACP and of the proposal for `session/ready`, and nothing of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.agent.kit import BARE, CWD, Driver, Json, say_nothing, served
from tests.patience import LONG_S
from tests.support.acp_client import is_answer, update_of

from turnwire.agent import Agent, AgentOptions, Session, Turn
from turnwire.errors import LimitExceeded
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import memory_pair
from turnwire_testing import ManualClock
from turnwire_testing.patience import quiet

pytestmark = [pytest.mark.anyio]

each_version = pytest.mark.parametrize("hello", BARE.values(), ids=["v1", "v2"])
BURST = 40


class Backend:
    """A third-party bus. It publishes as soon as it is notified, long before an answer is sent."""

    def __init__(self) -> None:
        self.told: list[str] = []
        """The arguments of each notification."""
        self.published = 0

    def begin(self, session: Session, how: str) -> None:
        self.told.append(how)
        for _ in range(BURST):
            content = {"type": "text", "text": f"{self.published} "}
            session.notify({"sessionUpdate": "agent_message_chunk", "content": content})
            self.published += 1


def fed(
    options: AgentOptions | None = None, clock: ManualClock | None = None, answers: Any = say_nothing
) -> tuple[Agent, Backend]:
    agent, backend = Agent("fed", options=options, clock=clock), Backend()
    agent.ready(backend.begin)
    agent.prompt(answers)
    return agent, backend


def numbers(driver: Driver) -> list[int]:
    return [int(each["content"]["text"]) for each in driver.updates("agent_message_chunk")]


class SlowLink:
    """The agent's side of a link that writes nothing until it is let."""

    def __init__(self, link: FrameLink) -> None:
        self._link = link
        self.writes = anyio.Event()

    async def receive(self) -> list[bytes]:
        return await self._link.receive()

    async def send(self, frame: bytes) -> None:
        await self.writes.wait()
        await self._link.send(frame)

    def send_nowait(self, frame: bytes) -> None:
        raise LimitExceeded("nothing is taken at once here", limit="none", value=0)

    async def aclose(self) -> None:
        await self._link.aclose()


@asynccontextmanager
async def slowly_served(agent: Agent, hello: Json) -> AsyncGenerator[tuple[Driver, SlowLink]]:
    ours, theirs = memory_pair(1024)
    slow, driver = SlowLink(theirs), Driver(ours, hello)
    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, slow)
            tasks.start_soon(driver.read)
            yield driver, slow
            await ours.aclose()


@each_version
async def test_a_backend_that_is_told_of_ready_publishes_behind_it_and_nothing_is_lost(hello: Json) -> None:
    agent, backend = fed(AgentOptions(ready_s=None))
    async with served(agent, hello) as driver:
        session = await driver.new(ready=False)
        await driver.call("session/list")
        assert backend.told == []
        await driver.notify("session/ready", sessionId=session)
        await driver.until(lambda _: len(numbers(driver)) == BURST)
        assert backend.told == ["ready"]
        assert numbers(driver) == list(range(BURST))
        await driver.notify("session/ready", sessionId=session)
        assert await driver.take_turn(session) == "end_turn"
        assert backend.told == ["ready"], "once for each opening"


@each_version
@pytest.mark.parametrize("waits", [True, False], ids=["offered", "not offered"])
async def test_a_backend_faster_than_the_writer_overtakes_no_answer(hello: Json, waits: bool) -> None:
    agent, backend = fed(AgentOptions(ready_s=None if waits else 0))
    async with slowly_served(agent, hello) as (driver, slow):
        await driver.ask("initialize", "hello", **hello)
        opening = await driver.ask("session/new", "opening", cwd=CWD, mcpServers=[])
        await quiet()
        # The answer is made and not written. A backend that need not wait for more has published all by now.
        assert backend.published == (0 if waits else BURST)
        assert driver.frames == []
        slow.writes.set()
        session = (await driver.answer(opening))["result"]["sessionId"]
        if waits:
            await driver.notify("session/ready", sessionId=session)
        await driver.until(lambda _: len(numbers(driver)) == BURST)
        assert backend.told == ["ready" if waits else "answer"]
        assert numbers(driver) == list(range(BURST))
        [answered] = [place for place, each in enumerate(driver.frames) if is_answer(each, opening)]
        assert not [each for each in driver.frames[:answered] if update_of(each)]


@each_version
async def test_a_prompt_and_the_end_of_patience_count_as_ready_and_say_so(hello: Json) -> None:
    clock = ManualClock()

    async def answer(turn: Turn) -> None:
        turn.say(str(backend.published))

    agent, backend = fed(AgentOptions(ready_s=3), clock, answer)

    async with served(agent, hello) as driver:
        assert await driver.take_turn(await driver.new(ready=False)) == "end_turn"
        assert backend.told == ["prompt"]
        assert numbers(driver)[-1] == BURST, "told before the turn that the prompt began"
    async with served(agent, hello) as driver:
        await driver.new(ready=False)
        await clock.wait_for_sleepers(1)
        clock.advance(3)
        await driver.until(lambda _: len(numbers(driver)) == BURST)
        assert backend.told == ["prompt", "timeout"]


async def test_each_client_of_a_session_is_told_of_by_itself_and_one_after_the_other() -> None:
    agent, heard, go = Agent("two", options=AgentOptions(ready_s=None)), list[str](), anyio.Event()
    agent.prompt(say_nothing)

    @agent.ready
    async def ready(session: Session, how: str) -> None:
        heard.append(f"begun {how}")
        await go.wait()
        heard.append(f"done {how}")

    async with served(agent, BARE[1]) as one, served(agent, BARE[2]) as two:
        session = await one.new()
        await two.call("session/resume", sessionId=session, cwd=CWD, mcpServers=[])
        request = await two.prompt(session)
        # The function still works on the first, and nothing waits for it: neither client, nor a turn.
        assert await two.end_of(request) == "end_turn"
        assert heard == ["begun ready"]
        go.set()
        await quiet()
        assert heard == ["begun ready", "done ready", "begun prompt", "done prompt"]


@each_version
async def test_an_exception_in_it_is_logged_and_harms_nothing(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("broken")
    agent.prompt(say_nothing)

    @agent.ready
    def ready(session: Session, how: Any) -> None:
        raise KeyError("no backend")

    async with served(agent, hello) as driver:
        session = await driver.new()
        assert await driver.take_turn(session) == "end_turn"
    assert "no backend" in caplog.text


async def test_it_ends_with_its_session() -> None:
    agent, ended = Agent("endless"), anyio.Event()
    agent.prompt(say_nothing)

    @agent.ready
    async def ready(session: Session, how: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with served(agent, BARE[2]) as driver:
        session = await driver.new()
        await quiet()
        await driver.call("session/close", sessionId=session)
        await ended.wait()
        assert (await driver.call("session/list"))["sessions"]
