"""Programs that do not speak ACP, configured as agents: the user's error message, and its delay."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.rig import SCRIPTED, Served, finish, lines_of, run, served, start

GREETS = ("sh", "-c", "echo usage: tool FILE; exec sleep 600")
SILENT = ("sh", "-c", "echo cannot read line 1 >&2; exec sleep 600")
SOON = ("--limit", "initialize_silent_s=0.2", "--limit", "initialize_text_s=0.5")


@pytest.fixture
def silent(tmp_path: Path) -> Generator[Served]:
    """Run a daemon whose agent sends nothing."""
    with served(tmp_path, *SOON, "--log-format", "json", "--", *SILENT) as daemon:
        yield daemon


def test_a_program_that_echoes_is_named_at_once(tmp_path: Path) -> None:
    ran = run("prompt", "hi", "--", "cat", home=tmp_path)

    assert ran.code == 69
    assert "the agent 'cat' does not speak ACP: it sends back what it is sent" in ran.err


def told(process: subprocess.Popen[str], text: str) -> str:
    """The first line with this text."""
    return next(line for line in lines_of(process) if text in line)


def test_whoever_waits_for_a_silent_program_is_told_what_for(tmp_path: Path) -> None:
    with start("prompt", "hi", "--", *SILENT, home=tmp_path) as process:
        line = told(process, "has not answered")
        process.kill()

    assert "the agent 'sh' was started 3 s ago and has not answered `initialize`" in line
    assert "its stderr says: cannot read line 1" in line


@pytest.mark.parametrize("agent", [("cat",), GREETS], ids=["echoes", "greets"])
def test_a_daemon_names_the_program_and_what_it_printed(agent: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *SOON, "--", *agent) as daemon:
        ran = daemon.run("prompt", "hi")

    assert ran.code == 69
    assert f"the agent {agent[0]!r} does not speak ACP" in ran.err
    assert ("printed 'usage: tool FILE'" in ran.err) == (agent is GREETS)


def test_an_agent_that_greets_first_is_heard(tmp_path: Path) -> None:
    agent = ("sh", "-c", 'echo "welcome"; exec "$@"', "sh")
    with served(tmp_path, "--limit", "initialize_text_s=20", "--", *agent, *SCRIPTED) as daemon:
        assert daemon.run("prompt", "say 1 hello").out == "hello\n"


def test_explain_the_log_and_the_list_of_agents_say_what_a_silent_program_is_waited_for(silent: Served) -> None:
    session = silent.ask("POST", "/session", {"wait": False})["sessionId"]
    silent.prompt(session, "hello")
    while "agent_silent" not in silent.err.read_text():
        assert silent.process.poll() is None

    assert "has not answered `initialize`" in silent.run("explain", session).out
    [agent] = silent.ask("GET", "/agents")["agents"]
    assert (agent["state"], "its stderr says: cannot read line 1" in agent["why"]) == ("starting", True)


def test_prompt_says_what_the_daemon_waits_for(silent: Served) -> None:
    with silent.begun("prompt", "--new", "hello") as process:
        assert "the agent 'sh' was started" in told(process, "has not answered")
        process.terminate()
        finish(process)
