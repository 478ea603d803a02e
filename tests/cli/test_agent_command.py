"""`turnwire agent` as a program, and as the agent of a daemon without a configured one."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.editor import FORMS, program
from tests.cli.rig import run, served

from turnwire.cli.agent_source import in_words
from turnwire.cli.main import cli
from turnwire.errors import ConfigError
from turnwire.ids import UNNAMED
from turnwire.server.settings.agents import AgentEntry


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as if no sibling distribution were installed."""

    def nothing(**_: str) -> EntryPoints:
        return EntryPoints()

    monkeypatch.setattr("importlib.metadata.entry_points", nothing)


@pytest.mark.usefixtures("alone")
def test_a_model_without_its_distribution_says_what_to_install() -> None:
    shown = CliRunner().invoke(cli, ["agent", "--model", "ollama:x"], obj={})
    assert isinstance(shown.exception, ConfigError)
    assert "pip install 'turnwire[agent]'" in str(shown.exception)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("command", "extra"), [("check", "check"), ("record", "testing"), ("replay", "testing")])
def test_a_command_of_a_sibling_that_is_missing_says_what_to_install(command: str, extra: str) -> None:
    shown = CliRunner().invoke(cli, [command], obj={})
    assert shown.exit_code == 2
    assert f"pip install 'turnwire[{extra}]'" in shown.output
    assert f"\n  {command} " not in CliRunner().invoke(cli, ["--help"], obj={}).output


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
    # The record for finding a daemon is not stored data.
    assert [each.name for each in (tmp_path / ".local/state/turnwire").iterdir()] == ["run"]


def test_a_person_is_told_which_model_the_daemons_agent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWIRE_AGENT_MODEL", raising=False)
    builtin = AgentEntry(name=UNNAMED)
    assert in_words(builtin) == "built-in, without a model"
    monkeypatch.setenv("TURNWIRE_AGENT_MODEL", "openai:a anthropic:b")
    assert in_words(builtin) == "built-in, with the model openai:a, anthropic:b"
    assert in_words(AgentEntry(name=UNNAMED, command=("my-agent", "--key", "x"))) == "my-agent"
