"""Turns that are cancelled, cut or held up: each has its end, and the next prompt finds a conversation in order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from tests.process.starting import watching

from agent_kit.talk import WAIT_S, anthropic_model, openai_model, talking
from turnwire_agent.loop import STOPPED
from turnwire_testing import ManualClock
from turnwire_testing.models import CallTool, Cut, Fail, FakeAnthropic, FakeOpenAI, Hang, Reply, Say, Spend

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


def says(text: str) -> Callable[[dict[str, Any]], bool]:
    def found(update: dict[str, Any]) -> bool:
        return text in json.dumps(update)

    return found


async def test_a_cancel_in_the_middle_of_a_stream_ends_the_request_and_keeps_what_was_said(
    version: int, tmp_path: Path
) -> None:
    replies: list[Reply] = [[Say("Once upon a time"), Hang()], [Say("As I said.")]]
    async with (
        FakeAnthropic(replies) as server,
        talking(tmp_path, anthropic_model(server), version=version) as talk,
    ):
        turn = talk.session.prompt("tell me a story")
        await talk.until(says("Once upon"))
        await talk.session.cancel()
        with anyio.fail_after(WAIT_S):
            ended = await turn
            await server.exchanges[0].gone.wait()
        told = await talk.turn("go on")
    assert ended.stop_reason == "cancelled"
    assert told.text == "As I said."
    kept = json.dumps(server.requests[1]["messages"])
    assert "Once upon a time" in kept
    assert STOPPED in kept


async def test_a_cancel_while_a_command_runs_ends_its_whole_tree(version: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    command = "sleep 600 & echo $! $$ > pids; wait"
    replies: list[Reply] = [[CallTool("run", {"command": command})], [Say("fine")]]
    given: dict[str, Any] = {"version": version, "answers": ["allow_once"]}
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server), **given) as talk:
        turn = talk.session.prompt("run it")
        with anyio.fail_after(WAIT_S):
            pids = await to_thread.run_sync((tmp_path / "pids").read_text, abandon_on_cancel=True)
        with watching(*map(int, pids.split())) as watch:
            await talk.session.cancel()
            with anyio.fail_after(WAIT_S):
                ended = await turn
            await watch.gone()
        assert ended.stop_reason == "cancelled"
        told = await talk.turn("and now?")
    assert told.text == "fine"
    calls = [each for each in server.requests[1]["messages"] if each.get("tool_calls")]
    answers = [each for each in server.requests[1]["messages"] if each["role"] == "tool"]
    assert len(calls) == len(answers) == 1


async def test_a_cancel_while_a_permission_is_waited_for_runs_nothing(version: int, tmp_path: Path) -> None:
    replies: list[Reply] = [
        [CallTool("run", {"command": "touch one"}), CallTool("run", {"command": "touch two"})],
        [Say("fine")],
    ]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server), version=version) as talk:
        talk.leaves_open = True
        turn = talk.session.prompt("run them")
        await talk.until_asked()
        await talk.session.cancel()
        with anyio.fail_after(WAIT_S):
            ended = await turn
        told = await talk.turn("and now?")
    assert ended.stop_reason == "cancelled"
    assert told.text == "fine"
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()
    assert len([each for each in server.requests[1]["messages"] if each["role"] == "tool"]) == 2


@pytest.mark.parametrize(
    ("failure", "told_as"),
    [
        (Fail(429, retry_after=7), "lets no more requests through"),
        (Fail(500), "overloaded"),
        (Cut(), ""),
    ],
    ids=["429", "500", "cut before the first piece"],
)
async def test_a_failure_that_may_pass_is_tried_again_and_told(
    failure: Fail | Cut, told_as: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    replies: list[Reply] = [[failure], [Say("there I am")]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server, clock)) as talk:
        turn = talk.session.prompt("hello?")
        await talk.until(says("try 2 comes in"))
        await clock.wait_for_sleepers(1)
        clock.advance(60)
        with anyio.fail_after(WAIT_S):
            result = await turn
        told = talk.told(result.prompt_id)
    assert told.text == "there I am"
    assert told_as in told.thoughts()
    assert len(server.requests) == 2


async def test_a_provider_that_stays_broken_ends_the_turn_with_what_to_do(version: int, tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        FakeOpenAI(lambda body: [Fail(503)]) as server,
        talking(tmp_path, openai_model(server, clock), version=version) as talk,
        anyio.create_task_group() as tasks,
    ):

        async def let_time_pass() -> None:
            await talk.until(says("try 2 comes in"))
            while True:
                await clock.wait_for_sleepers(1)
                clock.advance(120)

        tasks.start_soon(let_time_pass)
        assert "send the prompt again" in await talk.failure("hello?")
        tasks.cancel_scope.cancel()
    assert len(server.requests) > 2


async def test_a_stream_that_breaks_in_the_middle_is_asked_to_go_on_and_the_user_sees_it(
    version: int, tmp_path: Path
) -> None:
    replies: list[Reply] = [
        [Say("The answer is forty", pieces=2), CallTool("run", {"command": "touch x"}), Cut()],
        [Say("-two."), Spend(10, 5)],
    ]
    async with (
        FakeAnthropic(replies) as server,
        talking(tmp_path, anthropic_model(server), version=version) as talk,
    ):
        told = await talk.turn("what is it?")
    assert told.stop_reason == "end_turn"
    assert told.text == "The answer is forty-two."
    assert "broke in the middle" in told.thoughts()
    kept = json.dumps(server.requests[1]["messages"])
    assert "The answer is forty" in kept
    assert "Go on where it stopped" in kept
    assert not (tmp_path / "x").exists(), "a call of half an answer is not run"


async def test_a_stream_that_breaks_twice_ends_the_turn_and_keeps_what_was_said(tmp_path: Path) -> None:
    replies: list[Reply] = [[Say("one "), Cut()], [Say("two "), Cut()], [Say("three")]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        assert "go on" in await talk.failure("count")
        assert (await talk.turn("go on")).text == "three"
    kept = json.dumps(server.requests[2]["messages"])
    assert "one " in kept
    assert "two " in kept


async def test_a_conversation_that_is_too_long_is_shortened_once_and_told(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("a line of words\n" * 1000)
    look = [CallTool("read", {"path": "big.txt"})]
    too_long = [Fail(400, code="context_length_exceeded")]
    replies: list[Reply] = [look, look, look, too_long, [Say("now it fits")], too_long, too_long]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        told = await talk.turn("read it three times")
        assert "/clear" in await talk.failure("more")
    assert told.text == "now it fits"
    assert "too long" in told.thoughts()
    assert len(json.dumps(server.requests[4])) < len(json.dumps(server.requests[3])) / 1.2
