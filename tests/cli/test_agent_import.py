"""`turnwire serve --agent NAME=MODULE:OBJECT`: a daemon whose agent is an object in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.rig import run, served

AGENT = """
import os
from turnwire.agent import Agent, FolderStore

agent = Agent("inside", version="1", store=FolderStore("sessions"))

@agent.prompt
async def answer(turn):
    turn.session.state["count"] = turn.session.state.get("count", 0) + 1
    turn.say(f"{turn.session.state['count']} {os.getpid()}")

def make():
    return agent

class Holder:
    inside = agent

nothing = None
text = "an agent"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "inside.py").write_text(AGENT)
    (tmp_path / "runs.py").write_text('from turnwire.agent import Agent\nagent = Agent("runs")\nagent.run()\n')
    (tmp_path / "breaks.py").write_text("1 / 0\n")
    return tmp_path


@pytest.mark.parametrize("name", ["agent", "make", "Holder.inside"])
def test_the_agent_runs_in_the_process_of_the_daemon(home: Path, name: str) -> None:
    with served(home, "--agent", f"mine=inside:{name}") as daemon:
        shown = daemon.run("prompt", "hello")
        assert (shown.code, shown.out) == (0, f"1 {daemon.process.pid}\n")


def test_its_sessions_go_on_after_a_restart_of_the_daemon(home: Path) -> None:
    for count in (1, 2):
        with served(home, "--agent", "mine=inside:agent") as daemon:
            shown = daemon.run("prompt", "hello")
            assert (shown.code, shown.out) == (0, f"{count} {daemon.process.pid}\n")


def test_the_setting_may_be_a_variable_and_doctor_tries_it(home: Path) -> None:
    checked = run("doctor", home=home, TURNWIRE_AGENTS="mine=inside:agent")
    assert "starts, and speaks ACP version 2" in checked.out
    checked = run("doctor", home=home, TURNWIRE_AGENTS="mine=nowhere:agent")
    assert "No module named 'nowhere'" in checked.out


def test_an_editor_can_have_it_too(home: Path) -> None:
    asked = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    shown = run("stdio", "--agent", "mine=inside:agent", home=home, stdin=asked)
    assert shown.code == 0
    assert shown.lines[0]["result"]["protocolVersion"] == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--agent", "mine=in-side:agent"], "such as my_package.my_agent:agent"),
        (["--agent", "mine=nowhere:agent"], "No module named 'nowhere'"),
        (["--agent", "mine=inside:missing"], "has no attribute 'missing'"),
        (["--agent", "mine=inside:nothing"], "is no agent but NoneType"),
        (["--agent", "mine=inside:text"], "turnwire_agent.adapt"),
        (["--agent", "mine=breaks:agent"], "ZeroDivisionError"),
        (["--agent", "mine=runs:agent"], 'below `if __name__ == "__main__":`'),
    ],
)
def test_what_is_no_agent_refuses_to_start(home: Path, words: list[str], reason: str) -> None:
    shown = run("serve", "--port", "0", *words, home=home)

    assert (shown.code, shown.out) == (78, ""), shown
    assert reason in shown.err
