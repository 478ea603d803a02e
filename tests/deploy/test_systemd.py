"""deploy/turnwire.service: systemd accepts it, its sandbox is as strict as stated, and its command runs and
stops.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.rig import served

from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "turnwire.service"
MOST_EXPOSED = 2.5
"""Maximum exposure out of 10. systemd rates everything below 2 safe, and up to 5 OK; an agent needs the network and
its files.
"""


def settings() -> dict[str, str]:
    lines = [
        line for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line and not line.startswith("#")
    ]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = [find_tool("systemd-analyze"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there: systemd wants to see it."""
    program = settings()["ExecStart"].split()[0]
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text(encoding="utf-8").replace(program, sys.executable), encoding="utf-8")
    return file


def test_systemd_finds_nothing_wrong_with_it(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


def test_a_unit_with_a_wrong_word_would_be_found(unit: Path) -> None:
    unit.write_text(
        unit.read_text(encoding="utf-8").replace("KillMode=process", "KillMode=proces"), encoding="utf-8"
    )
    assert "proces" in analyze("verify", "--man=no", str(unit)).stderr


def test_what_runs_in_it_can_do_little_else(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= MOST_EXPOSED


def test_it_is_stopped_by_the_signal_that_drains_and_not_before_the_drain_is_over() -> None:
    known = settings()
    assert (known["KillSignal"], known["KillMode"]) == ("SIGTERM", "process")
    assert int(known["TimeoutStopSec"]) > Limits().drain_s


def test_its_command_line_runs_and_ends_well_at_the_signal(tmp_path: Path) -> None:
    known = settings()
    program, command, *flags = shlex.split(known["ExecStart"])
    assert (Path(program).name, command) == ("turnwire", "serve")
    projects, state = tmp_path / "projects", tmp_path / "state"
    projects.mkdir()
    here = {"/srv/projects": str(projects), "/var/lib/turnwire": str(state)}

    def moved(text: str) -> str:
        return next((text.replace(old, new) for old, new in here.items() if old in text), text)

    # HOME is the rig's own.
    env = dict(moved(each).split("=", 1) for each in shlex.split(known["Environment"]) if "HOME=" not in each)
    with served(tmp_path, *map(moved, flags), builtin=True, **env) as daemon:
        assert daemon.data == state / "data"
        assert "Hello" in daemon.said(daemon.session(cwd=str(projects)), "hello")
        assert daemon.stop() == 0
