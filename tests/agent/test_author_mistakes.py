"""Mistakes of agent authors, and their error messages: the value, and the allowed alternatives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.agent.kit import DIALECTS, V1, Driver, Json, served

from turnwire.agent import Agent, AgentFailure, Turn

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


async def failed_turn(driver: Driver, text: str, session: str | None = None) -> Json:
    """The error that a turn ends with."""
    end = await driver.take_turn(session or await driver.new(), text)
    assert isinstance(end, dict), end
    return end


async def told_by(act: Callable[[Turn], object]) -> BaseException:
    """Return the error that an author's function gets if it does this in a turn."""
    agent, found = Agent("wrong"), list[BaseException]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        try:
            act(turn)
        except (TypeError, ValueError) as error:
            found.append(error)

    async with served(agent, V1) as driver:
        await driver.take_turn(await driver.new(), "go")
    assert found, "nothing was said of the mistake"
    return found[0]


async def test_a_question_that_is_not_awaited_grants_nothing_and_asks_nobody() -> None:
    agent = Agent("hasty")
    deleted: list[str] = []

    @agent.prompt
    async def answer(turn: Turn) -> None:
        async with turn.tool("Delete everything", kind="delete") as call:
            if turn.ask(call):  # pyright: ignore[reportGeneralTypeIssues]  the mistake itself
                deleted.append("everything")

    async with served(agent, V1) as driver:
        error = await failed_turn(driver, "go")
        assert "session/request_permission" not in driver.kinds()
    assert deleted == []
    assert error["code"] == -32603


async def test_a_question_that_is_not_awaited_says_to_await_it() -> None:
    error = await told_by(lambda turn: bool(turn.ask("May I?")))
    assert isinstance(error, TypeError)
    assert "write `if await turn.ask(…):`" in str(error)


async def test_an_unknown_tool_kind_is_rejected_with_the_known_ones() -> None:
    error = await told_by(lambda turn: turn.tool("Draw", kind="fancy"))
    assert isinstance(error, ValueError)
    assert "there is no tool kind 'fancy'; use one of delete, edit, " in str(error)


async def test_a_tool_call_that_is_never_entered_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("forgets")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.tool("Read the file")
        async with turn.tool("Write the file"):
            pass

    async with served(agent, V1) as driver:
        await driver.take_turn(await driver.new(), "go")
    told = [each.getMessage() for each in caplog.records if "had no effect" in each.getMessage()]
    assert told == ["turn.tool('Read the file') had no effect; write `async with turn.tool(…) as call:`"]


def says(given: Any) -> Callable[[Turn], object]:
    return lambda turn: turn.say(given)


def plans(given: Any) -> Callable[[Turn], object]:
    return lambda turn: turn.plan(given)


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (says(42), TypeError, "give text or a content block, not int 42"),
        (says(None), TypeError, "not NoneType None"),
        (says(b"bytes"), TypeError, "not bytes b'bytes'"),
        (says({"text": "no type"}), ValueError, "a content block has a `type`"),
        (plans("text"), TypeError, "a plan is a list of texts or entries, not str 'text'"),
        (plans([1, 2]), TypeError, "not list [1, 2]; write plan([…])"),
        (plans(7), TypeError, "not int 7"),
    ],
    ids=["number", "nothing", "bytes", "block", "text-plan", "number-plan", "no-plan"],
)
async def test_what_cannot_be_said_is_named_with_what_can(
    act: Callable[[Turn], object], kind: type[Exception], words: str
) -> None:
    error = await told_by(act)
    assert type(error) is kind
    assert words in str(error)


@each_dialect
@pytest.mark.parametrize("returned", ["done", 42, {"stopReason": "end_turn"}], ids=["word", "number", "dict"])
async def test_a_return_value_that_is_no_stop_reason_is_named_with_those_there_are(
    hello: Json, returned: object
) -> None:
    agent = Agent("returns")

    @agent.prompt
    async def answer(turn: Turn) -> object:
        return returned

    async with served(agent, hello) as driver:
        error = await failed_turn(driver, "go")
    assert f"returned {type(returned).__name__} " in error["message"]
    assert "cancelled, end_turn, max_tokens" in error["message"]


@each_dialect
async def test_a_function_that_exits_ends_its_turn_and_not_the_agent(hello: Json) -> None:
    agent = Agent("exits")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        if turn.text == "exit":
            sys.exit(3)
        turn.say("still here")

    async with served(agent, hello) as driver:
        session = await driver.new()
        error = await failed_turn(driver, "exit", session)
        assert "SystemExit(3)" in error["message"]
        assert await driver.take_turn(session, "hello") == "end_turn"


def test_a_second_function_for_prompts_is_refused_with_the_name_of_the_first() -> None:
    agent = Agent("two")

    @agent.prompt
    async def first(turn: Turn) -> None: ...

    with pytest.raises(ValueError, match="first answers prompts already, so second cannot"):

        @agent.prompt
        async def second(turn: Turn) -> None: ...


async def test_what_an_author_means_as_a_failure_is_passed_on_as_it_is() -> None:
    agent = Agent("fails")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        raise AgentFailure("no more credit")

    async with served(agent, V1) as driver:
        assert (await failed_turn(driver, "go"))["message"] == "no more credit"
