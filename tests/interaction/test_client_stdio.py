"""The client with agents that are separate processes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import anyio
import pytest
from msgspec import json

import turnwire
from turnwire.client import Update
from turnwire.errors import AgentLaunchFailed, AgentUnavailable, AuthRequired, TurnError
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

AGENT = [sys.executable, "-m", "turnwire_testing.agent"]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_a_real_agent_is_drained_when_the_await_returns(profile: str, tmp_path: Path) -> None:
    heard: list[str] = []
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect([*AGENT, "--profile", profile]) as client:
            session = await client.new_session(tmp_path)
            session.on_update(lambda update: heard.append(update.text))
            result = await session.prompt("flood 2000")
            assert [text for text in heard if text] == [str(number) for number in range(2000)]
            assert result.stop_reason == "end_turn"


async def test_a_command_may_be_a_line() -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(shlex.join(AGENT)) as client:
            assert (await (await client.new_session()).prompt("hello")).text == "hello"


async def test_an_agent_that_dies_says_how_and_the_next_prompt_gets_a_new_one() -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(AGENT) as client:
            session = await client.new_session()
            with pytest.raises(TurnError) as caught:
                await session.prompt("stderr a last word\nexit 7")
            assert caught.value.reason == "agent_exited"
            assert caught.value.exit_code == 7
            assert "a last word" in (caught.value.stderr_tail or "")
            assert (await session.prompt("hello")).text == "hello"


async def test_a_command_that_does_not_exist_opens_no_session_and_leaves_none() -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(["/nowhere/no-such-agent"]) as client:
            with pytest.raises(AgentLaunchFailed, match="was not found"):
                await client.new_session()
            with pytest.raises(AgentUnavailable):
                await client.new_session()
            assert await client.sessions() == []


async def test_a_new_session_is_returned_when_the_agent_has_it_and_was_told_that_we_are_ready() -> None:
    agent = [*AGENT, "--profile", "v1plus", "--after", "commands early"]
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(agent) as client:
            session = await client.new_session()
            # The agent holds its commands until it receives `session/ready`; no prompt was sent.
            heard = anyio.Event()

            @session.on_update
            def note(update: Update) -> None:
                if update.kind == "available_commands_update":
                    heard.set()

            await heard.wait()


async def test_an_agent_that_wants_a_login_says_by_which_methods_and_then_works() -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect([*AGENT, "--auth-required"]) as client:
            with pytest.raises(AuthRequired) as caught:
                await client.new_session()
            methods = json.decode(caught.value.methods, type=list[dict[str, str]])
            await client.authenticate(methods[0]["id"])
            session = await client.new_session()
            assert (await session.prompt("say 1 hello")).text == "hello"


async def test_leaving_the_client_stops_the_agent() -> None:
    pids: list[int] = []

    def note(update: Update) -> None:
        if update.text.isdigit():
            pids.append(int(update.text))

    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(AGENT) as client:
            session = await client.new_session()
            session.on_update(note)
            await session.prompt("fork closed")
            assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
