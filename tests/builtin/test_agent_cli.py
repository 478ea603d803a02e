"""`turnwire agent` as a program, and as the agent of a daemon that was given none."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import click
import pytest
from anyio import to_thread
from tests.cli.editor import FORMS, program
from tests.cli.rig import run, served

from turnwire.builtin.model import VARIABLES
from turnwire.cli.agent import agent
from turnwire.cli.agent_source import PROVIDERS, in_words
from turnwire.errors import ConfigError
from turnwire.ids import UNNAMED
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.sources import BUILT_IN
from turnwire.testing.models import CallTool, FakeOpenAI, Reply, Say


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--model", "gpt"], {}, "names no model"),
        ([], {"TURNWIRE_AGENT_MODEL": "ollama:x gpt"}, "'gpt' names no model"),
        (["--model", "openai:x"], {}, "set OPENAI_API_KEY"),
        ([], {"TURNWIRE_AGENT_MODEL": "anthropic:x"}, "set ANTHROPIC_API_KEY"),
        (["--model", "ollama:x", "--model-url", "nowhere"], {}, "http://HOST:PORT/v1"),
        (["--mode", "turbo"], {}, "ask"),
        (["--max-requests", "0"], {}, "1<=x<=10000"),
        (["--system", "nowhere.md"], {}, "cannot be read"),
        ([], {"TURNWIRE_AGENT_SYSTEM": "empty.md"}, "is empty"),
        (["surplus"], {}, "surplus"),
    ],
)
def test_what_it_cannot_start_with_is_told(
    words: list[str], env: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.md").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in PROVIDERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **env}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ConfigError, click.UsageError)) as refused:
        agent.main(words, standalone_mode=False, obj={})
    told = refused.value.format_message() if isinstance(refused.value, click.UsageError) else str(refused.value)
    assert said in told


def test_a_daemon_whose_agent_could_not_ask_its_model_does_not_start(tmp_path: Path) -> None:
    shown = run("serve", "--port", "0", home=tmp_path, TURNWIRE_AGENT_MODEL="ollama:a openai:b")
    assert shown.code != 0
    assert "openai:b needs a key; set OPENAI_API_KEY" in shown.err
    checked = run("doctor", "--port", "0", home=tmp_path, TURNWIRE_AGENT_MODEL="openai:b")
    assert "set OPENAI_API_KEY" in checked.out


def test_it_ends_with_its_client_and_leaves_nothing_behind(tmp_path: Path) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    shown = run("agent", home=tmp_path, stdin=json.dumps(asked) + "\n")
    assert shown.code == 0
    [answer] = shown.lines
    assert answer["result"]["agentInfo"]["name"] == "turnwire-agent"
    assert answer["result"]["agentCapabilities"]["loadSession"] is True
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize("waits_for", ["permission", "elicit"])
def test_a_client_that_leaves_while_it_is_asked_is_no_fault_to_report(tmp_path: Path, waits_for: str) -> None:
    with program(tmp_path, "agent") as client:
        client.prompt(client.open(tmp_path, FORMS), f"/demo {waits_for}")
        client.until(lambda each: "id" in each and "method" in each)
        assert client.leave() == 0
        assert client.errors == ""


def test_a_daemon_without_an_agent_has_the_built_in_one_and_keeps_its_sessions_beside_its_own(
    tmp_path: Path,
) -> None:
    with served(tmp_path, builtin=True) as daemon:
        shown = daemon.run("prompt", "who are you?")
        assert "built into turnwire" in shown.out
        assert list((daemon.data / "agent").iterdir())


def test_a_daemon_that_keeps_nothing_has_an_agent_that_keeps_nothing(tmp_path: Path) -> None:
    with served(tmp_path, "--log", "memory", "--no-auth", builtin=True) as daemon:
        shown = run("prompt", "hello", home=tmp_path, TURNWIRE_URL=daemon.url)
        assert "built into turnwire" in shown.out
    # What finds a daemon is not what one keeps.
    assert [each.name for each in (tmp_path / ".local/state/turnwire").iterdir()] == ["run"]


@pytest.mark.anyio
async def test_the_daemons_agent_gets_its_model_its_key_and_no_other_secret(tmp_path: Path) -> None:
    seen = "env | cut -d= -f1 | sort | tr '\\n' ' '"
    replies: list[Reply] = [[CallTool("run", {"command": seen})], [Say("I have looked.")]]
    async with FakeOpenAI(replies) as server:
        env = {
            "TURNWIRE_AGENT_MODEL": "openai:fake",
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-of-the-user",
            "TURNWIRE_TOKEN": "tw_a_token_of_the_owner_0123456789",
            "ANOTHER_SECRET": "hidden",
        }
        with anyio.fail_after(60):
            shown = await to_thread.run_sync(_prompted, tmp_path, env)
    assert "I have looked." in shown
    assert server.exchanges[0].headers["authorization"] == "Bearer sk-of-the-user"
    variables = str(server.requests[1]["messages"][-1]["content"])
    assert "PATH" in variables
    for name in ("OPENAI_API_KEY", "TURNWIRE_TOKEN", "ANOTHER_SECRET", "TURNWIRE_AGENT_MODEL"):
        assert name not in variables, "a command of the model gets no key"


def _prompted(home: Path, env: dict[str, str]) -> str:
    with served(home, builtin=True, **env) as daemon:
        session = daemon.session()
        prompt = daemon.prompt(session, "look around")
        daemon.until(session, "permission_request")
        request, _, _ = daemon.run("answer", session).out.strip().split("\t")
        assert daemon.run("answer", session, request, "allow_once").code == 0
        daemon.until(session, "turn_complete")
        return str(daemon.turn(session, prompt)["resultText"])


def test_a_person_is_told_which_model_the_daemons_agent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWIRE_AGENT_MODEL", raising=False)
    builtin = AgentEntry(name=UNNAMED)
    assert in_words(builtin).startswith("built-in, without a model; set TURNWIRE_AGENT_MODEL=")
    monkeypatch.setenv("TURNWIRE_AGENT_MODEL", "openai:a anthropic:b")
    assert in_words(builtin) == "built-in, with the model openai:a, anthropic:b"
    assert in_words(AgentEntry(name=UNNAMED, command=("my-agent", "--key", "x"))) == "my-agent"


def test_every_variable_that_reaches_a_model_is_let_through() -> None:
    assert set(VARIABLES) == set(PROVIDERS) | {each for each in VARIABLES if each in BUILT_IN}
