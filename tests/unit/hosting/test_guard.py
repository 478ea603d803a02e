"""The guard as a separate program: its commands, its reports, and its leftovers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwire.clock import boot_time
from turnwire.hosting.guard import control_group, descendants, parent_of, remove_control_group
from turnwire.hosting.process import GUARD
from turnwire_testing.patience import WAIT_S

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the table of processes of Linux")

TELLS = 'trap "echo terminated; exit 5" TERM; echo ready; while :; do read line || sleep 0.05; done'
"""An agent that reports when it can receive a signal, and that it received one."""


UNGROUPED = """
import runpy, sys
guard = runpy.run_path(sys.argv[1])
guard["main"].__globals__["CONTROL_GROUPS"] = ()
guard["main"](sys.argv[2:])
"""
"""The guard on a machine where no control group can be created."""


class Guarded:
    """A guard with its pipes, and an agent below it."""

    def __init__(self, *command: str, cwd: str = "/", program: Sequence[str] = (str(GUARD),)) -> None:
        control, self.control = os.pipe()
        self.status, status = os.pipe()
        self.program = subprocess.Popen(
            [sys.executable, "-I", "-S", *program, str(control), str(status), cwd, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(control, status),
        )
        os.close(control)
        os.close(status)

    def report(self) -> dict[str, Any]:
        """The next line of its status; empty when it has ended."""
        return json.loads(line_from(self.status) or "{}")

    def said(self) -> bytes:
        """The next line of the agent; empty when it has closed its output."""
        assert self.program.stdout is not None
        return line_from(self.program.stdout.fileno())

    def let_go(self) -> None:
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    def end(self) -> None:
        self.let_go()
        self.program.communicate(timeout=WAIT_S)
        os.close(self.status)
        # A killed guard leaves its control group to the daemon.
        remove_control_group(control_group(self.program.pid))


def line_from(fd: int) -> bytes:
    """Return one line, or the output before the end. Fails when nothing arrives."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], 5)
        assert ready, f"nothing came after {line!r}"
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line


Start = Callable[..., Guarded]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Guarded] = []

    def begin(*command: str, cwd: str = "/", program: Sequence[str] = (str(GUARD),)) -> Guarded:
        started.append(Guarded(*command, cwd=cwd, program=program))
        return started[-1]

    yield begin
    for each in started:
        each.end()


def test_an_agent_that_ends_is_reported_step_by_step(start: Start) -> None:
    guarded = start("sh", "-c", "exit 3")
    assert guarded.report()["pid"] > 0
    assert guarded.report() == {"exit_code": 3, "signal": 0}
    assert guarded.report() == {"gone": 0, "left": 0}
    assert guarded.report() == {}
    assert guarded.program.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("command", "cwd", "at"), [("no-such-program", "/", "exec"), ("true", "/no-such-directory", "cwd")]
)
def test_a_launch_that_fails_is_reported_with_its_place(start: Start, command: str, cwd: str, at: str) -> None:
    guarded = start(command, cwd=cwd)
    assert guarded.report() == {"launch_error": 2, "at": at}
    assert guarded.report() == {}


def test_t_terminates_the_agent(start: Start) -> None:
    guarded = start("sh", "-c", TELLS)
    assert guarded.said() == b"ready\n"
    os.write(guarded.control, b"T\n")
    assert guarded.said() == b"terminated\n"
    guarded.report()
    assert guarded.report() == {"exit_code": 5, "signal": 0}


def test_k_kills_the_tree(start: Start) -> None:
    guarded = start("sh", "-c", "sleep 600 & sleep 600 & echo ready; wait")
    assert guarded.said() == b"ready\n"
    os.write(guarded.control, b"K\n")
    guarded.report()
    assert guarded.report() == {"exit_code": 0, "signal": 9}
    assert guarded.report() == {"gone": 3, "left": 0}


def lease(seconds: float) -> bytes:
    return b"L %d\n" % ((boot_time() + seconds) * 1000)


@pytest.mark.guarantee("G14")
def test_a_lease_that_is_over_kills_the_tree_though_the_daemon_holds_on(start: Start) -> None:
    guarded = start("sh", "-c", "sleep 600 & echo ready; wait")
    assert guarded.said() == b"ready\n"
    os.write(guarded.control, lease(600) + lease(0.2))
    guarded.report()
    assert guarded.report() == {"exit_code": 0, "signal": 9}
    assert guarded.report() == {"gone": 2, "left": 0}


def test_a_later_lease_counts_however_it_arrives(start: Start) -> None:
    guarded = start("sh", "-c", TELLS)
    assert guarded.said() == b"ready\n"
    whole = lease(600)
    # Its beginning alone would be one that is over.
    os.write(guarded.control, lease(60) + whole[:4])
    os.write(guarded.control, whole[4:] + b"T\n")
    assert guarded.said() == b"terminated\n"


@pytest.mark.guarantee("G14")
def test_the_end_of_the_control_pipe_kills_the_tree(start: Start) -> None:
    guarded = start("sh", "-c", "sleep 600 & echo ready; wait")
    assert guarded.said() == b"ready\n"
    guarded.let_go()
    guarded.report()
    assert guarded.report() == {"exit_code": 0, "signal": 9}
    assert guarded.report() == {"gone": 2, "left": 0}
    assert guarded.said() == b""


@needs_linux
@pytest.mark.guarantee("G14")
def test_the_kernel_kills_the_agent_of_a_guard_that_is_killed(start: Start) -> None:
    guarded = start("sleep", "600")
    agent = os.pidfd_open(guarded.report()["pid"])
    guarded.program.kill()
    ready, _, _ = select.select([agent], [], [], 5)
    if not ready:
        signal.pidfd_send_signal(agent, signal.SIGKILL)
    os.close(agent)
    assert ready


def test_the_streams_are_the_agents_alone(start: Start) -> None:
    guarded = start("sh", "-c", "exec >&-; cat >/dev/null; exit 4")
    assert guarded.said() == b""
    assert guarded.program.stdin is not None
    guarded.program.stdin.close()
    guarded.program.stdin = None
    guarded.report()
    assert guarded.report() == {"exit_code": 4, "signal": 0}


@needs_linux
def test_descendants_are_found_to_the_last_generation(start: Start) -> None:
    guarded = start("sh", "-c", "sh -c 'sleep 600 & echo $$ $!; wait'; true")
    shell, child = map(int, guarded.said().split())
    agent = guarded.report()["pid"]
    assert descendants(guarded.program.pid) == {agent, shell, child}
    assert parent_of(str(child)) == shell


@needs_linux
def test_a_process_that_is_gone_has_no_parent() -> None:
    assert parent_of(str(2**22 + 1)) == 0


@needs_linux
@pytest.mark.guarantee("G14")
def test_tree_outside_the_agents_process_group_is_killed_without_a_control_group(start: Start) -> None:
    command = "setsid sh -c 'echo ready; exec sleep 600' & wait"
    guarded = start("sh", "-c", command, program=("-c", UNGROUPED, str(GUARD)))
    assert guarded.said() == b"ready\n"
    guarded.let_go()
    guarded.report()
    assert guarded.report() == {"exit_code": 0, "signal": 9}
    assert guarded.report() == {"gone": 2, "left": 0}


CHAIN = """
import os, sys
os.write(1, b"%d\\n" % os.getpid())
os.close(1)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""A process that is replaced by its child all the time; a search of the table of processes can miss it."""


@needs_linux
@pytest.mark.guarantee("G14")
def test_control_group_ends_a_chain_of_forks_with_the_daemon(start: Start) -> None:
    guarded = start("sh", "-c", 'sleep 600 & "$0" -I -S -c "$1" & echo ready; wait', sys.executable, CHAIN)
    assert guarded.said() == b"ready\n"
    group = Path(control_group(guarded.program.pid))
    agent = guarded.report()["pid"]
    if not (group / "cgroup.kill").exists() or str(agent) not in (group / "cgroup.procs").read_text().split():
        pytest.skip("no control group can be made here")
    guarded.said()
    guarded.let_go()
    guarded.program.wait(WAIT_S)
    assert not group.exists(), "a group with a process cannot be removed"
