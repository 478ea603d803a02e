"""The turn loop with the real model libraries and model servers that play a script, over both versions of ACP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_kit.talk import Talk, anthropic_model, openai_model, talking
from turnwire_agent.agent import AgentSettings
from turnwire_agent.work import Bounds
from turnwire_testing.models import CallTool, Fail, FakeAnthropic, FakeOpenAI, Reply, Say, Spend, Stop, Think

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@asynccontextmanager
async def asking(
    provider: str, cwd: Path, *replies: Reply, **given: Any
) -> AsyncGenerator[tuple[FakeOpenAI | FakeAnthropic, Talk]]:
    """A session whose model gives these replies."""
    if provider == "openai":
        async with FakeOpenAI(replies) as openai, talking(cwd, openai_model(openai), **given) as talk:
            yield openai, talk
    else:
        async with FakeAnthropic(replies) as anthropic, talking(cwd, anthropic_model(anthropic), **given) as talk:
            yield anthropic, talk


def results(request: Json) -> list[str]:
    """The texts of the tool results in a request, in order, as either API has them."""
    found: list[str] = []
    for message in request["messages"]:
        if message["role"] == "tool":
            found.append(_text(message["content"]))
        elif message["role"] == "user" and isinstance(message["content"], list):
            found += [_text(each["content"]) for each in message["content"] if each["type"] == "tool_result"]
    return found


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content)


def tool_names(request: Json) -> set[str]:
    return {each["function"]["name"] if "function" in each else each["name"] for each in request["tools"]}


async def test_a_model_looks_edits_and_checks_in_several_steps(provider: str, version: int, tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("hello world\n")
    replies: list[Reply] = [
        [Think("I should look first."), Say("I look."), CallTool("read", {"path": "greeting.txt"}), Spend(100, 10)],
        [CallTool("edit", {"path": "greeting.txt", "old": "world", "new": "moon"}), Spend(200, 20)],
        [CallTool("run", {"command": "cat greeting.txt"}), Spend(300, 30)],
        [Say("It says hello moon.", pieces=3), Spend(400, 40, cached=50)],
    ]
    async with asking(provider, tmp_path, *replies, version=version, answers=["allow_once"] * 2) as (server, talk):
        told = await talk.turn("greet the moon")

    assert told.stop_reason == "end_turn"
    assert (tmp_path / "greeting.txt").read_text() == "hello moon\n"
    assert told.text == "I look.It says hello moon."
    assert "look first" in told.thoughts()
    assert [status for _, status in told.statuses()].count("completed") == 3
    assert len(talk.asked) == 2
    assert "hello world" in results(server.requests[1])[0]
    assert "hello moon" in results(server.requests[3])[-1]
    assert {"read", "edit", "run", "write", "search", "list", "update_plan"} == tool_names(server.requests[0])
    usage = told.usage
    assert (usage["inputTokens"], usage["outputTokens"], usage["cachedReadTokens"]) == (1000, 100, 50)


async def test_parallel_calls_are_announced_together_and_their_results_come_in_order(
    provider: str, version: int, tmp_path: Path
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text of {name}\n")
    calls = [CallTool("read", {"path": f"{name}.txt"}) for name in "abc"]
    async with asking(provider, tmp_path, calls, [Say("done")], version=version) as (server, talk):
        told = await talk.turn("read all")

    statuses = told.statuses()
    assert statuses[:3] == [("1", "pending"), ("2", "pending"), ("3", "pending")]
    assert {each for each in statuses if each[1] == "completed"} == {(number, "completed") for number in "123"}
    found = results(server.requests[1])
    assert [f"text of {name}" in text for name, text in zip("abc", found, strict=True)] == [True] * 3


async def test_calls_that_change_something_run_one_after_the_other(provider: str, tmp_path: Path) -> None:
    calls = [
        CallTool("run", {"command": "echo one >> log"}),
        CallTool("run", {"command": "cat log; echo two >> log"}),
        CallTool("read", {"path": "log"}),
    ]
    answers = ["allow_once", "allow_once"]
    async with asking(provider, tmp_path, calls, [Say("done")], answers=answers) as (server, talk):
        await talk.turn("go")
    first, second, third = results(server.requests[1])
    assert "one" not in first
    assert "one" in second
    assert "one" in third
    assert "two" in third


async def test_a_denied_call_does_not_run_and_the_model_goes_on(
    provider: str, version: int, tmp_path: Path
) -> None:
    replies: list[Reply] = [[CallTool("write", {"path": "new.txt", "content": "x"})], [Say("As you wish.")]]
    async with asking(provider, tmp_path, *replies, version=version, answers=["reject_once"]) as (server, talk):
        told = await talk.turn("write it")
    assert told.stop_reason == "end_turn"
    assert told.text == "As you wish."
    assert not (tmp_path / "new.txt").exists()
    assert "did not allow" in results(server.requests[1])[0]
    assert told.statuses()[-1] == ("1", "failed")


async def test_what_is_allowed_for_good_is_not_asked_again_and_reaches_no_further(tmp_path: Path) -> None:
    def run(command: str) -> CallTool:
        return CallTool("run", {"command": command})

    replies: list[Reply] = [
        [run("echo one")],
        [run("echo two")],
        [run("echo three; touch sneaky")],
        [Say("done")],
        [run("echo four")],
        [Say("done")],
    ]
    async with asking("openai", tmp_path, *replies, answers=["allow_always", "reject_once"]) as (_, talk):
        await talk.turn("go")
        await talk.turn("again")
    assert len(talk.asked) == 2
    assert not (tmp_path / "sneaky").exists()
    names = [each["name"] for each in talk.asked[0]["options"]]
    assert "Always allow commands that begin with `echo` in this session" in names


async def test_in_plan_mode_the_model_is_not_offered_what_changes_and_may_not_use_it(tmp_path: Path) -> None:
    entries = [{"content": "look", "status": "completed"}, {"content": "write"}]
    replies: list[Reply] = [
        [CallTool("update_plan", {"entries": entries}), CallTool("write", {"path": "new.txt", "content": "x"})],
        [Say("That is the plan.")],
    ]
    settings = AgentSettings(mode="plan")
    async with asking("openai", tmp_path, *replies, settings=settings) as (server, talk):
        told = await talk.turn("plan it")
    assert tool_names(server.requests[0]) == {"read", "list", "search", "update_plan"}
    assert "plan mode" in json.dumps(server.requests[0])
    assert not (tmp_path / "new.txt").exists()
    assert "plan" in results(server.requests[1])[1]
    [shown] = told.kinds("plan_update")
    assert [each["status"] for each in shown["plan"]["entries"]] == ["completed", "pending"]


async def test_edits_are_accepted_in_that_mode_and_commands_still_ask(tmp_path: Path) -> None:
    replies: list[Reply] = [
        [CallTool("write", {"path": "new.txt", "content": "x"}), CallTool("run", {"command": "rm new.txt"})],
        [Say("done")],
    ]
    async with asking("openai", tmp_path, *replies, settings=AgentSettings(mode="accept_edits")) as (_, talk):
        await talk.turn("go")
    assert (tmp_path / "new.txt").read_text() == "x"
    assert len(talk.asked) == 1


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (CallTool("read", {"path": "../outside.txt"}), "outside"),
        (CallTool("read", {"path": "/etc/passwd"}), "outside"),
        (CallTool("read", {"path": "link/outside.txt"}), "outside"),
        (CallTool("edit", {"path": "../outside.txt", "old": "secret", "new": "x"}), "outside"),
        (CallTool("read", {"path": "nowhere.txt"}), "no such file"),
        (CallTool("read", {"file": "a"}), "arguments"),
        (CallTool("read", "{not json"), "JSON"),
        (CallTool("teleport", {}), "there is no tool 'teleport'"),
    ],
    ids=lambda each: each.name if isinstance(each, CallTool) else each,
)
async def test_a_call_that_cannot_be_done_is_told_to_the_model_which_goes_on(
    call: CallTool, why: str, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    async with asking("openai", inside, [call], [Say("I see.")]) as (server, talk):
        told = await talk.turn("go")
    assert told.text == "I see."
    assert told.statuses()[-1] == ("1", "failed")
    [found] = results(server.requests[1])
    assert why in found
    assert "secret" not in found
    assert not talk.asked


async def test_max_tokens_refusal_and_too_many_requests_have_their_stop_reasons(
    provider: str, version: int, tmp_path: Path
) -> None:
    look = CallTool("list", {"path": "."})
    replies: list[Reply] = [
        [Say("It is a long st"), Stop("length")],
        [Say("No. "), Stop("refusal")],
        [look],
        [look],
        [Say("hello")],
    ]
    settings = AgentSettings(bounds=Bounds(max_requests=2, max_tokens=99))
    async with asking(provider, tmp_path, *replies, version=version, settings=settings) as (server, talk):
        reasons = [(await talk.turn(each)).stop_reason for each in ("tell", "something bad", "look", "hi")]
    assert reasons == ["max_tokens", "refusal", "max_turn_requests", "end_turn"]
    last = json.dumps(server.requests[-1]["messages"])
    assert "something bad" not in last, "a refused prompt is not part of the next one"
    assert "It is a long st" in last
    limits = [server.requests[0].get(name) for name in ("max_tokens", "max_completion_tokens")]
    assert 99 in limits


async def test_a_failure_says_what_to_do_and_the_next_prompt_works(
    provider: str, version: int, tmp_path: Path
) -> None:
    replies: list[Reply] = [[Fail(401)], [Say("hello")]]
    async with asking(provider, tmp_path, *replies, version=version) as (server, talk):
        failed = await talk.failure("hello?")
        told = await talk.turn("and now?")
    assert f"{provider.upper()}_API_KEY" in failed
    assert told.text == "hello"
    assert "hello?" in json.dumps(server.requests[1])


async def test_a_request_that_a_provider_does_not_take_does_not_spoil_the_next(tmp_path: Path) -> None:
    async with asking("openai", tmp_path, [Fail(400)], [Say("hello")]) as (server, talk):
        assert "did not take the request" in await talk.failure("poison")
        assert (await talk.turn("and now?")).text == "hello"
    assert "poison" not in json.dumps(server.requests[1])
