"""Sessions: opened, brought back with their history, forked, listed, closed, shared by two clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, V1_PLUS, V2, Driver, Json, served
from tests.support.acp_client import update_of

from turnwire.agent import Agent, AgentFailure, Command, FolderStore, Mode, Option, Session, Turn, Value

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def keeping(store: FolderStore | None = None) -> Agent:
    agent = Agent("keeping", store=store)

    @agent.opened
    def opened(session: Session) -> None:
        session.modes = [Mode("ask", "Ask"), Mode("plan", "Plan", "Look, do not touch")]
        session.options = [
            Option("model", "Model", "small", ["small", Value("large", "Large")], category="model"),
            Option("loud", "Loud", False),
        ]
        session.commands = [Command("more", "Say more", "how much")]

    @agent.prompt
    async def answer(turn: Turn) -> None:
        count = turn.session.state["count"] = turn.session.state.get("count", 0) + 1
        turn.session.title = f"turn {count}"
        turn.think("hm")
        turn.say("a")
        turn.say("b")
        async with turn.tool("Edit") as call:
            call.diff("/a", None, "x")
        turn.say(f"{turn.session.mode} {turn.session.option('model')} {count}")

    return agent


async def load(driver: Driver, session: str) -> Any:
    if driver.version == 2:
        return await driver.call("session/resume", sessionId=session, cwd=CWD, replayFrom={"type": "start"})
    return await driver.call("session/load", sessionId=session, cwd=CWD, mcpServers=[])


@each_dialect
async def test_a_session_comes_back_with_its_history_its_choices_and_its_memory(
    hello: Json, tmp_path: Path
) -> None:
    async with served(keeping(FolderStore(tmp_path)), hello) as driver:
        session = await driver.new()
        await driver.take_turn(session, "first")
        if driver.version == 1:
            await driver.call("session/set_mode", sessionId=session, modeId="plan")
        else:
            set_plan = {"sessionId": session, "configId": "mode", "type": "id", "value": "plan"}
            await driver.call("session/set_config_option", **set_plan)
        original = driver
    async with served(keeping(FolderStore(tmp_path)), hello) as driver:
        start = len(driver.frames)
        result = await load(driver, session)
        answered = len(driver.frames) - 1
        replayed = [update_of(each) for each in driver.frames[start:answered]]
        kinds = [each["sessionUpdate"] for each in replayed]
        v2 = driver.version == 2
        assert kinds[0] == ("user_message" if v2 else "user_message_chunk")
        texts = [each["content"]["text"] for each in replayed if each["sessionUpdate"] == "agent_message_chunk"]
        assert texts == ["ab", "ask small 1"]
        ids = {each["messageId"] for each in original.updates("agent_message_chunk")}
        assert {each["messageId"] for each in replayed if each["sessionUpdate"] == "agent_message_chunk"} == ids
        if v2:
            assert [each.get("stopReason") for each in replayed if each["sessionUpdate"] == "state_update"] == [
                "end_turn",
                None,
            ]
            assert kinds[-1] == "state_update"
        elif hello is V1_PLUS:
            [mark] = [each for each in replayed if each["sessionUpdate"] == "turn_complete"]
            assert mark["stopReason"] == "end_turn"
        [diff] = [item for each in replayed for item in _items(each) if item["type"] == "diff"]
        assert ("changes" in diff) is v2
        assert ("newText" in diff) is not v2
        mode = next(each for each in result["configOptions"] if each.get("category") == "mode")
        assert mode["currentValue"] == "plan"
        await driver.take_turn(session, "second")
        assert driver.said().endswith("plan small 2")


def _items(update: Json) -> list[Json]:
    content: Any = update.get("content") or []
    if update["sessionUpdate"] == "tool_call_content_chunk":
        return [content]
    return content if update["sessionUpdate"] in {"tool_call", "tool_call_update"} else []


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_resuming_without_replay_tells_no_history(hello: Json) -> None:
    agent = keeping()
    async with served(agent, hello) as driver:
        session = await driver.new()
        await driver.take_turn(session)
    async with served(agent, hello) as driver:
        await driver.call("session/resume", sessionId=session, cwd=CWD, mcpServers=[])
        words = driver.kinds()[1:-1]
        assert words == (["session_info_update", "idle"] if driver.version == 2 else ["session_info_update"])
        assert (await driver.fails("session/resume", sessionId="nobody", cwd=CWD, mcpServers=[]))["code"] == -32002


async def test_a_client_that_joins_a_running_session_learns_its_state_and_its_end() -> None:
    agent, go = Agent("shared"), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("before ")
        await go.wait()
        turn.say("after")

    async with served(agent, V1_PLUS) as first, served(agent, V2) as second, served(agent, V1_PLUS) as third:
        session = await first.new()
        request = await first.prompt(session, "hello all")
        await first.update("agent_message_chunk")
        await load(second, session)
        assert [each["state"] for each in second.updates("state_update")] == ["running"]
        assert second.updates("user_message")[0]["content"][0]["text"] == "hello all"
        await load(third, session)
        for each in (second, third):
            await each.notify("session/ready", sessionId=session)
        go.set()
        assert await first.end_of(request) == "end_turn"
        idle = await second.update("state_update", state="idle")
        assert idle["stopReason"] == "end_turn"
        assert second.said() == "before after"
        told = await third.update("turn_complete")
        assert (told["promptRequestId"], told["_meta"]["turnwire"]["own"]) == (
            told["_meta"]["turnwire"]["promptId"],
            False,
        )
        assert third.said() == "before after"
        # The other one prompts: its message is shown to both.
        assert await second.take_turn(session, "me too") == "end_turn"
        shown = await first.update("user_message_chunk")
        assert shown["content"]["text"] == "me too"


async def test_the_end_of_anothers_turn_never_has_the_id_of_an_own_prompt() -> None:
    agent, go = Agent("shared"), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say(turn.text)
        await go.wait()

    async with served(agent, V1_PLUS) as one, served(agent, V1_PLUS) as other:
        session = await one.new()
        await load(other, session)
        await one.prompt(session, "first", 70)
        await other.prompt(session, "second", "70")
        await one.update("agent_message_chunk")
        go.set()
        await other.answer("70")
        await one.until(lambda _: len(one.updates("turn_complete")) == 2)
        named = [
            [(each["promptRequestId"], each["_meta"]["turnwire"]["own"]) for each in ends]
            for ends in (one.updates("turn_complete"), other.updates("turn_complete"))
        ]
        first, second = (each["_meta"]["turnwire"]["promptId"] for each in one.updates("turn_complete"))
        assert named == [[(70, True), (second, False)], [(first, False), ("70", True)]]
        async with served(agent, V1_PLUS) as late:
            await load(late, session)
            assert [each["promptRequestId"] for each in late.updates("turn_complete")] == [first, second]
            assert not any(each["_meta"]["turnwire"]["own"] for each in late.updates("turn_complete"))


async def test_a_turn_ends_cancelled_for_the_others_when_its_client_leaves() -> None:
    agent = Agent("shared")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("x")
        await anyio.sleep_forever()

    async with served(agent, V2) as stays:
        async with served(agent, V1) as leaves:
            session = await leaves.new()
            await leaves.prompt(session)
            await leaves.update("agent_message_chunk")
            await load(stays, session)
            await stays.notify("session/ready", sessionId=session)
        idle = await stays.update("state_update", state="idle")
        assert idle["stopReason"] == "cancelled"
        await stays.prompt(session, "again")
        await stays.update("agent_message_chunk", len(stays.frames))


@each_dialect
async def test_a_fork_begins_with_the_history_and_goes_its_own_way(hello: Json) -> None:
    agent = keeping()
    async with served(agent, hello) as driver:
        session = await driver.new()
        await driver.take_turn(session)
        forked = (await driver.call("session/fork", sessionId=session, cwd=CWD, mcpServers=[]))["sessionId"]
        assert forked != session
        await driver.take_turn(forked)
        assert driver.said().endswith("2")
        await driver.take_turn(session)
        assert driver.said().endswith("2")
        start = len(driver.frames)
        await load(driver, forked)
        prompts = [
            each for each in map(update_of, driver.frames[start:]) if "user" in each.get("sessionUpdate", "")
        ]
        assert len(prompts) == 2
        assert (await driver.fails("session/fork", sessionId="nobody", cwd=CWD, mcpServers=[]))["code"] == -32002


@each_dialect
async def test_sessions_are_listed_closed_and_deleted(hello: Json) -> None:
    agent, closed = keeping(), list[str]()

    @agent.closed
    def note(session: Session) -> None:
        closed.append(session.id)

    async with served(agent, hello) as driver:
        one, two = await driver.new(), await driver.new(cwd="/")
        await driver.take_turn(one)
        listed = (await driver.call("session/list", cwd=CWD))["sessions"]
        assert [(each["sessionId"], each["title"]) for each in listed] == [(one, "turn 1")]
        assert (await driver.fails("session/list", cursor="nonsense"))["code"] == -32602
        assert (await driver.fails("session/list", cwd=3))["code"] == -32602
        assert await driver.call("session/close", sessionId=one) == {}
        assert closed == [one]
        assert (await driver.fails("session/prompt", sessionId=one, prompt=[{"type": "text", "text": "x"}]))[
            "data"
        ] == {"sessionId": one}
        await driver.call("session/delete", sessionId=two)
        await driver.call("session/delete", sessionId="nobody")
        assert [each["sessionId"] for each in (await driver.call("session/list"))["sessions"]] == [one]
        if driver.version == 2:
            assert await driver.call("session/close", sessionId="nobody") == {}
        else:
            assert (await driver.fails("session/close", sessionId="nobody"))["code"] == -32002


@each_dialect
async def test_closing_a_session_ends_its_turn_before_the_answer_and_nothing_comes_after(hello: Json) -> None:
    agent = Agent("busy")

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("x")
        try:
            await anyio.sleep_forever()
        finally:
            turn.say("y")

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        waiting = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        closing = await driver.ask("session/close", sessionId=session)
        assert (await driver.answer(closing))["result"] == {}
        assert await driver.end_of(request) == "cancelled"
        assert await driver.answer(waiting)
        assert driver.said() == "xy"
        assert driver.frames[-1]["id"] == closing


# -- choices -------------------------------------------------------------------------------------------------------


async def test_modes_and_options_are_in_step_on_v1_and_one_list_on_v2() -> None:
    agent = keeping()
    async with served(agent, V1) as driver:
        result = await driver.call("session/new", cwd=CWD, mcpServers=[])
        session = result["sessionId"]
        await driver.notify("session/ready", sessionId=session)
        assert result["modes"]["currentModeId"] == "ask"
        # A v1 client that does not accept booleans is not offered one.
        assert [each["id"] for each in result["configOptions"]] == ["mode", "model"]
        assert (await driver.update("available_commands_update"))["availableCommands"][0]["name"] == "more"
        await driver.call("session/set_mode", sessionId=session, modeId="plan")
        assert (await driver.update("current_mode_update"))["currentModeId"] == "plan"
        assert driver.updates("config_option_update")[-1]["configOptions"][0]["currentValue"] == "plan"
        set_model = {"sessionId": session, "configId": "model", "value": "large"}
        listed = (await driver.call("session/set_config_option", **set_model))["configOptions"]
        assert [each["currentValue"] for each in listed] == ["plan", "large"]
        for wrong in ({"modeId": "none"}, {}):
            assert (await driver.fails("session/set_mode", sessionId=session, **wrong))["code"] == -32602
    async with served(agent, V2) as driver:
        result = await driver.call("session/new", cwd=CWD)
        assert [each["configId"] for each in result["configOptions"]] == ["mode", "model", "loud"]
        assert result["availableCommands"][0]["input"] == {"type": "text", "hint": "how much"}
        assert (await driver.fails("session/set_mode", sessionId="x", modeId="plan"))["code"] == -32601
        loud = {"sessionId": result["sessionId"], "configId": "loud", "type": "boolean", "value": True}
        listed = (await driver.call("session/set_config_option", **loud))["configOptions"]
        assert listed[2]["currentValue"] is True
        for wrong in ({"type": "id"}, {"value": "x"}, {"configId": "none"}):
            assert (await driver.fails("session/set_config_option", **{**loud, **wrong}))["code"] == -32602


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_the_author_hears_of_a_choice_may_refuse_it_and_makes_choices_too(hello: Json) -> None:
    agent, heard = keeping(), list[Any]()

    @agent.changed
    async def changed(session: Session, option_id: str, value: object) -> None:
        if value == "large":
            raise AgentFailure("not on this plan", jsonrpc=-32602)
        heard.append((option_id, value))
        session.choose("loud", True)

    async with served(agent, hello) as driver:
        session = await driver.new()
        kind = {"type": "id"} if driver.version == 2 else {}
        params = {"sessionId": session, **kind}
        refused = await driver.fails("session/set_config_option", configId="model", value="large", **params)
        assert refused["message"] == "not on this plan"
        listed = (await driver.call("session/set_config_option", configId="mode", value="plan", **params))[
            "configOptions"
        ]
        assert [each["currentValue"] for each in listed] == (
            ["plan", "small", True] if driver.version == 2 else ["plan", "small"]
        )
        assert heard == [("mode", "plan")]
        # A prompt directly after a setting runs with it.
        await driver.ask("session/set_config_option", configId="mode", value="ask", **params)
        await driver.take_turn(session)
        assert "ask small" in driver.said()


@each_dialect
async def test_a_slash_command_runs_instead_of_the_prompt_function(hello: Json) -> None:
    agent = keeping()

    @agent.command("greet", "Say hello", "whom")
    async def greet(turn: Turn, arguments: str) -> str:
        turn.say(f"hello {arguments}")
        return "refusal"

    async with served(agent, hello) as driver:
        session = await driver.new()
        if driver.version == 1:
            told = (await driver.update("available_commands_update"))["availableCommands"]
            assert [each["name"] for each in told] == ["greet", "more"]
        assert await driver.take_turn(session, "/greet  Ann Lee ") == "refusal"
        assert driver.said() == "hello Ann Lee"
        for text, said in (
            ("/greet", ""),
            ("/greet\n", ""),
            ("/greet\tAnn", "Ann"),
            ("/greet\nAnn\nLee", "Ann\nLee"),
        ):
            assert await driver.take_turn(session, text) == "refusal"
            assert driver.said().endswith(f"hello {said}")
        for text in ("/", "/ greet", "/\ngreet"):
            assert await driver.take_turn(session, text) == "end_turn"
        assert await driver.take_turn(session, "/more") == "end_turn"
