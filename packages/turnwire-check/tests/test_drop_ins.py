"""The suite where others have their checks: the action for workflows, and the entry of a registry."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from turnwire.errors import ConfigError
from turnwire_check.registry_entry import read_entry
from turnwire_testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[3]
ACTION = ROOT / ".github" / "actions" / "check"
AGENT = Path(__file__).with_name("check_peers") / "raw_agent.py"


def test_every_input_of_the_action_reaches_its_script() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    steps = action["runs"]["steps"]
    used = json.dumps(steps)
    assert all(f"inputs.{name} " in used for name in action["inputs"])
    [check] = [each for each in steps if each.get("name") == "Check"]
    script = (ACTION / "check.sh").read_text()
    assert all(name in script for name in check["env"])
    assert all("${{" not in each.get("run", "") for each in steps), "an input in a script is run as one"


def test_its_script_has_no_fault_that_a_shell_sees() -> None:
    script = str(ACTION / "check.sh")
    subprocess.run(["bash", "-n", script], check=True, timeout=WAIT_S)
    if shutil.which("shellcheck") is not None:
        subprocess.run(["shellcheck", script], check=True, timeout=WAIT_S)


def script(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    program = folder / "turnwire"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m turnwire "$@"\n')
    program.chmod(0o755)
    given = {f"CHECK_{name.upper()}": value for name, value in inputs.items()}
    told = {"CHECK_PROGRAM": str(program), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    command = ["bash", str(ACTION / "check.sh")]
    environment = {**os.environ, **told, **given}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.full("runs the script of the action")
def test_the_script_judges_and_leaves_every_report(tmp_path: Path) -> None:
    agent = shlex.join([sys.executable, "-I", "-S", str(AGENT)])
    ran = script(
        tmp_path, command=agent, case="v1.turn.once v1.turn.ends", set="acp-v1/2026-11", arguments="--jobs\n1"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    left = sorted(each.name for each in (tmp_path / "acp-check").iterdir())
    assert left == ["check.html", "check.json", "check.svg", "check.txt", "check.xml"]
    assert "2 passed, 0 failed" in (tmp_path / "summary").read_text()


@pytest.mark.full("runs the script of the action")
def test_the_script_fails_where_the_check_does_and_runs_no_input(tmp_path: Path) -> None:
    ran = script(tmp_path, command="true; touch $(pwd)/was-run", case="v1.turn.once")
    assert ran.returncode != 0
    assert not (tmp_path / "was-run").exists()


def entry(folder: Path, **distribution: object) -> Path:
    path = folder / "agent.json"
    path.write_text(json.dumps({"id": "mine", "name": "Mine", "version": "1", "distribution": distribution}))
    return path


@pytest.mark.full("runs the script of the action")
def test_the_agent_of_an_entry_is_started_as_the_entry_says(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {AGENT}\n")
    (tmp_path / "agent").chmod(0o755)
    place = f"{platform.system().lower()}-{platform.machine().replace('arm64', 'aarch64').lower()}"
    path = entry(tmp_path, binary={place: {"cmd": "./agent", "args": ["--acp"], "env": {"MODE": "acp"}}})
    start = read_entry(path)
    assert (start.command[1:], start.environment) == (("--acp",), {"MODE": "acp"})
    # As it is called where the file lies.
    ran = script(tmp_path, registry=path.name, case="v1.turn.once")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_packages_are_started_by_their_runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    npx = read_entry(entry(tmp_path, npx={"package": "@mine/agent@1.0", "args": ["--acp"]}))
    assert npx.command == ("npx", "--yes", "@mine/agent@1.0", "--acp")
    uvx = read_entry(entry(tmp_path, uvx={"package": "mine==1.0"}))
    assert uvx.command == ("uvx", "mine==1.0")


def test_an_entry_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no `distribution` that can be started here"):
        read_entry(entry(tmp_path, binary={"plan9-mips": {"cmd": "./agent"}}))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_entry(tmp_path / "nothing.json")
    (tmp_path / "odd.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        read_entry(tmp_path / "odd.json")
