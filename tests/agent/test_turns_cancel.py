"""Cancelling: the work stops at once, the turn still ends once, and always as `cancelled`."""

from __future__ import annotations

import anyio
import pytest
from tests.agent.kit import DIALECTS, V1, V1_PLUS, V2, Json, served, word_of

from turnwire.agent import Agent, AgentOptions, Turn
from turnwire.errors import AgentFailure
from turnwire.testing import ManualClock

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def hanging() -> tuple[Agent, list[str]]:
    agent, log = Agent("hanging"), list[str]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        try:
            async with turn.tool("Long"):
                await anyio.sleep_forever()
        finally:
            log.append("stopped" if turn.cancelled else "left")
            turn.say("bye")
            if turn.text == "raise":
                raise AgentFailure("an abort that must not leak")

    return agent, log


@each_dialect
@pytest.mark.requirement("R9", "R14", "R15", "R17", "R23", "R36")
@pytest.mark.parametrize("text", ["hang", "raise"])
async def test_a_cancelled_turn_stops_and_ends_cancelled_whatever_it_raises(hello: Json, text: str) -> None:
    agent, log = hanging()
    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session, text)
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(request) == "cancelled"
        assert log == ["stopped"]
        assert driver.said() == "begunbye"
        final = driver.updates("tool_call_update")[-1]["status"]
        assert final == ("cancelled" if driver.version == 2 else "failed")
        if hello is V1_PLUS:
            [mark] = driver.updates("turn_complete")
            assert mark["stopReason"] == "cancelled"
        assert word_of(driver.frames[-1]) == ("idle" if driver.version == 2 else "answer")
        await driver.notify("session/cancel", sessionId=session)
        await driver.notify("session/cancel", sessionId="nobody")
        assert (await driver.call("session/list"))["sessions"]


@each_dialect
async def test_a_turn_that_swallows_its_cancellation_ends_cancelled(hello: Json) -> None:
    agent = Agent("stubborn")

    @agent.prompt
    async def answer(turn: Turn) -> str:
        turn.say("begun")
        for _ in range(3):
            with anyio.CancelScope():
                try:
                    await anyio.sleep_forever()
                except BaseException:  # noqa: BLE001  what a careless author writes
                    continue
        return "end_turn"

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(request) == "cancelled"


@each_dialect
@pytest.mark.requirement("R14")
async def test_a_turn_that_does_not_stop_is_ended_without_it_and_is_late_from_then_on(hello: Json) -> None:
    clock, go = ManualClock(), anyio.Event()
    agent = Agent("deaf", clock=clock, options=AgentOptions(max_cancel_s=5, ready_s=0))

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        with anyio.CancelScope(shield=True):
            await go.wait()
        turn.say("at last")

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        await clock.wait_for_sleepers(1)
        clock.advance(5)
        assert await driver.end_of(request) == "cancelled"
        ended = len(driver.frames)
        go.set()
        late = await driver.update("agent_message_chunk", ended)
        assert late["_meta"] == {"turnwire": {"late": True}}


@each_dialect
@pytest.mark.requirement("R15", "R37")
async def test_a_question_is_taken_back_when_its_turn_is_cancelled(hello: Json) -> None:
    agent = Agent("asking")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        async with turn.tool("Delete") as call:
            await turn.ask(call)
        turn.say("not reached")

    async with served(agent, hello) as driver:
        driver.choice = None
        session = await driver.new()
        request = await driver.prompt(session)
        question = await driver.until(lambda each: each.get("method") == "session/request_permission")
        await driver.notify("session/cancel", sessionId=session)
        withdrawn = await driver.until(lambda each: each.get("method") == "$/cancel_request")
        assert withdrawn["params"] == {"requestId": question["id"]}
        assert await driver.end_of(request) == "cancelled"
        assert driver.said() == ""
        # An answer that comes too late is nothing to anybody.
        outcome = {"outcome": "selected", "optionId": "allow_once"}
        await driver.send({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": outcome}})
        states = [each["state"] for each in driver.updates("state_update")]
        assert states == ([] if driver.version == 1 else ["running", "requires_action", "idle"])


@pytest.mark.requirement("R43")
@each_dialect
async def test_a_cancel_takes_back_the_prompts_that_wait(hello: Json) -> None:
    agent, _ = hanging()
    async with served(agent, hello) as driver:
        session = await driver.new()
        first, second, third = [await driver.prompt(session, each) for each in ("a", "b", "c")]
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(first) == "cancelled"
        for waiting in (second, third):
            answer = await driver.answer(waiting)
            if driver.version == 2:
                assert answer["error"]["code"] == -32800
            else:
                assert answer["result"]["stopReason"] == "cancelled"
        if hello is V1_PLUS:
            marked = [each["promptRequestId"] for each in driver.updates("turn_complete")]
            assert sorted(map(str, marked)) == sorted(map(str, (first, second, third)))
        assert len(driver.updates("user_message")) == (1 if driver.version == 2 else 0)


@pytest.mark.requirement("R43")
@each_dialect
async def test_one_waiting_prompt_is_taken_back_by_its_request(hello: Json) -> None:
    agent, _ = hanging()
    async with served(agent, hello) as driver:
        session = await driver.new()
        first = await driver.prompt(session, "a")
        second = await driver.prompt(session, "b", request_id="second")
        await driver.update("agent_message_chunk")
        await driver.notify("$/cancel_request", requestId="second")
        assert (await driver.answer(second))["error"]["code"] == -32800
        await driver.notify("$/cancel_request", requestId="nothing")
        await driver.notify("$/cancel_request", requestId=first)
        if driver.version == 2:
            # Its request has been answered: it is in the conversation, and only `session/cancel` stops it.
            await driver.call("session/list")
            assert "idle" not in driver.kinds()
            await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(first) == "cancelled"


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_a_cancel_right_behind_its_prompt_is_heard(hello: Json) -> None:
    agent, ran = Agent("quick"), list[str]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        ran.append("ran")
        await anyio.sleep_forever()

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.notify("session/cancel", sessionId=session)
        end = await driver.end_of(request)
        assert end == "cancelled" or (isinstance(end, dict) and end["code"] == -32800)
