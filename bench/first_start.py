"""The first start: time and size of what is installed, and how long a command takes before it does anything.

Takes nothing; prints one table. Installs into folders that are gone afterwards, from wherever pip takes its
packages, so the times are those of this machine and its cache. Commands take turns with `python -c pass`, the floor
of all that is written in Python, and the median of each counts.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 15
BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"


def environment(home: Path, **more: str) -> dict[str, str]:
    """A user without any setting of ours; pip has its own."""
    # Those of a make that runs us are not the user's either.
    foreign = ("TURNWIRE_", "XDG_", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "HOME": str(home), **more}


def copy_repository(folder: Path) -> None:
    """What a fresh clone would have, as it stands here. Needs git."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True)
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build_wheel(folder: Path) -> Path:
    """The wheel of what stands here."""
    command = [sys.executable, "-c", BUILD, str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return folder / built.stdout.split()[-1]


def install_wheel(wheel: Path, environ: Path, home: Path) -> Path:
    """A clean virtual environment with the wheel and what it needs; gives the program."""
    venv.create(environ, with_pip=True)
    pip = [str(environ / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(pip, cwd=home, env=environment(home), check=True)
    return environ / "bin" / "turnwire"


def megabytes(folder: Path) -> float:
    """What the files in a folder take on the disk."""
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*")) / 1e6


@contextmanager
def made_serve(folder: Path, home: Path) -> Generator[list[str]]:
    """`make serve` in a copy of the repository; gives what it printed until it serves. Ends it."""
    with subprocess.Popen(
        ["make", f"PYTHON={sys.executable}", "serve"],
        cwd=folder,
        env=environment(home, TURNWIRE_PORT="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if line.strip().startswith("stop "):
                    break
            yield said
        finally:
            os.killpg(process.pid, signal.SIGTERM)


class Taken(NamedTuple):
    """What a command took, in seconds."""

    time: float
    cpu: float


def _taken(words: list[str], folder: Path, env: dict[str, str]) -> Taken:
    begun, before = time.perf_counter(), _cpu()
    subprocess.run(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return Taken(time.perf_counter() - begun, _cpu() - before)


def _cpu() -> float:
    """What all processes that we started and that have ended used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _commands(home: Path) -> None:
    """How long commands take, with a daemon that runs."""
    program, env = str(Path(sys.executable).with_name("turnwire")), environment(home)
    with subprocess.Popen(
        [program, "serve", "--json", "--port", "0"],
        cwd=home,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        try:
            assert daemon.stdout is not None
            daemon.stdout.readline()
            measured = {
                "python -c pass": [sys.executable, "-c", "pass"],
                "turnwire --help": [program, "--help"],
                "turnwire prompt hello": [program, "prompt", "hello"],
            }
            found: dict[str, list[Taken]] = {name: [] for name in measured}
            for _ in range(ROUNDS):
                for name, words in measured.items():
                    found[name].append(_taken(words, home, env))
        finally:
            daemon.terminate()
    middle = {
        name: Taken(*(statistics.median(column) for column in zip(*each, strict=True)))
        for name, each in found.items()
    }
    floor = middle["python -c pass"]
    for name, each in middle.items():
        print(
            f"{name + ', p50':40}{each.time * 1000:10.0f} ms{each.time / floor.time:8.1f} x"
            f"{each.cpu * 1000:10.0f} ms CPU{each.cpu / floor.cpu:8.1f} x"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "home"
        home.mkdir()
        print(f"the first start; commands are the median of {ROUNDS}, compared with python -c pass")
        (folder / "copy").mkdir()
        copy_repository(folder / "copy")
        begun, before = time.perf_counter(), _cpu()
        with made_serve(folder / "copy", home):
            served_s = time.perf_counter() - begun
        print(f"{'make serve in a copy, until it serves':40}{served_s:10.1f} s{_cpu() - before:10.1f} s CPU")
        print(f"{'what it installed':40}{megabytes(folder / 'copy' / '.venv'):10.1f} MB")
        wheel = build_wheel(folder)
        begun, before = time.perf_counter(), _cpu()
        install_wheel(wheel, folder / "environment", home)
        installed_s = time.perf_counter() - begun
        print(f"{'the wheel':40}{wheel.stat().st_size / 1e6:10.2f} MB")
        print(f"{'the wheel in a clean environment':40}{installed_s:10.1f} s{_cpu() - before:10.1f} s CPU")
        print(f"{'what it installed':40}{megabytes(folder / 'environment'):10.1f} MB")
        _commands(home)


if __name__ == "__main__":
    main()
