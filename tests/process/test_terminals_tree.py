"""No orphans of a terminal: however any process ends, the whole tree of its command ends with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.process.starting import is_listed, needs_linux, parent_of, python, watching
from tests.unit.hosting.services.asking import (
    WAIT_S,
    ask,
    create,
    exit_of,
    lines_of,
    output,
    refused,
    workspace_in,
)

from turnwire.hosting.services import Workspace
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import RESOURCE_NOT_FOUND
from turnwire_testing.patience import quiet

pytestmark = [pytest.mark.anyio, needs_linux, pytest.mark.guarantee("G14")]

PATIENT = Limits(stop_kill_s=10.0, launch_s=30.0)
"""On a machine that is busy with something else."""

TREE = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"%d\\n" % os.getpid())
if not os.fork():
    os.setsid()
    if not os.fork():
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Starts a process that is in no group, under no parent and deaf to every polite signal."""

STAYS = TREE + "time.sleep(600)"


async def started(workspace: Workspace, code: str) -> tuple[str, list[int]]:
    """Start a terminal with a stubborn tree: its guard, the command, and a grandchild in a separate session."""
    terminal = await create(workspace, *python(code))
    pids = [int(line) for line in await lines_of(workspace, terminal, 2)]
    return terminal, [parent_of(pids[0]), *pids]


async def test_release_takes_the_whole_tree_and_the_id(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal, pids = await started(workspace, STAYS)
        with watching(*pids):
            await ask(workspace, "terminal/release", terminalId=terminal)
            assert [pid for pid in pids if is_listed(pid)] == []
        error = await refused(workspace, "terminal/output", terminalId=terminal)
        assert error.jsonrpc == RESOURCE_NOT_FOUND
        assert (await refused(workspace, "terminal/release", terminalId=terminal)).reason == "unknown_terminal"


async def test_kill_takes_the_whole_tree_and_leaves_the_id(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal, pids = await started(workspace, STAYS)
        with watching(*pids):
            for _ in range(2):
                assert await ask(workspace, "terminal/kill", terminalId=terminal) == {}
            assert [pid for pid in pids if is_listed(pid)] == []
        found = await output(workspace, terminal)
        assert found["exitStatus"] == {"signal": "SIGKILL"}
        assert found["output"].split() == [str(pid) for pid in pids[1:]]
        await ask(workspace, "terminal/release", terminalId=terminal)


async def test_what_a_command_leaves_running_goes_when_it_ends(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", "sleep 600 & echo $!; exit 3")
        assert await exit_of(workspace, terminal) == {"exitCode": 3}
        assert not is_listed(int((await output(workspace, terminal))["output"]))


async def test_closing_takes_every_tree_and_wakes_who_waits(tmp_path: Path) -> None:
    found: list[Any] = []

    async def wait(terminal: str) -> None:
        found.append(await exit_of(workspace, terminal))

    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        trees = [await started(workspace, STAYS) for _ in range(3)]
        pids = [pid for _, tree in trees for pid in tree]
        with watching(*pids) as watched:
            async with anyio.create_task_group() as tasks:
                for terminal, _ in trees:
                    tasks.start_soon(wait, terminal)
                await quiet()
                await workspace.aclose()
            await watched.gone()
    assert found == [{"signal": "SIGKILL"}] * 3


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def test_a_create_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        await workspace.open()
        before = children()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create, workspace, "sleep", "600")
            with anyio.fail_after(WAIT_S):
                while children() == before:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert children() == before


async def test_a_release_that_is_cancelled_still_releases(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal, pids = await started(workspace, STAYS)
        with watching(*pids) as tree:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await ask(workspace, "terminal/release", terminalId=terminal)
            assert (await refused(workspace, "terminal/output", terminalId=terminal)).reason == "unknown_terminal"
            await tree.gone()
