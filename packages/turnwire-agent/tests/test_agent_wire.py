"""The built-in agent on the wire, in every dialect: its offers, its settings, restored sessions.

Everything that it sends is held against the published schema (see `tests.agent.kit`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kit import DIALECTS, Driver, served

from agent_kit.script_model import echo_model
from agent_kit.talk import closing, openai_model
from turnwire_agent.agent import AgentSettings, ModelAgent
from turnwire_testing.models import CallTool, FakeOpenAI, Reply, Say

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@pytest.fixture(params=list(DIALECTS))
def hello(request: pytest.FixtureRequest) -> Json:
    return DIALECTS[request.param]


async def choose(driver: Driver, session: str, option: str, value: str) -> None:
    typed = {"type": "id"} if driver.version == 2 else {}
    await driver.call("session/set_config_option", sessionId=session, configId=option, value=value, **typed)


async def said(driver: Driver, session: str, text: str) -> str:
    """The agent's text in one turn."""
    before = len(driver.said())
    assert await driver.take_turn(session, text) == "end_turn"
    return driver.said()[before:]


async def test_what_it_offers(hello: Json, tmp_path: Path) -> None:
    async with served(ModelAgent([echo_model()]).agent, hello) as driver:
        opened = await driver.call("session/new", cwd=str(tmp_path), mcpServers=[])
        await driver.notify("session/ready", sessionId=opened["sessionId"])
        told = (
            opened.get("availableCommands")
            or (await driver.update("available_commands_update"))["availableCommands"]
        )
    offered = next(each for each in driver.frames if "result" in each)["result"]
    known = offered["agentCapabilities" if driver.version == 1 else "capabilities"]
    prompts = known["promptCapabilities"] if driver.version == 1 else known["session"]["prompt"]
    assert prompts["image"] in (True, {})
    assert prompts["embeddedContext"] in (True, {})
    [mode] = [each for each in opened["configOptions"] if each.get("category") == "mode"]
    assert [each["value"] for each in mode["options"]] == ["ask", "accept_edits", "plan"]
    if driver.version == 1:
        assert opened["modes"]["currentModeId"] == "ask"
    assert {"help", "model", "mode", "clear", "compact", "usage", "demo"} == {each["name"] for each in told}


async def test_a_client_sets_the_mode_and_the_agent_keeps_to_it(hello: Json, tmp_path: Path) -> None:
    async with served(ModelAgent([echo_model()]).agent, hello) as driver:
        session = await driver.new(cwd=str(tmp_path))
        if driver.version == 1:
            await driver.call("session/set_mode", sessionId=session, modeId="plan")
        else:
            await choose(driver, session, "mode", "plan")
        await said(driver, session, "run touch x")
        assert not (tmp_path / "x").exists()
        await choose(driver, session, "mode", "ask")
        await said(driver, session, "run touch x")
    assert (tmp_path / "x").exists()


async def test_a_client_chooses_the_model(hello: Json, tmp_path: Path) -> None:
    async with FakeOpenAI([[Say("one")], [Say("two")]]) as server:
        models = [openai_model(server, name=name) for name in ("first", "second")]
        async with closing(*models), served(ModelAgent(models).agent, hello) as driver:
            session = await driver.new(cwd=str(tmp_path))
            assert await said(driver, session, "hello") == "one"
            await choose(driver, session, "model", "openai:second")
            assert await said(driver, session, "hello") == "two"
    assert [each["model"] for each in server.requests] == ["first", "second"]


async def test_a_session_comes_back_in_another_process_with_its_mode_title_and_conversation(
    hello: Json, tmp_path: Path
) -> None:
    settings = AgentSettings(data=tmp_path / "agent")
    cwd = tmp_path / "work"
    cwd.mkdir()
    replies: list[Reply] = [[CallTool("list", {"path": "."})], [Say("It is empty.")], [Say("You asked for files.")]]
    async with FakeOpenAI(replies) as server:
        model = openai_model(server)
        async with closing(model), served(ModelAgent([model], settings).agent, hello) as driver:
            session = await driver.new(cwd=str(cwd))
            await choose(driver, session, "mode", "accept_edits")
            await said(driver, session, "which files are there?")

        async with closing(model), served(ModelAgent([model], settings).agent, hello) as driver:
            [listed] = (await driver.call("session/list"))["sessions"]
            assert (listed["sessionId"], listed["title"]) == (session, "which files are there?")
            given: Json = {"sessionId": session, "cwd": str(cwd), "mcpServers": []}
            if driver.version == 1:
                await driver.call("session/load", **given)
            else:
                await driver.call("session/resume", **given, replayFrom={"type": "start"})
            await driver.notify("session/ready", sessionId=session)
            assert "It is empty." in driver.said()
            assert "`accept_edits`" in await said(driver, session, "/mode")
            assert await said(driver, session, "what did I ask?") == "You asked for files."
    sent = json.dumps(server.requests[2]["messages"])
    assert "which files are there?" in sent
    assert "It is empty." in sent


async def test_every_demonstration_that_ends_well_is_in_the_words_of_the_dialect(
    hello: Json, tmp_path: Path
) -> None:
    async with served(ModelAgent([echo_model()]).agent, hello) as driver:
        session = await driver.new(cwd=str(tmp_path))
        for name in ("tools", "permission", "edit", "plan", "thinking", "command", "usage", "image", "modes"):
            assert await driver.take_turn(session, f"/demo {name}") == "end_turn", name
        assert await driver.take_turn(session, "/demo refusal") == "refusal"
        assert await driver.take_turn(session, "/demo max-tokens") == "max_tokens"
        failed = await driver.take_turn(session, "/demo error")
    assert "cannot be reached" in str(failed)
