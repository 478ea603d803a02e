"""From nothing to a first answer: `make serve` in a fresh copy, and the wheel in a clean virtual environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest
from tests.patience import LONG_S
from tests.start.typed import ROOT

from turnwire import __version__
from turnwire.testing.patience import WAIT_S
from turnwire.testing.plugin import find_tool

MOST_MB = 120
"""What serving may take on the disk. The tools of development take five times as much."""
BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"


def environment(home: Path, **more: str) -> dict[str, str]:
    """A user without any setting of ours; pip has its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNWIRE_", "XDG_"))}
    return {**kept, "HOME": str(home), **more}


def copy_of_the_repository(folder: Path) -> None:
    """What a fresh clone has, as it stands here."""
    find_tool("git")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def megabytes(folder: Path) -> float:
    """What the files in a folder take on the disk."""
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*")) / 1e6


def run(words: list[str], folder: Path, home: Path) -> str:
    """Run a command to its end; gives what it prints."""
    done = subprocess.run(
        words, cwd=folder, env=environment(home), capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_serve_installs_what_serving_needs_and_its_line_to_try_works(tmp_path: Path) -> None:
    find_tool("make")
    folder, home = tmp_path / "turnwire", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    copy_of_the_repository(folder)
    process = subprocess.Popen(
        ["make", f"PYTHON={sys.executable}", "serve"],
        cwd=folder,
        env=environment(home, TURNWIRE_PORT="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watch = threading.Timer(LONG_S, os.killpg, (process.pid, signal.SIGKILL))
    watch.start()
    try:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if line.strip().startswith("stop "):
                break
        assert said[0].startswith("installing what serving needs into .venv"), "".join(said)
        tries = [line.strip().removeprefix("try").strip() for line in said if line.strip().startswith("try ")]
        assert len(tries) == 1, "".join(said)
        assert "Hello!" in run(["/bin/sh", "-c", tries[0]], folder, home)
    finally:
        watch.cancel()
        with process:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(WAIT_S)
    assert megabytes(folder / ".venv") < MOST_MB
    assert not (folder / ".venv" / "bin" / "pytest").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / built.stdout.split()[-1]


def test_the_wheel_alone_is_enough(wheel: Path, tmp_path: Path) -> None:
    environ, home = tmp_path / "environment", tmp_path / "home"
    home.mkdir()
    venv.create(environ, with_pip=True)
    program = str(environ / "bin" / "turnwire")
    run([str(environ / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)], home, home)

    assert run([program, "--version"], home, home) == f"turnwire {__version__}\n"
    assert "Hello!" in run([program, "prompt", "hi", "--", program, "agent"], home, home)
    assert megabytes(environ) < MOST_MB
