"""The wheel in a clean virtual environment answers a prompt."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.patience import LONG_S
from tests.start.newcomer import ROOT, environment, megabytes

from turnwire import __version__

pytestmark = pytest.mark.full("builds and installs a wheel")

MAX_MB = 120
"""Disk space for a virtual environment that can serve. The development tools take about eight times as much."""
BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"


def test_wheel_in_a_clean_environment_answers_a_prompt(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "environment"
    home.mkdir()
    env = environment(home, f"{place}/bin:/usr/bin:/bin")

    def run(*words: str, folder: Path = home) -> str:
        done = subprocess.run(
            words, cwd=folder, env=env, capture_output=True, text=True, timeout=LONG_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    built = run(sys.executable, "-c", BUILD, str(tmp_path), folder=ROOT)
    venv.create(place, with_pip=True)
    run(f"{place}/bin/python", "-m", "pip", "install", "--quiet", str(tmp_path / built.split()[-1]))

    program = f"{place}/bin/turnwire"
    assert run(program, "--version") == f"turnwire {__version__}\n"
    assert "Hello!" in run(program, "prompt", "hi", "--", program, "agent")
    assert megabytes(place) < MAX_MB
