"""Rules of ACP for authors of agents, which the SDK fulfils for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.bare import bare

from turnwire.agent import Agent, Turn

pytestmark = pytest.mark.anyio


async def test_a_terminal_is_shown_in_its_tool_call_before_it_is_released(tmp_path: Path) -> None:
    agent = Agent("runner")

    @agent.prompt
    async def run(turn: Turn) -> None:
        async with turn.tool("Run", kind="execute") as call:
            await turn.run("make", call=call)

    answers = {
        "terminal/create": {"terminalId": "t1"},
        "terminal/wait_for_exit": {"exitCode": 0},
        "terminal/output": {"output": "made", "truncated": False},
        "terminal/release": {},
    }
    async with bare(agent, answers) as client:
        await client.initialize()
        await client.prompt(await client.new_session(str(tmp_path)), "run")
    shows = [place for place, each in enumerate(client.seen) if shows_a_terminal(each)]
    [released] = [place for place, each in enumerate(client.seen) if each.get("method") == "terminal/release"]
    assert shows
    assert max(shows) < released


def shows_a_terminal(frame: dict[str, Any]) -> bool:
    """Return True if a frame is an update of a tool call with a terminal in it."""
    update: dict[str, Any] = frame.get("params", {}).get("update", {})
    content: list[dict[str, Any]] = update.get("content") or []
    return "toolCallId" in update and any(each["type"] == "terminal" for each in content)


async def test_every_address_that_a_user_is_sent_to_has_an_id_of_its_own(tmp_path: Path) -> None:
    agent = Agent("asker")

    @agent.prompt
    async def ask(turn: Turn) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(turn.elicit_url, "Log in", "https://example.org/")

    async with bare(agent, {"elicitation/create": {"action": "accept"}}) as client:
        await client.initialize(1, {"elicitation": {"url": {}}})
        await client.prompt(await client.new_session(str(tmp_path)), "ask")
    asked = [each["params"] for each in client.seen if each.get("method") == "elicitation/create"]
    assert len({each["elicitationId"] for each in asked}) == len(asked) == 3
