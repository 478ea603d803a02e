"""Packages of agents under `.peers/agents`: installed once per version, by npm or by pip.

A row of the table becomes the folder with its programs, or an error that explains the failed installation. A failed
installation leaves no files that a later run could mistake for a complete one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from turnwire.cli.known_agents import KnownAgent

ROOT = Path(".peers/agents").absolute()
NODE = "node@26.10.0"
"""Some agents need a newer Node than the machine may have, so each brings its own."""
PYTHONS = ("python3.13", "python3.12", "python3.14")
"""The agents of PyPI want one of these."""
INSTALL_S = 600.0


class NotInstalled(Exception):
    """Why an agent is not there."""


def installed(agent: KnownAgent) -> Path:
    """The folder of the agent's programs; raises `NotInstalled`."""
    package = f"{agent.npm}@{agent.version} {NODE}" if agent.npm else f"{agent.pypi}=={agent.version}"
    place = ROOT / agent.name
    stamp = place / ".installed"
    programs = place / ("node_modules/.bin" if agent.npm else "bin")
    if not (stamp.exists() and stamp.read_text().strip() == package):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for command in _npm(place, package) if agent.npm else _pip(place, package):
            _run(command, place)
        stamp.write_text(package + "\n")
    if not (programs / agent.program).exists():
        raise NotInstalled(f"its package has no program {agent.program}")
    return programs


def _npm(place: Path, package: str) -> list[list[str]]:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is not on PATH")
    (place / "package.json").write_text('{"private": true}\n')
    return [[npm, "install", "--no-fund", "--no-audit", "--save-exact", *package.split()]]


def _pip(place: Path, package: str) -> list[list[str]]:
    python = next((found for each in PYTHONS if (found := _works(each))), None)
    if python is None:
        raise NotInstalled(f"none of {', '.join(PYTHONS)} is on PATH")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
    return [[python, "-m", "venv", str(place)], pip]


def _works(python: str) -> str | None:
    """The path of an interpreter that runs: a version manager puts names on PATH that do not."""
    found = shutil.which(python)
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return found


def _run(command: list[str], place: Path) -> None:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"the installation took more than {INSTALL_S:.0f} s") from error
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        raise NotInstalled(f"{'npm' if 'npm' in command[0] else 'pip'} failed: {_reason(done.stderr)}")


def _reason(errors: str) -> str:
    """Return the most informative line of an installer's errors, without addresses and paths."""
    lines = [re.sub(r"(npm error |ERROR: )+", "", line).strip() for line in errors.splitlines()]
    told = [line for line in lines if re.search("fail|no matching|not found|unable|cannot", line, re.IGNORECASE)]
    last = (told or lines or ["no word"])[-1]
    return re.sub(r"\S*/\S*/\S*", "…", last)[:160]
