"""No orphans: however any process dies, the whole tree of an agent ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio
import pytest
from tests.process.starting import WAIT_S, is_listed, needs_linux, parent_of, running, take, watching

from turnwire.errors import LinkBroken
from turnwire.hosting.process import AgentProcess
from turnwire.limits import Limits
from turnwire_testing.clock import ManualClock

pytestmark = [pytest.mark.anyio, needs_linux, pytest.mark.guarantee("G14")]

STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)

def say():
    os.write(1, b"%d\\n" % os.getpid())

say()
if not os.fork():
    os.setsid()
    if not os.fork():
        say()
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Starts a process that is in no group, under no parent and deaf to every polite signal, and holds its streams."""

STAYS = STUBBORN + "time.sleep(600)"
LEAVES = STUBBORN + "os.read(0, 1)"

TREE = 5
"""The agent, a shell below it, and below that one Python with its detached child; and the guard above."""


def wrapped(code: str) -> list[str]:
    """Return a command that runs the code below two shells, as a package runner starts an agent. Each process
    reports its id.
    """
    inner = 'echo $$; "$0" -I -S -c "$1"; exit $?'
    outer = f'echo $$; sh -c \'{inner}\' "$0" "$1"; exit $?'
    return ["sh", "-c", outer, sys.executable, code]


async def tree_of(agent: AgentProcess) -> list[int]:
    """Every process of an agent that runs `wrapped`, and its guard."""
    pids = [int(line) for line in await take(agent.link, TREE - 1)]
    assert pids[0] == agent.pid
    assert len(set(pids)) == TREE - 1
    return [parent_of(agent.pid), *pids]


async def test_stop_leaves_nothing_of_a_tree_that_ignores_every_polite_signal() -> None:
    async with running(wrapped(STAYS), limits=Limits(stop_eof_s=0.1)) as agent:
        with watching(*await tree_of(agent)) as tree:
            with anyio.fail_after(WAIT_S):
                assert (await agent.stop()).stopped_by == "term"
            await tree.gone()


async def test_stop_returns_when_the_tree_is_gone_and_not_before() -> None:
    async with running(wrapped(STAYS)) as agent:
        pids = await tree_of(agent)
        with watching(*pids):
            agent.kill()
            with anyio.fail_after(WAIT_S):
                await agent.exited()
            assert [pid for pid in pids if is_listed(pid)] == []


async def test_nothing_is_left_when_the_agent_leaves_by_itself() -> None:
    async with running(wrapped(LEAVES)) as agent:
        with watching(*await tree_of(agent)) as tree:
            await agent.link.send(b"go")
            with anyio.fail_after(WAIT_S):
                exit = await agent.exited()
            assert (exit.exit_code, exit.stopped_by) == (0, None)
            await tree.gone()


async def test_nothing_is_left_when_the_agent_is_killed() -> None:
    async with running(wrapped(STAYS)) as agent:
        with watching(*await tree_of(agent)) as tree:
            os.kill(agent.pid, signal.SIGKILL)
            with anyio.fail_after(WAIT_S):
                exit = await agent.exited()
            assert (exit.exit_code, exit.signal, exit.stopped_by) == (None, signal.SIGKILL, None)
            await tree.gone()


DAEMON = """
import anyio, os, sys
from turnwire.hosting.process import renew_lease, spawn
from turnwire.clock import boot_time

LEASE_S = float(os.environ.get("LEASE_S", "0"))

async def renew():
    while True:
        for _ in range(12):
            renew_lease(boot_time() + LEASE_S)
            await anyio.sleep(LEASE_S / 8)
        os.write(1, b"renewed\\n")

async def main():
    if LEASE_S:
        renew_lease(boot_time() + LEASE_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            await host()
    await host()

async def host():
    agent = await spawn(sys.argv[1:], cwd="/", env=dict(os.environ))
    left = int(os.environ["TREE"])
    while left:
        for line in await agent.link.receive():
            os.write(1, line + b"\\n")
            left -= 1
    await anyio.sleep_forever()

anyio.run(main)
"""


def kill_it(daemon: subprocess.Popen[bytes]) -> None:
    daemon.kill()


def terminate_it(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()


@contextmanager
def daemon_with(command: list[str], **environment: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a process that hosts an agent, and forwards the agent's output."""
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TREE": str(TREE - 1), **environment},
    ) as daemon:
        try:
            yield daemon
        finally:
            daemon.kill()


@pytest.mark.parametrize("end", [kill_it, terminate_it])
async def test_nothing_is_left_when_the_daemon_dies(end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    with daemon_with(wrapped(STAYS)) as daemon:
        assert daemon.stdout is not None
        read = daemon.stdout.readline
        with anyio.fail_after(2 * WAIT_S):
            pids = [int(await anyio.to_thread.run_sync(read)) for _ in range(TREE - 1)]
        with watching(parent_of(pids[0]), *pids) as tree:
            end(daemon)
            await tree.gone()


@pytest.mark.full("takes 8 s")
async def test_the_lease_of_a_daemon_that_is_frozen_ends_the_tree_and_that_of_one_that_runs_does_not() -> None:
    with daemon_with(wrapped(STAYS), LEASE_S="2") as daemon:
        assert daemon.stdout is not None
        read = daemon.stdout.readline
        with anyio.fail_after(2 * WAIT_S):
            pids: list[int] = []
            while len(pids) < TREE - 1:
                line = await anyio.to_thread.run_sync(read)
                pids += [int(line)] if line.strip().isdigit() else []
        with watching(parent_of(pids[0]), *pids) as tree:
            # By then the first lease is over.
            for _ in range(2):
                assert await anyio.to_thread.run_sync(read) == b"renewed\n"
            assert [pid for pid in pids if not is_listed(pid)] == []
            daemon.send_signal(signal.SIGSTOP)
            await tree.gone()
            assert daemon.poll() is None


async def test_the_agent_is_gone_and_its_exit_told_when_the_guard_is_killed() -> None:
    async with running(["sh", "-c", "sleep 600 & echo $!; wait"]) as agent:
        child = int((await take(agent.link, 1))[0])
        guard = parent_of(agent.pid)
        with watching(guard, agent.pid, child) as tree:
            os.kill(guard, signal.SIGKILL)
            with anyio.fail_after(WAIT_S):
                exit = await agent.exited()
            assert (exit.exit_code, exit.signal) == (None, None)
            await tree.gone()


async def test_a_process_that_outlives_a_killed_guard_holds_up_neither_the_exit_nor_the_link() -> None:
    async with running(wrapped(STAYS)) as agent:
        pids = await tree_of(agent)
        with watching(*pids):
            os.kill(pids[0], signal.SIGKILL)
            with anyio.fail_after(WAIT_S):
                await agent.exited()
                with pytest.raises(LinkBroken):
                    await agent.link.receive()


async def test_a_guard_that_is_terminated_takes_the_tree_along() -> None:
    async with running(wrapped(STAYS)) as agent:
        pids = await tree_of(agent)
        with watching(*pids) as tree:
            os.kill(pids[0], signal.SIGTERM)
            with anyio.fail_after(WAIT_S):
                assert (await agent.exited()).signal == signal.SIGKILL
            await tree.gone()


async def test_a_guard_that_does_not_answer_does_not_hold_stop_up(manual_clock: ManualClock) -> None:
    async with running(["sleep", "600"], sleep=manual_clock.sleep) as agent:
        guard = parent_of(agent.pid)
        with watching(guard, agent.pid) as tree:
            os.kill(guard, signal.SIGSTOP)
            with anyio.fail_after(WAIT_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(agent.stop)
                    for _ in range(3):
                        await manual_clock.wait_for_sleepers(1)
                        manual_clock.advance(10)
            assert agent.exit is not None
            assert agent.exit.stopped_by == "kill"
            await tree.gone()
