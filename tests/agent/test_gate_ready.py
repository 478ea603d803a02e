"""`session/ready`: unsolicited updates wait for it, and nothing overtakes the answer that opens a session."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, V1_PLUS, V2, Driver, Json, say_nothing, served
from tests.support.acp_client import is_answer, update_of

from turnwire.agent import Agent, AgentOptions, Command, Session, Turn
from turnwire.errors import LimitExceeded
from turnwire_testing import ManualClock

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())
BURST = 50


def chunk(number: int) -> Json:
    content = {"type": "text", "text": f"{number} "}
    return {"sessionUpdate": "agent_message_chunk", "messageId": "bus", "content": content}


def bus(
    options: AgentOptions | None = None, clock: ManualClock | None = None, answers: Any = say_nothing
) -> tuple[Agent, list[Session]]:
    """An agent whose backend publishes before, while and after its session is opened."""
    agent, sessions = Agent("bus", options=options, clock=clock), list[Session]()

    @agent.opened
    async def opened(session: Session) -> None:
        sessions.append(session)
        for number in range(BURST):
            session.notify(chunk(number), 2)

        async def from_a_task() -> None:
            for number in range(BURST, 2 * BURST):
                session.notify(chunk(number), 2)

        session.background(from_a_task)

        def from_a_thread() -> None:
            for number in range(2 * BURST, 3 * BURST):
                anyio.from_thread.run_sync(session.notify, chunk(number), 2)

        await anyio.to_thread.run_sync(from_a_thread)

    agent.prompt(answers)
    return agent, sessions


async def opened(driver: Driver) -> str:
    return await driver.new(ready=False)


@each_dialect
async def test_a_bus_faster_than_the_answer_overtakes_nothing_and_loses_nothing(hello: Json) -> None:
    agent, _ = bus(AgentOptions(ready_s=None))
    async with served(agent, hello) as driver:
        session = await opened(driver)
        assert await driver.call("session/list")
        assert driver.updates() == []
        await driver.notify("session/ready", sessionId=session)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 3 * BURST)
        numbers = [int(each["content"]["text"]) for each in driver.updates("agent_message_chunk")]
        assert sorted(numbers) == list(range(3 * BURST))
        for start in range(0, 3 * BURST, BURST):
            part = [each for each in numbers if start <= each < start + BURST]
            assert part == sorted(part)


@each_dialect
async def test_without_the_offer_nothing_waits_but_for_the_answer(hello: Json) -> None:
    agent, _ = bus(AgentOptions(ready_s=0))
    async with served(agent, hello) as driver:
        await opened(driver)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 3 * BURST)
        first = next(index for index, each in enumerate(driver.frames) if update_of(each))
        assert is_answer(driver.frames[first - 1], 2)


@each_dialect
async def test_a_client_that_never_says_it_is_ready_is_told_after_the_time_limit(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    agent, _ = bus(AgentOptions(ready_s=3), clock)
    async with served(agent, hello) as driver:
        session = await opened(driver)
        await clock.wait_for_sleepers(1)
        clock.advance(2.9)
        await driver.call("session/list")
        assert driver.updates() == []
        clock.advance(0.2)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 3 * BURST)
        assert f"ready for session {session}" in caplog.text
        await driver.notify("session/ready", sessionId=session)
        await driver.call("session/list")
        assert len(driver.updates("agent_message_chunk")) == 3 * BURST


@each_dialect
async def test_a_client_that_was_waited_for_in_vain_is_not_waited_for_again(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    agent, _ = bus(AgentOptions(ready_s=3), clock)
    async with served(agent, hello) as driver:
        await opened(driver)
        await clock.wait_for_sleepers(1)
        clock.advance(3)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 3 * BURST)
        await opened(driver)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 6 * BURST)
    assert caplog.text.count("did not say that it is ready") == 1
    # Another connection starts from scratch, and a client that sends ready is waited for each time.
    async with served(agent, hello) as driver:
        await driver.notify("session/ready", sessionId=await opened(driver))
        for _ in range(2):
            before = len(driver.updates("agent_message_chunk"))
            session = await opened(driver)
            await driver.call("session/list")
            told = [each["params"]["sessionId"] for each in driver.frames if "params" in each]
            assert session not in told
            await clock.wait_for_sleepers(1)
            clock.advance(3)
            await driver.until(lambda _, least=before + 3 * BURST: len(driver.updates()) >= least)


@pytest.mark.parametrize(
    "hello",
    [
        {**V1_PLUS, "clientInfo": {"name": "zed", "version": "1.18.0"}},
        {**V1_PLUS, "clientCapabilities": {"session": {"ready": False}}},
        {**V2, "capabilities": {"_meta": {"turnwire": {"ready": False}}}},
    ],
)
async def test_who_never_says_it_is_neither_offered_it_nor_waited_for(hello: Json) -> None:
    agent, _ = bus(AgentOptions(ready_s=None))
    async with served(agent, hello) as driver:
        assert "ready" not in str(driver.frames[0]["result"])
        await opened(driver)
        await driver.until(lambda _: len(driver.updates("agent_message_chunk")) == 3 * BURST)


@each_dialect
async def test_a_prompt_counts_as_ready_and_its_own_updates_are_not_held(hello: Json) -> None:
    async def answer(turn: Turn) -> None:
        turn.say("answered")

    agent, _ = bus(AgentOptions(ready_s=None), answers=answer)
    async with served(agent, hello) as driver:
        session = await opened(driver)
        assert await driver.take_turn(session) == "end_turn"
        texts = [each["content"]["text"] for each in driver.updates("agent_message_chunk")]
        assert len(texts) == 3 * BURST + 1
        assert texts[-1] == "answered"


@pytest.mark.parametrize("name", ["session/ready", "_session/ready"])
async def test_ready_is_never_answered_and_odd_ones_have_no_effect(name: str) -> None:
    agent, _ = bus(AgentOptions(ready_s=None))
    async with served(agent, V1) as driver:
        await driver.notify(name, sessionId="nobody")
        await driver.notify(name)
        session = await opened(driver)
        await driver.notify(name, sessionId="nobody")
        await driver.call("session/list")
        assert driver.updates() == []
        for _ in range(3):
            await driver.notify(name, sessionId=session)
        await driver.call("session/list")
        assert len(driver.updates("agent_message_chunk")) == 3 * BURST
        answers = [each for each in driver.frames if "method" not in each]
        assert len(answers) == 4


async def test_readiness_is_per_connection_and_session() -> None:
    agent, sessions = bus(AgentOptions(ready_s=None))
    async with served(agent, V1) as one, served(agent, V2) as two:
        first, other = await opened(one), await opened(one)
        await two.call("session/resume", sessionId=first, cwd=CWD)
        await one.notify("session/ready", sessionId=first)
        await one.call("session/list")
        await two.call("session/list")
        told = {each["params"]["sessionId"] for each in one.frames if each.get("method") == "session/update"}
        assert told == {first}
        assert two.updates("agent_message_chunk") == []
        assert other != first
        assert len(sessions) == 3


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_a_question_before_ready_waits_for_it_but_never_for_ever(hello: Json) -> None:
    clock = ManualClock()
    agent, sessions = bus(AgentOptions(ready_s=None), clock)
    async with served(agent, hello) as driver, anyio.create_task_group() as tasks:
        await opened(driver)

        async def ask() -> None:
            async with agent.turn(sessions[0]) as turn:
                assert await turn.ask("May I?")

        tasks.start_soon(ask)
        await clock.wait_for_sleepers(1)
        assert "session/request_permission" not in driver.kinds()
        clock.advance(2)
        await driver.until(lambda each: each.get("method") == "session/request_permission")


async def test_too_much_before_ready_is_an_error_to_its_author_and_states_are_coalesced() -> None:
    agent, failures = Agent("flood", options=AgentOptions(ready_s=None, held=8)), list[Any]()
    agent.prompt(say_nothing)

    @agent.opened
    def opened_(session: Session) -> None:
        async def flood() -> None:
            for number in range(100):
                session.commands = [Command(f"c{number}", "a command")]
            try:
                for number in range(100):
                    session.notify(chunk(number), 2)
            except LimitExceeded as error:
                failures.append(error.context["limit"])

        session.background(flood)

    async with served(agent, V2) as driver:
        session = await opened(driver)
        await driver.call("session/list")
        await driver.notify("session/ready", sessionId=session)
        await driver.call("session/list")
        assert failures == ["held"]
        told = driver.updates("available_commands_update")
        assert told[-1]["availableCommands"][0]["name"] == "c99"
        assert len(driver.updates()) == 8
