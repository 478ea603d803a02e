"""The guard: a tiny program between the daemon and one agent. It ends the agent's process tree when either of them
ends.

Run as `python -I -S guard.py CONTROL STATUS CWD -- COMMAND…` by `turnwire.hosting.process`. It starts the agent in
a new session with the standard streams it was given, closes its own copies of them, and moves no data. It reads
lines from the descriptor CONTROL and writes JSON lines to STATUS:

    control  T       SIGTERM to the agent's process group
             K       kill the whole tree
             L 7000  a lease: kill the whole tree when the machine's clock shows these milliseconds since its boot,
                     its sleep included, unless a later lease has come by then
             (end)   the daemon has ended, for whatever reason: kill the whole tree
    status   {"pid": 7}                             the agent runs
             {"launch_error": 2, "at": "exec"}      it could not be started: errno, and the step `cwd` or `exec`
             {"exit_code": 0, "signal": 9}          it ended; a signal of 0 means no signal
             {"gone": 4, "left": 0}                 numbers of killed and of surviving processes of its tree

The difficulty is the tree: a child that starts a new session and loses its parent is in no group and under no
ancestor that a signal would reach. On Linux the guard is a sub-reaper, so every such child becomes the guard's
child; it kills its descendants until it has no child. A chain of processes that fork and exit can escape such a
search, so the tree is also put into a control group (version 2), if one can be created, which the kernel kills as a
whole. On other systems the guard kills the agent's process group. If the guard is killed, the agent gets SIGKILL
from the kernel on Linux, and its group from the daemon; a daemon that is a sub-reaper as well
(`turnwire.hosting.process.adopt_orphans`) inherits the other processes and kills them.

The guard uses the standard library only and imports neither turnwire nor modules whose import costs more than they
save (`json`, `typing`): it starts in some 20 ms, and runs alone.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Container
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

GIVE_UP_S = 3.0
"""Time after which a process that survives SIGKILL is given up: it hangs in the kernel and cannot be ended."""

ROUND_S = 0.02
"""Longest pause before the tree is searched again, for a child that was forked while its parent was killed."""

LOOKED_S = 0.5
"""Interval of lease checks. A wait does not count the time that the machine sleeps, but the lease does."""

BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

IS_LINUX = sys.platform == "linux"


CONTROL_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Possible mount points of control groups of version 2."""


def control_group(guard: int) -> str:
    """Return the folder of the control group of a guard's tree; empty if this machine cannot create one."""
    with suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            own = line.strip().removeprefix("0::").rstrip("/")
            for mount in CONTROL_GROUPS if line.startswith("0::") else ():
                if os.access(f"{mount}{own}/cgroup.procs", os.W_OK):
                    return f"{mount}{own}/turnwire-{guard}"
    return ""


def kill_control_group(folder: str) -> None:
    """Kill every process of a control group at once; Linux 5.14 and newer."""
    if folder:
        with suppress(OSError), open(f"{folder}/cgroup.kill", "w") as file:
            file.write("1")


def remove_control_group(folder: str) -> None:
    """Remove a control group that has no processes any more."""
    if folder:
        with suppress(OSError):
            os.rmdir(folder)


def set_process_option(option: int, value: int) -> None:
    """Call `prctl` on Linux. Elsewhere only the control pipe and the group are available."""
    if IS_LINUX:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Tree:
    """One agent and its whole process tree. Subclasses report to the daemon and serve it."""

    def __init__(self) -> None:
        self._agent = 0
        self._agent_is_alive = False
        self._control_group = control_group(os.getpid())
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._must_end = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, self._wake_up)

    def run(self, cwd: str, command: list[str]) -> None:
        """Start the agent, and return once it and its tree are gone."""
        if self._control_group:
            with suppress(OSError):
                os.mkdir(self._control_group)
        if self._launch(cwd, command):
            self._watch()
            self._bury()
        remove_control_group(self._control_group)

    def _report(self, line: str) -> None:
        """Report to the daemon, without waiting."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Serve the daemon until the agent ends or the tree has to be killed."""
        raise NotImplementedError

    def _end(self, *_: object) -> None:
        self._must_end = True

    def _wake_up(self, *_: object) -> None:
        """Do nothing: a handled signal writes to the wake-up pipe, which is sufficient."""

    def _launch(self, cwd: str, command: list[str]) -> bool:
        failure, failure_write = os.pipe()
        parent = os.getpid()
        self._agent = os.fork()
        if not self._agent:
            become_agent(parent, cwd, command, failure_write, self._control_group)
        os.close(failure_write)
        let_go_of_streams()
        found = os.read(failure, 64)
        os.close(failure)
        if found:
            os.waitpid(self._agent, 0)
            at, number = found.split()
            self._report(f'{{"launch_error": {int(number)}, "at": "{at.decode()}"}}')
            return False
        self._agent_is_alive = True
        self._report(f'{{"pid": {self._agent}}}')
        return True

    def _reap(self) -> bool:
        """Reap dead children. Return true if a child remains."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._agent:
                self._agent_is_alive = False
                code = os.waitstatus_to_exitcode(status)
                self._report(f'{{"exit_code": {max(code, 0)}, "signal": {max(-code, 0)}}}')

    def _bury(self) -> None:
        """Kill the tree, round by round, until no process of it remains."""
        killed: set[int] = set()
        deadline = time.monotonic() + GIVE_UP_S
        left = self._left()
        while left and time.monotonic() < deadline:
            self._kill_group(signal.SIGKILL)
            kill_control_group(self._control_group)
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed |= left
            select.select([self._wake], [], [], ROUND_S)
            self._drain_wake()
            left = self._left()
        self._report(f'{{"gone": {len(killed)}, "left": {len(left)}}}')

    def _left(self) -> set[int]:
        """Return the processes of the tree that still exist."""
        if self._reap():
            return descendants(os.getpid()) or {self._agent}
        # Without a sub-reaper the group may hold processes that are not children of the guard.
        return {self._agent} if not IS_LINUX and self._kill_group(0) else set()

    def _kill_group(self, number: int) -> bool:
        """Signal the agent's group. Return true if it exists."""
        try:
            os.killpg(self._agent, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass


class Guard(Tree):
    """The tree of a daemon that reads and writes the agent's pipes itself."""

    def __init__(self, control: int, status: int) -> None:
        super().__init__()
        self._control = control
        self._status = status
        self._unfinished = b""
        """The received part of the next order."""
        self._lease_ms: int | None = None

    def _report(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._status, line.encode() + b"\n")

    def _watch(self) -> None:
        while self._agent_is_alive and not self._must_end:
            ready, _, _ = select.select([self._control, self._wake], [], [], self._lease_s())
            self._drain_wake()
            if self._control in ready:
                self._obey()
            self._must_end |= self._lease_s() == 0.0
            self._reap()

    def _lease_s(self) -> float | None:
        """Return the longest wait before the next check of the lease; 0 if it is over."""
        if self._lease_ms is None:
            return None
        return min(LOOKED_S, max(0.0, self._lease_ms / 1000 - time.clock_gettime(BOOT_CLOCK)))

    def _obey(self) -> None:
        chunk = os.read(self._control, 4096)
        *orders, self._unfinished = (self._unfinished + chunk).split(b"\n")
        for order in orders:
            if order.startswith(b"L "):
                self._lease_ms = int(order[2:])
        if not chunk or b"K" in orders:
            self._must_end = True
        elif b"T" in orders and self._agent_is_alive:
            self._kill_group(signal.SIGTERM)


def become_agent(parent: int, cwd: str, command: list[str], failure: int, group: str) -> None:
    """Replace the forked child by the agent, or report why that failed."""
    at = b"cwd"
    try:
        os.setsid()
        if group:
            # Without permission to move a process the group stays empty, and only the search finds the tree.
            with suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:
                file.write("0")
        set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # Python ignores these two signals; a program expects their default actions.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        at = b"exec"
        os.execvp(command[0], command)
    except OSError as error:
        os.write(failure, b"%b %d" % (at, error.errno or 0))
    finally:
        os._exit(127)


def let_go_of_streams() -> None:
    """Close our copies of the agent's streams, so that their other ends notice when the agent closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def descendants(ancestor: int, spared: Container[int] = ()) -> set[int]:
    """Return all descendants of a process according to the process table, except spared ones and their descendants.

    The result is empty if there is no readable table.
    """
    children: dict[int, list[int]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (parent := parent_of(name)):
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    unseen = [ancestor]
    while unseen:
        below = [each for each in children.get(unseen.pop(), []) if each not in spared]
        found.update(below)
        unseen += below
    return found


def parent_of(pid: str) -> int:
    """Return the parent of a process, or 0 if it is gone. Its name, the second field, may contain anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def own(fd: int) -> int:
    """Return an inherited descriptor under a small number, which `select` needs; no child inherits it."""
    ours = os.dup(fd)
    os.close(fd)
    return ours


def main(arguments: list[str]) -> None:
    control, status, cwd = own(int(arguments[0])), own(int(arguments[1])), arguments[2]
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    # The end of the control pipe has the same effect; this also works if another process holds that pipe open.
    set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)
    Guard(control, status).run(cwd, arguments[4:])
    # There is nothing to clean up, and the daemon waits for this end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
