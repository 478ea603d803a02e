"""The built-in agent, killed in the middle of a turn: the next request has its messages and tool results."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from tests.cli.rig import Served, served

from turnwire_agent.conversation import INTERRUPTED
from turnwire_testing.models import CallTool, FakeAnthropic, FakeOpenAI, Hang, Reply, Say
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@contextmanager
def with_model(home: Path, name: str, url: str, key: str) -> Generator[Served]:
    provider = name.partition(":")[0].upper()
    env = {"TURNWIRE_AGENT_MODEL": name, f"{provider}_BASE_URL": url, f"{provider}_API_KEY": key}
    with served(home, builtin=True, **env) as daemon:
        yield daemon


def kill_agent(daemon: Served, session: str) -> None:
    pid = daemon.ask("GET", f"/session/{session}/explain")["agent"]["pid"]
    os.kill(pid, signal.SIGKILL)
    daemon.until(session, "turn_error")


def roles(body: dict[str, Any]) -> list[str]:
    return [each["role"] for each in body["messages"] if each["role"] != "system"]


async def test_the_next_request_has_the_prompt_the_call_and_its_result(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the secret is 42")
    replies: list[Reply] = [[CallTool("read", {"path": "notes.txt"})], [Hang()], [Say("It was 42.")]]
    async with FakeOpenAI(replies) as server:

        def interrupted() -> str:
            with with_model(tmp_path, "openai:fake", server.url, "sk-x") as daemon:
                session = daemon.session()
                daemon.prompt(session, "read my notes")
                from_thread.run(server.arrival, 2)
                kill_agent(daemon, session)
                return daemon.run("prompt", "-s", session, "what did they say?").out

        with anyio.fail_after(WAIT_S):
            assert "It was 42." in await to_thread.run_sync(interrupted)
    asked = server.requests[-1]["messages"]
    assert roles(server.requests[-1]) == ["user", "assistant", "tool", "user"]
    assert "read my notes" in str(asked[1]["content"])
    assert asked[2]["tool_calls"][0]["function"]["name"] == "read"
    assert "the secret is 42" in str(asked[3]["content"])
    assert "what did they say?" in str(asked[4]["content"])


@pytest.mark.full("starts a daemon and several commands")
@pytest.mark.parametrize("fake", [FakeOpenAI, FakeAnthropic])
async def test_a_call_that_was_at_work_is_told_as_interrupted(tmp_path: Path, fake: Any) -> None:
    run = CallTool("run", {"command": "touch begun; sleep 600"})
    replies: list[Reply] = [[CallTool("list", {"path": "."}), run], [Say("I see.")]]
    name = "openai:fake" if fake is FakeOpenAI else "anthropic:fake"
    async with fake(replies) as server:

        def interrupted() -> str:
            with with_model(tmp_path, name, server.url, "sk-x") as daemon:
                session = daemon.session()
                daemon.prompt(session, "run it")
                daemon.until(session, "permission_request")
                kill_agent(daemon, session)
                return daemon.run("prompt", "-s", session, "go on").out

        with anyio.fail_after(WAIT_S):
            assert "I see." in await to_thread.run_sync(interrupted)
    asked = str(server.requests[-1]["messages"])
    assert server.exchanges[-1].refused is None, "a provider takes it back"
    assert asked.count(INTERRUPTED) == 1
    assert "run it" in asked
    assert "serve.err" in asked, "the first call had its result"


@pytest.mark.full("starts a daemon and several commands")
async def test_a_prompt_that_was_never_answered_is_not_forgotten(tmp_path: Path) -> None:
    replies: list[Reply] = [[Hang()], [Say("Both.")]]
    async with FakeOpenAI(replies) as server:

        def interrupted() -> str:
            with with_model(tmp_path, "openai:fake", server.url, "sk-x") as daemon:
                session = daemon.session()
                daemon.prompt(session, "the first thing")
                from_thread.run(server.arrival, 1)
                kill_agent(daemon, session)
                return daemon.run("prompt", "-s", session, "the second thing").out

        with anyio.fail_after(WAIT_S):
            assert "Both." in await to_thread.run_sync(interrupted)
    assert "the first thing" in str(server.requests[-1]["messages"])
