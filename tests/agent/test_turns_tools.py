"""Tool calls and permission: announced before they run, asked for before they act, one final status each."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, V2, Driver, Json, served, word_of
from tests.support.acp_client import update_of

from turnwire.agent import Agent, AgentFailure, NotOffered, PermissionOption, RequestRefused, Turn
from turnwire.errors import LocalProtocolError

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def asking() -> tuple[Agent, list[str]]:
    agent, done = Agent("asking"), list[str]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        async with turn.tool("Delete", kind="delete", input={"path": "x"}, locations=[("/x", 3)]) as call:
            if await turn.ask(call):
                done.append("ran")
                call.say("gone")

    return agent, done


def statuses(driver: Driver) -> list[str]:
    return [each["status"] for each in driver.updates("tool_call", "tool_call_update") if "status" in each]


@each_dialect
async def test_an_allowed_tool_is_announced_asked_for_run_and_completed(hello: Json) -> None:
    agent, done = asking()
    async with served(agent, hello) as driver:
        session = await driver.new()
        assert await driver.take_turn(session) == "end_turn"
        assert done == ["ran"]
        assert statuses(driver) == ["pending", "in_progress", "completed"]
        asked = driver.kinds().index("session/request_permission")
        told = [each.get("status") for each in map(update_of, driver.frames[:asked])]
        assert told.count("pending") == 1
        assert "in_progress" not in told
        announced = driver.updates("tool_call", "tool_call_update")[0]
        assert announced["title"] == "Delete"
        assert announced["rawInput"] == {"path": "x"}
        assert announced["locations"] == [{"path": "/x", "line": 3}]
        if driver.version == 2:
            states = [each["state"] for each in driver.updates("state_update")]
            assert states == ["running", "requires_action", "running", "idle"]


@each_dialect
@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"outcome": {"outcome": "selected", "optionId": "reject_once"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "made up"}}},
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": {"outcome": {"outcome": "_other", "optionId": "allow_once"}}},
        {"result": "nonsense"},
        {"error": {"code": -32603, "message": "no"}},
    ],
)
async def test_whatever_is_no_selected_allow_option_does_not_run_the_tool(hello: Json, answer: Json) -> None:
    agent, done = asking()
    async with served(agent, hello) as driver:
        driver.choice = None
        session = await driver.new()
        request = await driver.prompt(session)
        question = await driver.until(lambda each: each.get("method") == "session/request_permission")
        await driver.send({"jsonrpc": "2.0", "id": question["id"], **answer})
        assert await driver.end_of(request) == "end_turn"
        assert done == []
        assert statuses(driver) == ["pending", "failed"]


@each_dialect
async def test_a_choice_says_what_was_chosen(hello: Json) -> None:
    agent, chosen = Agent("asking"), list[Any]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        choice = await turn.ask("May I?", [PermissionOption("yes!", "Yes", "allow_always")], "It is safe.")
        chosen.append((bool(choice), choice.option_id, choice.kind, choice.always))
        with pytest.raises(LocalProtocolError, match="at least one option"):
            await turn.ask("And?", [])

    async with served(agent, hello) as driver:
        driver.choice = "yes!"
        assert await driver.take_turn(await driver.new()) == "end_turn"
        assert chosen == [(True, "yes!", "allow_always", True)]
        params = (await driver.until(lambda each: each.get("method") == "session/request_permission"))["params"]
        if driver.version == 2:
            assert (params["title"], params["description"]) == ("May I?", "It is safe.")
            assert "subject" not in params
        else:
            assert params["toolCall"]["title"] == "May I?"


@each_dialect
async def test_an_exception_in_a_tool_fails_it_and_goes_on(hello: Json) -> None:
    agent = Agent("failing")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        with pytest.raises(KeyError):
            async with turn.tool("First"):
                raise KeyError
        async with turn.tool("Second") as call:
            call.fail("no such file")
        async with turn.tool("Third"):
            raise AgentFailure("enough")

    async with served(agent, hello) as driver:
        error = await driver.take_turn(await driver.new())
        assert isinstance(error, dict)
        assert error["message"] == "enough"
        assert statuses(driver) == ["pending", "failed", "pending", "in_progress", "failed", "pending", "failed"]


@each_dialect
async def test_a_tool_that_was_left_open_is_closed_before_the_turn_ends(hello: Json) -> None:
    agent = Agent("forgetful")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.tool("Never closed").announce()
        turn.tool("Started").start()
        turn.tool("Never announced")

    async with served(agent, hello) as driver:
        assert await driver.take_turn(await driver.new()) == "end_turn"
        assert statuses(driver) == ["pending", "pending", "in_progress", "failed", "failed"]
        assert word_of(driver.frames[-1]) == ("idle" if driver.version == 2 else "answer")


async def test_a_diff_has_whole_texts_on_v1_and_a_patch_on_v2() -> None:
    agent = Agent("editing")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        async with turn.tool("Edit", kind="edit") as call:
            call.diff("/a.txt", "one\n", "two\n")
            call.diff("/b.txt", None, "new\n")
            call.locate("/a.txt", 1)
            call.output = {"changed": 2}
            call.title = "Edited"

    async with served(agent, V1) as driver:
        await driver.take_turn(await driver.new())
        shown = [each["content"] for each in driver.updates("tool_call_update") if "content" in each][-1]
        assert shown == [
            {"type": "diff", "path": "/a.txt", "oldText": "one\n", "newText": "two\n"},
            {"type": "diff", "path": "/b.txt", "oldText": None, "newText": "new\n"},
        ]
        assert "turnwire" not in str(driver.updates("tool_call_update"))
    async with served(agent, V2) as driver:
        await driver.take_turn(await driver.new())
        first, second = (each["content"] for each in driver.updates("tool_call_content_chunk"))
        assert first["changes"] == [{"operation": "modify", "path": "/a.txt"}]
        assert "-one\n+two\n" in first["patch"]["text"]
        assert second["changes"] == [{"operation": "add", "path": "/b.txt"}]
        assert "_meta" not in first
        patches = driver.updates("tool_call_update")
        told = [{name: each[name] for name in ("rawOutput", "title", "status") if name in each} for each in patches]
        # A diff may be shown before the call runs, so that the user sees the change to allow.
        assert told == [
            {"title": "Edit", "status": "pending"},
            {},
            {"rawOutput": {"changed": 2}},
            {"title": "Edited"},
            {"status": "in_progress"},
            {"status": "completed"},
        ]


async def test_v1_words_of_an_author_reach_a_v1_client_as_they_are_and_a_v2_client_translated() -> None:
    agent = Agent("old")
    terminal = {"type": "terminal", "terminalId": "term"}
    diff = {"type": "diff", "path": "/a", "oldText": "a", "newText": "b"}

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.update({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Old", "content": [terminal]}, 1)
        turn.update({"sessionUpdate": "tool_call_update", "toolCallId": "t", "content": [terminal, diff]}, 1)
        turn.update({"sessionUpdate": "plan", "entries": []}, 1)
        turn.session.notify({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}, 1)

    async with served(agent, V1) as driver:
        await driver.take_turn(await driver.new())
        assert driver.updates("tool_call")[0]["content"] == [terminal]
        assert driver.updates("tool_call_update")[0]["content"] == [terminal, diff]
        assert "plan" in driver.kinds()
        assert driver.said() == "x"
    async with served(agent, V2) as driver:
        await driver.take_turn(await driver.new())
        assert "plan_update" in driver.kinds()
        assert driver.updates("tool_call_update")[-1]["content"][1]["changes"] == [
            {"operation": "modify", "path": "/a"}
        ]
        assert driver.updates("agent_message_chunk")[0]["messageId"]


@each_dialect
async def test_a_form_is_filled_in_and_a_page_is_visited(hello: Json) -> None:
    agent, got = Agent("asking"), list[Any]()
    schema: Json = {"type": "object", "properties": {"name": {"type": "string"}}}

    @agent.prompt
    async def answer(turn: Turn) -> None:
        got.append(await turn.elicit("Who?", schema))
        got.append(await turn.elicit("Who?", schema))
        got.append(await turn.elicit_url("Log in", "https://example.org/"))

    async with served(agent, hello) as driver:
        request = await driver.prompt(await driver.new())
        seen = 0
        for result in (
            {"action": "accept", "content": {"name": "Ann"}},
            {"action": "decline"},
            {"action": "accept"},
        ):
            asked = await driver.until(lambda each: each.get("method") == "elicitation/create", seen)
            seen = driver.frames.index(asked) + 1
            await driver.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        assert await driver.end_of(request) == "end_turn"
        assert got == [{"name": "Ann"}, None, True]


def waits(driver: Driver) -> list[Any]:
    """Return the pending request of each state; for states without one, their name."""
    return [
        each["_meta"]["turnwire"]["waitsFor"] if "_meta" in each else each["state"]
        for each in driver.updates("state_update")
    ]


async def test_requires_action_names_its_request_to_who_was_asked_and_only_its_kind_to_others() -> None:
    agent = Agent("asking")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        await turn.ask("May I?")
        await turn.elicit("Who?", {"type": "object", "properties": {}})

    async with served(agent, V2) as driver, served(agent, V2) as other, served(agent, V2) as late:
        driver.choice = None
        session = await driver.new()
        await other.call("session/resume", sessionId=session, cwd=CWD)
        await other.notify("session/ready", sessionId=session)
        request = await driver.prompt(session)
        asked = await driver.until(lambda each: each.get("method") == "session/request_permission")
        await late.call("session/resume", sessionId=session, cwd=CWD)
        assert waits(late) == [[{"kind": "permission"}]], "one that comes in between hears it too"
        # The one that was asked opens the session again: its request is still open, by the same id.
        await driver.call("session/resume", sessionId=session, cwd=CWD)
        chosen = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        await driver.send({"jsonrpc": "2.0", "id": asked["id"], "result": chosen})
        form = await driver.until(lambda each: each.get("method") == "elicitation/create")
        await driver.send({"jsonrpc": "2.0", "id": form["id"], "result": {"action": "decline"}})
        assert await driver.end_of(request) == "end_turn"
        first = [{"requestId": asked["id"], "kind": "permission"}]
        second = [{"requestId": form["id"], "kind": "elicitation"}]
        assert waits(driver) == ["running", first, first, "running", second, "running", "idle"]
        await other.update("state_update", 4, state="idle", stopReason="end_turn")
        kinds = [[{"kind": "permission"}], [{"kind": "elicitation"}]]
        assert waits(other) == ["idle", "running", kinds[0], "running", kinds[1], "running", "idle"]


async def test_two_questions_at_once_are_both_named_until_each_is_answered() -> None:
    agent = Agent("asking")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        async def ask(what: str) -> None:
            await turn.ask(what)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "This?")
            tasks.start_soon(ask, "That?")

    async with served(agent, V2) as driver:
        driver.choice = None
        request = await driver.prompt(await driver.new())
        await driver.until(lambda _: driver.kinds().count("session/request_permission") == 2)
        asked = [each["id"] for each in driver.frames if each.get("method") == "session/request_permission"]
        one, two = ({"requestId": each, "kind": "permission"} for each in asked)
        for each in asked:
            outcome = {"outcome": {"outcome": "cancelled"}}
            await driver.send({"jsonrpc": "2.0", "id": each, "result": outcome})
        assert await driver.end_of(request) == "end_turn"
        assert waits(driver) == ["running", [one], [one, two], [two], "running", "idle"]


async def test_what_a_client_does_not_offer_is_not_asked_of_it() -> None:
    agent, got = Agent("asking"), list[str]()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        for ask in (turn.elicit("Who?", {}), turn.elicit_url("Go", "https://example.org/"), turn.request("_x/no")):
            try:
                await ask
            except NotOffered as error:
                got.append(str(error.context["what"]))
        with pytest.raises(RequestRefused):
            await turn.request("_x/other")

    hello: Json = {"protocolVersion": 1, "clientCapabilities": {}}
    async with served(agent, hello) as driver:
        request = await driver.prompt(await driver.new())
        for code, method in ((-32601, "_x/no"), (-32000, "_x/other")):
            asked = await driver.until(lambda each, method=method: each.get("method") == method)
            assert asked["params"]["sessionId"]
            await driver.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": "no"}})
        assert await driver.end_of(request) == "end_turn"
        assert got == ["elicitation.form", "elicitation.url", "_x/no"]
