"""No orphans of a terminal: however any process ends, the whole tree of its command ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
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


async def test_a_terminal_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", "sleep 600 & echo $$ $!; wait")
        [line] = await lines_of(workspace, terminal, 1)
        pids = [int(each) for each in line.split()]
        guard = parent_of(pids[0])
        with watching(guard, *pids) as tree:
            os.kill(guard, signal.SIGKILL)
            # Its exit status was not observed.
            assert await exit_of(workspace, terminal) == {}
            await tree.gone()


DAEMON = """
import sys, anyio, msgspec
from turnwire.hosting.services import Workspace
from turnwire.wire.jsonrpc import raw

async def main():
    workspace = Workspace(sys.argv[1])
    async def ask(method, **params):
        return msgspec.json.decode(await workspace.serve(method, raw({"sessionId": "s", **params})))
    terminal = (await ask("terminal/create", command=sys.argv[2], args=sys.argv[3:]))["terminalId"]
    while (text := (await ask("terminal/output", terminalId=terminal))["output"]).count("\\n") < 2:
        await anyio.lowlevel.checkpoint()
    print(text, end="", flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@contextmanager
def daemon_in(cwd: Path, command: list[str]) -> Generator[subprocess.Popen[bytes]]:
    """Run a process that serves one terminal, and forwards its command's output."""
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(cwd), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            yield daemon
        finally:
            daemon.kill()


async def test_nothing_is_left_when_the_daemon_is_killed(tmp_path: Path) -> None:
    with daemon_in(tmp_path, python(STAYS)) as daemon:
        assert daemon.stdout is not None
        read = daemon.stdout.readline
        with anyio.fail_after(3 * WAIT_S):
            pids = [int(await anyio.to_thread.run_sync(read)) for _ in range(2)]
        with watching(parent_of(pids[0]), *pids) as tree:
            daemon.kill()
            await tree.gone()


async def test_a_guard_that_does_not_answer_does_not_keep_the_command_alive(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=Limits(launch_s=30.0, stop_kill_s=0.05)) as workspace:
        terminal = await create(workspace, "sh", "-c", "echo $$; exec sleep 600")
        pid = int((await lines_of(workspace, terminal, 1))[0])
        guard = parent_of(pid)
        with watching(pid, guard) as tree:
            os.kill(guard, signal.SIGSTOP)
            assert await ask(workspace, "terminal/kill", terminalId=terminal) == {}
            await tree.gone()
        assert await exit_of(workspace, terminal) == {}, "the guard was killed too, so nobody saw it end"
