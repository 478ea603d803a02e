"""A prompt, from its request to its one end, in every dialect."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.agent.kit import BARE, DIALECTS, V1, V1_PLUS, V2, Driver, Json, served, word_of
from tests.support.acp_client import update_of

from turnwire.agent import Agent, AgentFailure, AgentOptions, Entry, Turn

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def talking(options: AgentOptions | None = None) -> Agent:
    agent = Agent("talking", options=options)

    @agent.prompt
    async def answer(turn: Turn) -> str | None:
        if turn.text == "fail":
            raise AgentFailure("no model", jsonrpc=-32050, data=b'{"why":"quota"}')
        if turn.text == "break":
            raise KeyError("a secret")
        turn.say("one ")
        turn.say("two")
        return None if turn.text == "hello" else turn.text

    return agent


def marks(driver: Driver) -> list[Json]:
    return driver.updates("turn_complete")


@each_dialect
@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"])
async def test_a_turn_ends_once_with_the_stop_reason_of_its_function(hello: Json, reason: str) -> None:
    async with served(talking(), hello) as driver:
        session = await driver.new()
        assert await driver.take_turn(session, reason) == reason
        assert driver.said() == "one two"
        is_end = "idle" if driver.version == 2 else "answer"
        assert word_of(driver.frames[-1]) == is_end
        if driver.version == 2:
            assert driver.kinds().count("idle") == 1


async def test_a_v2_prompt_is_told_then_answered_then_runs() -> None:
    async with served(talking(), V2) as driver:
        session = await driver.new()
        start = len(driver.frames)
        request = await driver.prompt(session)
        await driver.end_of(request)
        words = driver.kinds()[start:]
        assert words[:4] == ["user_message", "answer", "running", "agent_message_chunk"]
        told = update_of(driver.frames[start])
        assert told["content"] == [{"type": "text", "text": "hello"}]
        assert (await driver.answer(request))["result"] == {"messageId": told["messageId"]}


@each_dialect
async def test_a_failure_of_the_author_reaches_the_client_as_it_is(hello: Json) -> None:
    async with served(talking(), hello) as driver:
        session = await driver.new()
        assert await driver.take_turn(session, "fail") == {
            "code": -32050,
            "message": "no model",
            "data": {"why": "quota"},
        }
        assert await driver.take_turn(session) == "end_turn"


@each_dialect
async def test_any_other_exception_fails_the_turn_without_a_word_of_it(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(talking(), hello) as driver:
        session = await driver.new()
        error = await driver.take_turn(session, "break")
        assert isinstance(error, dict)
        assert error["code"] == -32603
        assert "secret" not in str(driver.frames)
        assert "a secret" in caplog.text
        assert await driver.take_turn(session) == "end_turn"


@each_dialect
async def test_a_stop_reason_that_acp_does_not_have_is_a_failure(hello: Json) -> None:
    async with served(talking(), hello) as driver:
        error = await driver.take_turn(await driver.new(), "tired")
        assert isinstance(error, dict)
        assert error["code"] == -32603


# -- turn_complete -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", [7, "7", "a b", -3])
async def test_the_marker_comes_once_before_the_answer_and_names_the_request_as_it_was(
    request_id: int | str,
) -> None:
    async with served(talking(), V1_PLUS) as driver:
        session = await driver.new()
        answer = await driver.answer(await driver.prompt(session, "refusal", request_id))
        assert answer["id"] == request_id
        assert type(answer["id"]) is type(request_id)
        [mark] = marks(driver)
        assert mark["promptRequestId"] == request_id
        assert type(mark["promptRequestId"]) is type(request_id)
        assert mark["stopReason"] == answer["result"]["stopReason"] == "refusal"
        words = driver.kinds()
        assert words[-2:] == ["turn_complete", "answer"]
        assert words.index("turn_complete") > len(words) - 1 - words[::-1].index("agent_message_chunk")


async def test_a_failed_turn_is_marked_with_its_error_and_a_rejected_prompt_not_at_all() -> None:
    async with served(talking(), V1_PLUS) as driver:
        session = await driver.new()
        await driver.take_turn(session, "fail")
        [mark] = marks(driver)
        assert (mark["stopReason"], mark["error"]["message"]) == ("refusal", "no model")
        await driver.fails("session/prompt", sessionId=session, prompt=[])
        await driver.fails("session/prompt", sessionId="nobody", prompt=[{"type": "text", "text": "x"}])
        assert len(marks(driver)) == 1


ASKS: Json = {**V1, "clientCapabilities": {"session": {"turnComplete": {}}}}
ZED: Json = {**V1_PLUS, "clientInfo": {"name": "zed", "version": "1.18.0"}}


@pytest.mark.parametrize(
    ("hello", "policy", "gets"),
    [
        (V1_PLUS, "auto", True),
        (V1, "auto", False),
        (ZED, "auto", False),
        (ASKS | {"clientInfo": ZED["clientInfo"]}, "auto", True),
        (V1, "always", True),
        (V1_PLUS, "asked", False),
        (ASKS, "asked", True),
        (ASKS, "off", False),
    ],
)
async def test_who_is_offered_the_marker_gets_it_and_nobody_else(hello: Json, policy: Any, gets: bool) -> None:
    async with served(talking(AgentOptions(turn_complete=policy)), hello) as driver:
        offered = driver.frames[0]["result"]["agentCapabilities"]["sessionCapabilities"]
        result = (await driver.answer(await driver.prompt(await driver.new())))["result"]
        assert ("turnComplete" in offered, len(marks(driver))) == (gets, gets)
        assert result["_meta"]["turnwire"]["turnComplete"]["stopReason"] == result["stopReason"]


# -- what a turn says ----------------------------------------------------------------------------------------------


@each_dialect
async def test_everything_a_turn_says_is_told_in_order(hello: Json) -> None:
    agent = Agent("rich")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.think("hm")
        turn.say("a")
        turn.say("b")
        turn.plan(["first", Entry("second", "in_progress", "high")])
        turn.say("c")
        turn.usage(input_tokens=10, output_tokens=5, cached_tokens=2)
        turn.usage(input_tokens=1, context_used=50, context_size=100, cost=(0.5, "EUR"))
        turn.say({"type": "image", "data": "AAAA", "mimeType": "image/png"})

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        await driver.end_of(request)
        plan = "plan_update" if driver.version == 2 else "plan"
        said = [
            each
            for each in driver.updates()
            if each["sessionUpdate"] not in {"state_update", "user_message", "session_info_update", "turn_complete"}
        ]
        assert [each["sessionUpdate"] for each in said] == [
            "agent_thought_chunk",
            "agent_message_chunk",
            "agent_message_chunk",
            plan,
            "agent_message_chunk",
            "usage_update",
            "agent_message_chunk",
        ]
        ids = [each.get("messageId") for each in said]
        assert ids[1] == ids[2]
        assert len({ids[0], ids[1], ids[4], ids[6]}) == 4
        entries = said[3]["plan"]["entries"] if driver.version == 2 else said[3]["entries"]
        assert [each["status"] for each in entries] == ["pending", "in_progress"]
        assert said[5]["cost"] == {"amount": 0.5, "currency": "EUR"}
        usage = {"totalTokens": 16, "inputTokens": 11, "outputTokens": 5, "cachedReadTokens": 2}
        if driver.version == 2:
            assert (await driver.update("state_update", state="idle"))["usage"] == usage
        else:
            assert (await driver.answer(request))["result"]["usage"] == usage
            assert all(each["usage"] == usage for each in driver.updates("turn_complete"))


WHOLE: list[Json] = [{"type": "text", "text": "all "}, {"type": "text", "text": "of it"}]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_whole_message_passes_as_such_to_v2_clients_and_in_pieces_to_v1_clients_also_in_replay(
    version: int,
) -> None:
    agent = Agent("whole")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.update({"sessionUpdate": "agent_message", "content": WHOLE}, 2)
        begun = turn.new_id("m")
        piece = {"messageId": begun, "content": {"type": "text", "text": "all"}}
        turn.update({"sessionUpdate": "agent_message_chunk", **piece}, 2)
        turn.update({"sessionUpdate": "agent_message", "messageId": begun, "content": WHOLE}, 2)
        turn.session.notify({"sessionUpdate": "agent_message", "content": WHOLE[:1]}, 2)

    async with served(agent, BARE[version]) as driver:
        session = await driver.new()
        assert await driver.take_turn(session) == "end_turn"
        live = pieces(driver)
        if version == 2:
            assert [text for text, _ in live] == ["all of it", "all", "all of it", "all "]
            (_, one), (_, two), (_, same), (_, three) = live
        else:
            # A v1 client receives only missing text: the rest of a message that it has partly.
            assert [text for text, _ in live] == ["all ", "of it", "all", " ", "of it", "all "]
            one, two, same, three = live[0][1], live[2][1], live[4][1], live[5][1]
            assert live[1][1] == one
        assert two == same
        assert len({one, two, three}) == 3, "one that was not named got a name of its own"
        before = len(driver.frames)
        opening: Json = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
        if version == 2:
            await driver.call("session/resume", **opening, replayFrom={"type": "start"})
        else:
            await driver.call("session/load", **opening)
        assert pieces(driver, before) == live


def pieces(driver: Driver, start: int = 0) -> list[tuple[str, str]]:
    """Return the texts and ids of the received messages, whole ones and chunks."""
    found = [update_of(each) for each in driver.frames[start:]]
    told = [each for each in found if each.get("sessionUpdate") in {"agent_message", "agent_message_chunk"}]
    return [(text_of(each), each["messageId"]) for each in told]


def text_of(update: Json) -> str:
    is_whole = update["sessionUpdate"] == "agent_message"
    blocks: list[Json] = update["content"] if is_whole else [update["content"]]
    return "".join(each["text"] for each in blocks)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("text", ["end", "cancel", "fail"])
async def test_the_usage_of_a_turn_is_told_with_its_end_however_that_is(version: int, text: str) -> None:
    agent = Agent("spending")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.usage(input_tokens=4, output_tokens=3, cached_write_tokens=2)
        turn.say("spent")
        if turn.text == "fail":
            raise AgentFailure("no more")
        if turn.text == "cancel":
            await anyio.sleep_forever()

    async with served(agent, BARE[version]) as driver:
        session = await driver.new()
        request = await driver.prompt(session, text)
        await driver.update("agent_message_chunk")
        if text == "cancel":
            await driver.notify("session/cancel", sessionId=session)
        await driver.end_of(request)
        usage = {"totalTokens": 7, "inputTokens": 4, "outputTokens": 3, "cachedWriteTokens": 2}
        if version == 2:
            assert (await driver.update("state_update", state="idle"))["usage"] == usage
        elif text != "fail":
            # An error has no place for it.
            assert (await driver.answer(request))["result"]["usage"] == usage


@each_dialect
async def test_prompts_that_come_while_a_turn_runs_wait_and_run_in_order(hello: Json) -> None:
    agent, go = Agent("slow", options=AgentOptions(max_queued=2)), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        await go.wait()
        turn.say(turn.text)

    async with served(agent, hello) as driver:
        session = await driver.new()
        requests = [await driver.prompt(session, each) for each in "abc"]
        refused = await driver.answer(await driver.prompt(session, "d"))
        assert refused["error"]["code"] < 0
        go.set()
        for request in requests:
            await driver.answer(request)
        await driver.until(lambda each: update_of(each).get("content") == {"type": "text", "text": "c"})
        if driver.version == 2:
            await driver.until(lambda _: driver.kinds().count("idle") == 3)
            shown = [each["content"][0]["text"] for each in driver.updates("user_message")]
            assert shown == ["a", "b", "c"]
        assert driver.said() == "abc"
