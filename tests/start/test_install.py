"""From nothing to a first answer: `make serve` in a fresh copy, and the wheel in a clean virtual environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.first_start import build_wheel, copy_repository, environment, install_wheel, made_serve, megabytes
from tests.patience import LONG_S

from turnwire import __version__
from turnwire.testing.plugin import find_tool

MOST_MB = 120
"""What serving may take on the disk. The tools of development take five times as much."""


def run(words: list[str], folder: Path, home: Path) -> str:
    """Run a command to its end; gives what it prints."""
    done = subprocess.run(
        words, cwd=folder, env=environment(home), capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_serve_installs_what_serving_needs_and_its_line_to_try_works(tmp_path: Path) -> None:
    find_tool("make")
    find_tool("git")
    folder, home = tmp_path / "turnwire", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    copy_repository(folder)
    with made_serve(folder, home) as said:
        assert said[0].startswith("installing what serving needs into .venv"), "".join(said)
        tries = [line.strip().removeprefix("try").strip() for line in said if line.strip().startswith("try ")]
        assert len(tries) == 1, "".join(said)
        assert "Hello!" in run(["/bin/sh", "-c", tries[0]], folder, home)
    assert megabytes(folder / ".venv") < MOST_MB
    assert not (folder / ".venv" / "bin" / "pytest").exists()


def test_the_wheel_alone_is_enough(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    program = str(install_wheel(build_wheel(tmp_path), tmp_path / "environment", home))

    assert run([program, "--version"], home, home) == f"turnwire {__version__}\n"
    assert "Hello!" in run([program, "prompt", "hi", "--", program, "agent"], home, home)
    assert megabytes(tmp_path / "environment") < MOST_MB
