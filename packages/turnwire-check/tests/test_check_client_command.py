"""`turnwire check --client` as a user runs it: as the agent of a client, and with a client that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from turnwire.cli.main import cli
from turnwire_testing.patience import WAIT_S

HERE = Path(__file__).parent
SOUND = [sys.executable, "-I", "-S", str(HERE / "check_peers/raw_client.py"), "{scene}", "{agent...}"]
CASES = [
    *("--case", "client.wire.split", "--case", "client.rpc.unique-ids", "--case", "client.cancel.permissions"),
    *("--case", "client.turn.agent-gone"),
]


def check(*words: str, client: list[str] | None = None) -> Result:
    behind = [] if client is None else ["--", *client]
    return CliRunner().invoke(cli, ["check", "--client", *words, *behind], obj={"debug": False})


@pytest.fixture
def mutant(tmp_path: Path) -> list[str]:
    """A client that has one id for all of its requests, as a program; it takes its agent from a variable."""
    program = tmp_path / "mutant.py"
    program.write_text(
        f"import os, shlex, sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from check_peers.mutants_client import CLIENT_MUTANTS, main\n"
        "agent = shlex.split(os.environ['ACP_AGENT_COMMAND'])\n"
        "main(CLIENT_MUTANTS['client.rpc.unique-ids'], os.environ['ACP_CHECK_SCENE'], *agent)\n"
    )
    return [sys.executable, "-I", str(program)]


def test_a_client_that_keeps_the_rules_passes() -> None:
    ran = check(*CASES, client=SOUND)
    assert ran.exit_code == 0, ran.output
    assert "raw-client 1: 4 passed, 0 failed, 0 not scored" in ran.output


def test_a_client_that_breaks_one_fails_with_the_frames_and_every_report(tmp_path: Path, mutant: list[str]) -> None:
    cases = ["--case", "client.rpc.unique-ids", "--case", "client.new.cwd"]
    files = {each: str(tmp_path / each) for each in ("json", "junit", "html", "badge", "write-baseline")}
    ran = check(*cases, *(word for name, file in files.items() for word in (f"--{name}", file)), client=mutant)
    assert ran.exit_code == 1, ran.output
    assert "FAILED client.rpc.unique-ids (must): No two requests have one id." in ran.output
    assert '"method": "session/new"' in ran.output
    counts = json.loads((tmp_path / "json").read_text())["counts"]
    assert (counts["passed"], counts["failed"]) == (1, 1)
    assert "was used before" in (tmp_path / "html").read_text()
    known = json.loads((tmp_path / "write-baseline").read_text())
    assert known == {"knownFailures": ["client.rpc.unique-ids"]}


def test_as_an_agent_it_takes_one_case_after_the_other_and_adds_to_its_report(tmp_path: Path) -> None:
    report, page = tmp_path / "out.json", tmp_path / "out.html"
    chosen = ["--case", "client.rpc.unique-ids", "--case", "client.new.cwd", "--report", str(report)]
    agent = [sys.executable, "-m", "turnwire", "check", "--client", *chosen, "--html", str(page)]
    client = [agent if word == "{agent...}" else [word] for word in SOUND]
    words = [each for some in client for each in some]
    words[words.index("{scene}")] = "visit"
    for _ in range(2):
        ran = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=True)
        assert "passed" in ran.stderr
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(each["case"], each["verdict"]) for each in lines] == [
        ("client.rpc.unique-ids", "passed"),
        ("client.new.cwd", "passed"),
    ]
    assert "2 passed" in page.read_text()


def test_a_client_that_never_starts_its_agent_is_not_judged() -> None:
    ran = check("--case", "client.new.cwd", client=[sys.executable, "-c", "print('no agent for me')"])
    assert ran.exit_code == 1
    assert "no agent of its told a verdict; it printed: no agent for me" in ran.output
    assert "nothing could be judged" in ran.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--case", "v1.turn"], "'v1.turn' is not for this kind of peer; judge an agent"),
        (["--url", "ws://x"], "--url, --rest, --cwd and --provoke are for agents"),
        (["--registry", "agent.json"], "--registry has agents"),
    ],
)
def test_what_does_not_fit_is_said(words: list[str], told: str) -> None:
    ran = check(*words)
    assert ran.exit_code == 2
    assert told in " ".join(ran.output.split())


def test_a_dry_run_starts_no_client(tmp_path: Path) -> None:
    started = tmp_path / "started"
    ran = check("--dry-run", "--case", "client.cancel", client=["touch", str(started)])
    assert ran.exit_code == 0, ran.output
    assert "client.cancel.permissions\tstop-asked" in ran.output
    assert not started.exists()


def test_a_client_that_cannot_be_started_is_named() -> None:
    ran = check("--case", "client.new.cwd", client=[os.devnull])
    assert "can be started; look at the command" in f"{ran.output}{ran.exception}"
