"""The built-in agent around its loop: commands, models, notes, pictures, titles, and sessions that come back."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_kit.script_model import Asked, ScriptModel
from agent_kit.talk import WAIT_S, openai_model, talking
from turnwire.hosting.memory import memory_pair
from turnwire_agent.agent import AgentSettings, ModelAgent
from turnwire_agent.model import Model, Piece, Text
from turnwire_testing.models import CallTool, Fail, FakeOpenAI, Hang, Reply, Say, Spend

pytestmark = pytest.mark.anyio


async def test_help_names_the_commands_the_tools_and_the_model(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        text = (await talk.turn("/help")).text
    for each in ("/model", "/mode", "/clear", "/compact", "/usage", "/demo", "`edit`", "Model: `echo`"):
        assert each in text


async def test_the_mode_is_shown_changed_and_refused(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        assert "The mode is `ask`" in (await talk.turn("/mode")).text
        told = await talk.turn("/mode accept_edits")
        assert "The mode is `accept_edits`" in (await talk.turn("/mode")).text
        assert "there are: ask, accept_edits, plan" in await talk.failure("/mode turbo")
    assert "accept_edits" in json.dumps(told.kinds("config_option_update"))


async def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    async with (
        FakeOpenAI([[Say("one")], [Say("two")]]) as server,
        talking(tmp_path, *(openai_model(server, name=name) for name in ("first", "second"))) as talk,
    ):
        assert "`openai:first` (in use)" in (await talk.turn("/model")).text
        await talk.turn("hello")
        await talk.turn("/model openai:second")
        await talk.turn("hello")
        assert "there is no model" in await talk.failure("/model openai:third")
    assert [each["model"] for each in server.requests] == ["first", "second"]


async def test_clear_forgets_the_conversation_and_usage_adds_up(tmp_path: Path) -> None:
    replies: list[Reply] = [[Say("hello"), Spend(100, 10)], [Say("who?"), Spend(50, 5, cached=20)]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        await talk.turn("my name is Ada")
        assert "2 messages" in (await talk.turn("/clear")).text
        await talk.turn("what is my name?")
        text = (await talk.turn("/usage")).text
    assert "Ada" not in json.dumps(server.requests[1])
    assert "input: 150 tokens, 20 of them" in text
    assert "output: 15 tokens" in text


async def test_compact_puts_a_summary_in_the_place_of_the_conversation(tmp_path: Path) -> None:
    replies: list[Reply] = [[Say("noted")], [Say("The user is called Ada.")], [Say("Ada")]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        await talk.turn("my name is Ada, and more that is of no interest")
        await talk.turn("/compact")
        told = await talk.turn("what is my name?")
    assert told.text == "Ada"
    kept = json.dumps(server.requests[2]["messages"])
    assert "The user is called Ada." in kept
    assert "of no interest" not in kept


async def test_what_the_user_says_meanwhile_reaches_the_model_in_the_same_turn(tmp_path: Path) -> None:
    hang = Hang()
    replies: list[Reply] = [[Say("first"), hang, Say(".")], [Say("and second.")]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        turn = talk.session.prompt("one thing")
        await talk.until(lambda update: "first" in str(update))
        other = talk.session.prompt("another thing", when_busy="steer")
        await talk.until(lambda update: "another thing" in str(update))
        hang.released.set()
        with anyio.fail_after(WAIT_S):
            result = await turn
            await other
    assert talk.told(result.prompt_id).text == "first.and second."
    assert "another thing" in json.dumps(server.requests[1]["messages"][-1])
    assert len(server.requests) == 2


class Small:
    """A model with little room."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.context_size = 1000
        self.takes_images = True
        self.stream = model.stream
        self.aclose = model.aclose


async def test_a_conversation_that_gets_too_long_is_put_into_a_summary_by_itself(tmp_path: Path) -> None:
    replies: list[Reply] = [
        [Say("a long answer"), Spend(800, 90)],
        [Say("The user is called Ada.")],
        [Say("Ada"), Spend(860, 1)],
        [Fail(400)],
        [Say("still there")],
    ]
    async with FakeOpenAI(replies) as server, talking(tmp_path, Small(openai_model(server))) as talk:
        await talk.turn("my name is Ada, and more that is of no interest")
        told = await talk.turn("what is my name?")
        again = await talk.turn("are you there?")
    assert "put into a summary" in told.thoughts()
    kept = json.dumps(server.requests[2]["messages"])
    assert "The user is called Ada." in kept
    assert "of no interest" not in kept
    assert again.text == "still there", "a summary that fails does not fail the turn"


async def test_the_projects_notes_and_own_rules_reach_the_model(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Always answer in rhyme.")
    settings = AgentSettings(rules="Be a pirate.")
    async with (
        FakeOpenAI([[Say("arr")]]) as server,
        talking(tmp_path, openai_model(server), settings=settings) as talk,
    ):
        await talk.turn("hello")
    system = json.dumps(server.requests[0]["messages"][0])
    assert "Always answer in rhyme." in system
    assert "Be a pirate." in system
    assert str(tmp_path) in system


async def test_pictures_and_resources_of_a_prompt_reach_the_model(tmp_path: Path) -> None:
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    prompt: list[dict[str, Any]] = [
        {"type": "text", "text": "what is this?"},
        {"type": "image", "mimeType": "image/png", "data": picture},
        {"type": "resource", "resource": {"uri": "file:///notes.md", "text": "some notes"}},
        {"type": "resource_link", "uri": "file:///plan.md", "name": "plan.md"},
    ]
    async with FakeOpenAI([[Say("a dot")]]) as server, talking(tmp_path, openai_model(server)) as talk:
        await talk.turn(prompt)
    sent = json.dumps(server.requests[0]["messages"])
    for each in ("what is this?", picture, "some notes", "file:///plan.md"):
        assert each in sent


async def test_a_session_is_named_after_its_first_prompt(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        first = await talk.turn("list files\nin this folder")
        second = await talk.turn("help")
    assert [each["title"] for each in first.kinds("session_info_update")] == ["list files"]
    assert not second.kinds("session_info_update")


async def test_a_long_turn_tells_how_full_the_context_is(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        told = await talk.turn("help")
    [update] = told.kinds("usage_update")
    assert 0 < update["used"] < update["size"]


async def test_tools_of_an_mcp_server_are_offered_and_ask(tmp_path: Path) -> None:
    server_program = tmp_path / "server.py"
    server_program.write_text(MCP_SERVER)
    servers = [
        {"type": "stdio", "name": "sums", "command": sys.executable, "args": [str(server_program)], "env": []}
    ]
    replies: list[Reply] = [[CallTool("sums__add", {"a": 2, "b": 3})], [Say("five")]]
    async with FakeOpenAI(replies) as server:
        given: dict[str, Any] = {"mcp_servers": servers, "answers": ["allow_once"]}
        async with talking(tmp_path, openai_model(server), **given) as talk:
            told = await talk.turn("add")
    assert told.text == "five"
    assert len(talk.asked) == 1
    assert "5" in json.dumps(server.requests[1]["messages"][-1])


async def test_an_mcp_server_that_is_not_there_is_told_once_and_the_turn_goes_on(tmp_path: Path) -> None:
    servers: list[dict[str, Any]] = [
        {"type": "stdio", "name": "lost", "command": "/nowhere/at/all", "args": [], "env": []}
    ]
    async with talking(tmp_path, mcp_servers=servers) as talk:
        first, second = await talk.turn("hello"), await talk.turn("hello")
    assert "The MCP server lost is not there" in first.thoughts()
    assert not second.thoughts()


MCP_SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run()
"""


async def test_the_models_connections_are_let_go_when_the_client_has_left() -> None:
    closed = anyio.Event()

    class Noting(ScriptModel):
        async def aclose(self) -> None:
            closed.set()

    ours, theirs = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ModelAgent([Noting("noting", no_script)]).serve, theirs)
        await anyio.wait_all_tasks_blocked()
        assert not closed.is_set()
        await ours.aclose()
        with anyio.fail_after(WAIT_S):
            await closed.wait()


async def no_script(asked: Asked) -> AsyncGenerator[Piece]:
    yield Text(asked.text)
