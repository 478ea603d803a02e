"""The peers that `make peers` puts under `.peers/`, and their start commands.

A peer's name and a folder for its sessions become a command. Without the peer the test is skipped with the reason,
and fails where `TURNWIRE_REQUIRE_ALL=1` requires all peers.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
AGENTS = Path(__file__).parent / "agents"
NODE = ("node", "--preserve-symlinks", "--preserve-symlinks-main")


class Peer(NamedTuple):
    """One official SDK, and the agent that is written with it."""

    name: str
    version: int
    """The ACP version."""
    needs: Path
    """There when the SDK is installed."""
    program: tuple[str, ...]
    brought_back: tuple[str, ...]
    """Ways in which a new process may restore a session of an old one."""

    def command(self, folder: Path) -> list[str]:
        """Return the command of the agent, with its sessions stored in this folder."""
        if self.program[0] == "node" and shutil.which("node") is None:
            absent("the program 'node' is not on PATH")
        if not self.needs.exists():
            absent(f"{self.needs.relative_to(ROOT)} is not there; run: make peers")
        return [*self.program, str(folder)]


def absent(reason: str) -> None:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("TURNWIRE_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason} (TURNWIRE_REQUIRE_ALL=1 asks for every peer)", pytrace=False)
    pytest.skip(reason)


def _python(name: str, version: int, brought_back: tuple[str, ...]) -> Peer:
    environment = PEERS / name
    program = (str(environment / "bin" / "python"), str(AGENTS / f"{name.replace('-', '_')}.py"))
    return Peer(name, version, environment / ".installed", program, brought_back)


def _node(name: str, version: int, brought_back: tuple[str, ...]) -> Peer:
    program = (*NODE, str(PEERS / "node" / "agents" / f"{name.replace('-', '_')}.mjs"))
    return Peer(name, version, PEERS / "node" / ".installed", program, brought_back)


OFFICIAL = (
    _python("py-v1", 1, ("load",)),
    _python("py-v2", 2, ("resume",)),
    _node("js-v1", 1, ("load", "resume")),
    _node("js-v2", 2, ("resume",)),
)


def scripted(*arguments: str) -> list[str]:
    """Our own scripted agent as a program."""
    return [sys.executable, "-m", "turnwire_testing.agent", *arguments]


def raw_agent(name: str) -> list[str]:
    """Return a small agent without any SDK, from `agents/`."""
    return [sys.executable, str(AGENTS / f"{name}.py")]
