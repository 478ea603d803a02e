"""Cancelling: the work stops at once, the turn still ends once, and always as `cancelled`."""

from __future__ import annotations

import anyio
import pytest
from tests.agent.kit import BARE, CWD, DIALECTS, V1, V1_PLUS, V2, Json, served, word_of
from tests.support.acp_client import is_answer, update_of

from turnwire.agent import Agent, AgentOptions, Turn
from turnwire.errors import AgentFailure
from turnwire_testing import ManualClock

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


async def test_a_v2_cancel_takes_back_the_prompts_of_its_client_that_wait_and_nobody_elses() -> None:
    agent, _ = hanging()
    async with served(agent, V2) as driver, served(agent, V2) as other:
        session = await driver.new()
        await other.call("session/resume", sessionId=session, cwd=CWD)
        await other.notify("session/ready", sessionId=session)
        first, second = [await driver.prompt(session, each) for each in ("a", "b")]
        await driver.update("agent_message_chunk")
        theirs = await other.prompt(session, "theirs")
        third = await driver.prompt(session, "c")
        await driver.notify("session/cancel", sessionId=session)
        for waiting in (second, third):
            assert (await driver.answer(waiting))["error"]["code"] == -32800
        assert await driver.end_of(first) == "cancelled"
        assert "messageId" in (await other.answer(theirs))["result"]
        await other.notify("session/cancel", sessionId=session)
        await driver.until(lambda _: driver.kinds().count("idle") == 2)
        shown = [each["content"][0]["text"] for each in driver.updates("user_message")]
        assert shown == ["a", "theirs"]


@pytest.mark.parametrize("hello", [V1, V1_PLUS], ids=["v1", "v1plus"])
async def test_a_v1_cancel_stops_what_runs_and_leaves_the_prompts_that_wait(hello: Json) -> None:
    agent, _ = hanging()
    async with served(agent, hello) as driver:
        session = await driver.new()
        first, second, third = [await driver.prompt(session, each) for each in ("a", "b", "c")]
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        ended = await driver.answer(first)
        assert ended["result"]["stopReason"] == "cancelled"
        # The next one begins after that end, and is not stopped by the cancel before it.
        begun = driver.frames.index(ended)
        await driver.update("agent_message_chunk", begun, content={"type": "text", "text": "begun"})
        await driver.notify("$/cancel_request", requestId=third)
        assert (await driver.answer(third))["error"]["code"] == -32800
        assert not [each for each in driver.frames if is_answer(each, second)]
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(second) == "cancelled"


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


# -- tool calls that are open --------------------------------------------------------------------------------------


def opening_calls() -> Agent:
    """An agent that leaves tool calls open in every possible way."""
    agent = Agent("opening")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        old: Json = {
            "sessionUpdate": "tool_call",
            "toolCallId": "v1 words",
            "title": "Old",
            "status": "in_progress",
        }
        turn.update(old, 1)
        turn.publish({"sessionUpdate": "tool_call_update", "toolCallId": "no status", "title": "New"})
        turn.update({**old, "toolCallId": "ended"}, 1)
        turn.update({"sessionUpdate": "tool_call_update", "toolCallId": "ended", "status": "completed"}, 1)
        turn.publish({"sessionUpdate": "tool_call_update", "toolCallId": "ended", "rawOutput": 1})
        turn.tool("Announced", id="announced").announce()
        async with turn.tool("Inside", id="inside") as call:
            call.say("output")
            turn.say("begun")
            if turn.text == "return":
                return
            if turn.text == "fail":
                raise AgentFailure("broken")
            await anyio.sleep_forever()

    return agent


def last_statuses(frames: list[Json]) -> dict[str, str]:
    told = [update_of(each) for each in frames if update_of(each).get("toolCallId")]
    return {each["toolCallId"]: each["status"] for each in told if each.get("status")}


def all_stopped(version: int) -> dict[str, str]:
    left_open = ("v1 words", "no status", "announced", "inside")
    return {**dict.fromkeys(left_open, "cancelled" if version == 2 else "failed"), "ended": "completed"}


@pytest.mark.parametrize("version", [1, 2])
async def test_calls_that_are_open_at_a_cancelled_turns_end_are_closed_before_it_for_everybody_and_in_replay(
    version: int,
) -> None:
    """On every stream and in replay."""
    agent = opening_calls()
    async with served(agent, BARE[version]) as driver, served(agent, BARE[3 - version]) as other:
        session = await driver.new()
        resumed: Json = {"sessionId": session, "cwd": CWD, "mcpServers": []}
        await other.call("session/resume", **resumed)
        await other.notify("session/ready", sessionId=session)
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        await driver.notify("session/cancel", sessionId=session)
        assert await driver.end_of(request) == "cancelled"
        assert last_statuses(driver.frames) == all_stopped(version)
        await other.until(lambda _: last_statuses(other.frames) == all_stopped(3 - version))
        is_end = "idle" if version == 2 else "answer"
        assert word_of(driver.frames[-1]) == is_end, "nothing of a turn comes behind its end"
        for each in (driver, other):
            before = len(each.frames)
            if each.version == 1:
                await each.call("session/load", **resumed)
            else:
                await each.call("session/resume", **resumed, replayFrom={"type": "start"})
            assert last_statuses(each.frames[before:]) == all_stopped(each.version)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("text", "ends_others"), [("fail", True), ("return", False)])
async def test_calls_that_are_told_by_updates_go_on_behind_a_turn_unless_it_failed(
    version: int, text: str, ends_others: bool
) -> None:
    async with served(opening_calls(), BARE[version]) as driver:
        request = await driver.prompt(await driver.new(), text)
        await driver.end_of(request)
        told = last_statuses(driver.frames)
        assert told["v1 words"] == ("failed" if ends_others else "in_progress")
        assert told["announced"] == "failed"
        assert told["ended"] == "completed"
