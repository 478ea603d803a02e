"""No process of an agent or a terminal outlives it while the daemon lives, whatever happens to its guard."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.cli.rig import Served, is_there, served
from tests.patience import LONG_S
from tests.process.starting import needs_linux, watching

pytestmark = [pytest.mark.anyio, needs_linux, pytest.mark.guarantee("G14")]

PROGRAM = str(Path(__file__).with_name("fleeing_program.py"))
QUICK = ("--limit", "stop_eof_s=0.1", "--limit", "stop_term_s=0.1")


async def pids_in(note: Path) -> list[int]:
    path = anyio.Path(note)
    with anyio.fail_after(LONG_S):
        while not await path.exists():
            await anyio.lowlevel.checkpoint()
    return [int(each) for each in (await path.read_text()).split()]


def prompted(daemon: Served, text: str) -> str:
    session = daemon.session()
    daemon.prompt(session, text)
    return session


@pytest.mark.parametrize("then", ["exit", "stay"])
@pytest.mark.parametrize("how", ["kill", "stop", "forge"])
async def test_an_agent_that_ends_or_stops_its_guard_leaves_no_process(tmp_path: Path, how: str, then: str) -> None:
    note = tmp_path / "note"
    agent = (sys.executable, PROGRAM, str(note), how, then, "agent")
    with watching() as fled, served(tmp_path, *QUICK, "--", *agent) as daemon:
        session = prompted(daemon, "go")
        guard, *others = await pids_in(note)
        fled.add(*(each for each in others if is_there(each)))
        if (how, then) == ("stop", "stay"):
            # The failure is not detected yet; it is ended with its session.
            assert is_there(guard)
            daemon.ask("DELETE", f"/session/{session}")
            daemon.process.terminate()
        await fled.gone()
        if then == "exit" or how != "stop":
            assert daemon.ask("GET", "/health")
        assert not is_there(guard) or how == "stop"


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_command_that_ends_or_stops_its_guard_leaves_no_process(tmp_path: Path, how: str) -> None:
    note = tmp_path / "note"
    with watching() as fled, served(tmp_path, *QUICK) as daemon:
        session = prompted(daemon, f"terminal {sys.executable} {PROGRAM} {note} {how} stay")
        _, *others = await pids_in(note)
        fled.add(*(each for each in others if is_there(each)))
        daemon.ask("DELETE", f"/session/{session}")
        await fled.gone()
        assert daemon.ask("GET", "/health")
