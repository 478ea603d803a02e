"""`new_session(system_prompt=…)` of the SDK, with an agent of its own and with a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.process.hosted import plain
from tests.support.daemons import running_daemon

import turnwire
from turnwire.errors import AgentLaunchFailed, BadRequest
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

OFFERS: dict[str, Any] = {"sessionCapabilities": {"systemPrompt": {}}}
PROMPT = {"mode": "append", "content": [{"type": "text", "text": "Answer in French."}]}


async def test_the_sdk_passes_a_system_prompt_to_its_agent(tmp_path: Path) -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(plain(folder=str(tmp_path), capabilities=OFFERS)) as client:
            await client.new_session(system_prompt="Answer in French.")
        assert json.loads((tmp_path / "opened.json").read_text())["systemPrompt"] == PROMPT
        async with turnwire.connect(plain()) as client:
            with pytest.raises(AgentLaunchFailed, match="systemPrompt"):
                await client.new_session(system_prompt="Answer in French.")


async def test_the_sdk_passes_a_system_prompt_through_a_daemon(tmp_path: Path) -> None:
    agent = plain(folder=str(tmp_path), capabilities=OFFERS)
    async with running_daemon(tmp_path / "d", agent=agent) as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(running.url, token=running.token) as client:
                await client.new_session(tmp_path, system_prompt="Answer in French.")
    assert json.loads((tmp_path / "opened.json").read_text())["systemPrompt"] == PROMPT


async def test_a_daemon_refuses_a_system_prompt_that_its_agent_does_not_offer(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", agent=plain()) as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(running.url, token=running.token) as client:
                with pytest.raises(BadRequest, match="systemPrompt"):
                    await client.new_session(tmp_path, system_prompt="Answer in French.")
