"""An agent as a process: started, watched, stopped, and with a process tree that never outlives it.

A command is a list and never passes through a shell. The result is a link to the process, and one `Exit` when it is
gone. The process never outlives its owner: the tree is killed when the agent exits, when it is stopped, and when
this process dies.

The difficulty is that a process can end in many ways at once, and that its children need not end with it. The
solution is the guard (`turnwire.hosting.guard`), a small process between us and the agent: it alone is the agent's
parent, so it alone knows how the agent ended and which descendants remain; and it survives when we are killed. The
guard also serves the terminals of `turnwire.hosting.services`, so our side of it knows nothing of agents.

I1  Nothing of the tree outlives the agent, nor us. The guard kills it. If the guard is killed or stopped, we
    kill the agent's group, on Linux the kernel kills the agent, and in a process that adopts orphans the remaining
    processes become our children and are killed as well.
I2  There is one `Exit`. It is reported once the tree is gone and stderr has ended, and at the latest
    `EXIT_DRAIN_S` after the agent itself is gone.
I3  The streams connect directly to the agent. Nothing passes through the guard, and it holds no end open, so the
    link breaks when the agent's side is closed, after everything that was written before. It breaks at the
    latest with the `Exit`, even if another process still holds the pipe.
I4  Stopping is bounded. Each step (end of input, SIGTERM, SIGKILL) has a separate limit, and after
    the last one `stop` returns in any case.
I5  A launch either returns a process or raises, and no process remains when it raises.
I6  A lease that is not renewed ends the tree, even while this process is stopped (`renew_lease`). For a node that
    is one of several: its agents are gone before another node may act for their sessions.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec

from turnwire.errors import AgentLaunchFailed
from turnwire.hosting.backoff import Sleep
from turnwire.hosting.base import FrameLink, Journal
from turnwire.hosting.environment import redacted, secrets
from turnwire.hosting.guard import (
    GIVE_UP_S,
    PR_SET_CHILD_SUBREAPER,
    control_group,
    descendants,
    kill_control_group,
    remove_control_group,
    set_process_option,
)
from turnwire.hosting.peer import Breach
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import Limits
from turnwire.wire.ndjson import LineReader, Oversized

log = logging.getLogger("turnwire.agent")


# -- our side of the guard. Nothing here waits: results arrive in callbacks -----------------------------------

EXIT_DRAIN_S = 0.5
"""Time for the last lines of stderr and the rest of the process tree before an exit is reported anyway."""
STDERR_TAIL_BYTES = 16 * 1024
"""Size of the stored tail of stderr. A dead agent's last stack trace fits; it is stored with the turn it ended."""
GUARD = Path(__file__).with_name("guard.py")

REPORT_BYTES = 4096
"""Upper bound on the size of a report, which is some forty bytes."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.05
"""First and longest interval of checks for the death of a guard that has closed its pipe."""

TERMINATE, KILL, LEASE = b"T\n", b"K\n", b"L %d\n"
"""Orders to a guard; a lease is followed by its end."""

NO_END = -1
"""Placeholder for the end of a pipe that was not created."""

OBEYED_S = GIVE_UP_S + 1.0
"""Time for a guard to obey a kill order. A guard that still lives after that was stopped."""

ORPHANS_S = 3.0
"""Time after which a process that survives SIGKILL is given up: it hangs in the kernel."""

Report: TypeAlias = dict[str, int | str]

_reports = msgspec.json.Decoder(Report)


class Ends(NamedTuple):
    """Our ends of the pipes."""

    stdin: int
    stdout: int
    stderr: int
    control: int
    status: int


def start_guard(
    command: Sequence[str], cwd: str | os.PathLike[str], env: Mapping[str, str], *, output_only: bool = False
) -> tuple[subprocess.Popen[bytes], Ends]:
    """Start a guard that starts the command. Raises `OSError`, `ValueError` if the guard cannot be started.

    With `output_only` the command gets no input, and its two output streams are one pipe, which preserves their
    order.

    Call it in the thread that runs the event loop: the kernel signals a guard when the thread that started it ends.
    """
    ours: list[int] = []
    theirs: list[int] = []

    def pipe(*, we_read: bool) -> tuple[int, int]:
        reading, writing = os.pipe()
        our_end, their_end = (reading, writing) if we_read else (writing, reading)
        ours.append(our_end)
        theirs.append(their_end)
        return our_end, their_end

    try:
        from_stdout, stdout = pipe(we_read=True)
        to_control, control = pipe(we_read=False)
        # The lease is written before the agent starts, in case this process ends.
        os.write(to_control, _lease.order())
        from_status, status = pipe(we_read=True)
        to_stdin, stdin = (NO_END, subprocess.DEVNULL) if output_only else pipe(we_read=False)
        from_stderr, stderr = (NO_END, stdout) if output_only else pipe(we_read=True)
        guard = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(GUARD), str(control), str(status), os.path.abspath(cwd), "--"),
                *command,
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(control, status),
            env=env,
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        _close_all(ours)
        raise
    finally:
        _close_all(theirs)
    return guard, Ends(to_stdin, from_stdout, from_stderr, to_control, from_status)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class _Orphans:
    """Processes that lost their guard and were adopted by this process: children that no code here has started."""

    def __init__(self) -> None:
        self.are_adopted = False
        self.guards: set[int] = set()
        """Guards that are not reaped yet. Their descendants belong to them."""

    def kill(self) -> bool:
        """Kill all current orphans and reap the dead ones. Return true if there was one."""
        ours, own_session = os.getpid(), os.getsid(0)
        # A guard and its agent each run in a new process session, so none of their processes is in ours. A process
        # in ours was started by other code in this process, and is spared.
        spared = self.guards | {each for each in descendants(ours) if _session_of(each) == own_session}
        found = descendants(ours, spared)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(found)


_orphans = _Orphans()


def adopt_orphans() -> None:
    """From now on adopt processes that lose their guard as children of this process, and end them. Linux only.

    For a program that is only a daemon: processes that other code starts in new sessions and abandons are killed as
    well when a guard is killed.
    """
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    _orphans.are_adopted = True


def spare_guard(pid: int, *, is_spared: bool) -> None:
    """Say that a process is a guard or a holder: what is below it belongs to it, and is no orphan."""
    (_orphans.guards.add if is_spared else _orphans.guards.discard)(pid)


def kill_orphans(until: float | None = None) -> None:
    """Kill the adopted tree of a killed holder, repeatedly: a process may be forked while its parent is killed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ORPHANS_S if until is None else until
    if _orphans.are_adopted and loop.time() < until and _orphans.kill():
        loop.call_later(FIRST_LOOK_S * 10, kill_orphans, until)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class _Lease:
    """The time until which trees may live, if that is bounded."""

    def __init__(self) -> None:
        self.until: float | None = None
        self.guards: set[GuardEnd] = set()

    def order(self) -> bytes:
        return b"" if self.until is None else LEASE % int(self.until * 1000)


_lease = _Lease()


def renew_lease(until: float | None) -> None:
    """Let all trees end at that time, in seconds since the machine was booted, unless this is called again by then.

    The lease applies to trees that are started later as well, and also while this process is stopped or frozen.
    With `None`, trees started from now on have no lease.
    """
    _lease.until = until
    if until is not None:
        for each in list(_lease.guards):
            each.order(_lease.order())


class GuardEnd:
    """Orders to one guard, and its reports. `ended` is called once, when the guard and its remaining processes are
    dead and reaped.
    """

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        ends: Ends,
        heard: Callable[[Report], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._control = ends.control
        self._status = ends.status
        self._heard = heard
        self._ended = ended
        self._lines = LineReader(REPORT_BYTES)
        self._is_open = True
        self._has_reported_end = False
        self._insisting: asyncio.TimerHandle | None = None
        _orphans.guards.add(guard.pid)
        _lease.guards.add(self)
        os.set_blocking(self._control, False)
        os.set_blocking(self._status, False)
        self._loop.add_reader(self._status, self._read)

    def order(self, what: bytes) -> bool:
        """Send an order. Return false if the guard is gone."""
        if not self._is_open:
            return False
        try:
            os.write(self._control, what)
        except OSError:
            return False
        if what == KILL and self._insisting is None:
            self._insisting = self._loop.call_later(OBEYED_S, self.kill)
        return True

    @property
    def has_cleaned_up(self) -> bool:
        """True if the guard has ended by itself after it reported that no process remains.

        The report alone proves nothing: an agent can forge it, and then kill the guard.
        """
        return self._has_reported_end and self._guard.returncode == 0

    def kill(self) -> None:
        """Kill a guard that does not answer. The kernel then kills its agent, on Linux."""
        self._guard.kill()

    def _read(self) -> None:
        try:
            chunk = os.read(self._status, REPORT_BYTES)
        except BlockingIOError:
            return
        for line in self._lines.feed(chunk):
            # The agent runs as the same user and can write here as well, so any input is possible.
            if isinstance(line, Oversized):
                continue
            try:
                report = _reports.decode(line)
            except msgspec.DecodeError:
                log.warning("an agent's guard reported nonsense", extra={"event": "guard_report_unreadable"})
                continue
            self._has_reported_end = "launch_error" in report or report.get("left") == 0
            self._heard(report)
        if not chunk:
            self._is_open = False
            _lease.guards.discard(self)
            self._loop.remove_reader(self._status)
            os.close(self._status)
            os.close(self._control)
            self._bury(FIRST_LOOK_S)

    def _bury(self, again_s: float) -> None:
        # A pipe ends a moment before its process can be reaped.
        if self._guard.poll() is None:
            self._loop.call_later(again_s, self._bury, min(2 * again_s, LONGEST_LOOK_S))
            return
        if self._insisting is not None:
            self._insisting.cancel()
        _orphans.guards.discard(self._guard.pid)
        if not self.has_cleaned_up:
            kill_control_group(control_group(self._guard.pid))
        self._bury_orphans(self._loop.time() + ORPHANS_S)

    def _bury_orphans(self, until: float) -> None:
        """Kill the adopted tree of a killed guard. Without adoption the kernel and the agent's group cover it."""
        if self.has_cleaned_up or not _orphans.are_adopted or self._loop.time() > until or not _orphans.kill():
            remove_control_group(control_group(self._guard.pid))
            self._ended()
        else:
            # A new process may have been forked while its parent was killed.
            self._loop.call_later(FIRST_LOOK_S * 10, self._bury_orphans, until)


# -- standard error: its tail is stored, its lines are logged -------------------------------------------------

STDERR_READ_BYTES = 16 * 1024
"""Maximum size of one read."""

STDERR_LAST_READS = 8
"""Maximum number of reads before closing while a process may still write: twice a pipe's usual buffer."""

STDERR_LINE_BYTES = 8 * 1024
"""Maximum length of a logged line; of a longer one only the size is logged."""

STDERR_LOGGED = 20
"""Lines of one agent in each `STDERR_WINDOW_S` that are logged as warnings. Some agents write all the time."""

STDERR_WINDOW_S = 60.0

BLOT = b"[redacted]"

stderr_log = logging.getLogger("turnwire.agent.stderr")
# An agent's output goes to a log only if a handler is configured, not to the terminal of every program that hosts
# one.
stderr_log.addHandler(logging.NullHandler())


class StderrTail:
    """The end of an agent's standard error. It owns the descriptor and stores only the tail.

    Values of secret variables are redacted in the tail and in the log. It reads a little per event loop round, so
    that a flood of text delays no frame. Without a descriptor (`NO_END`) the caller feeds it.
    """

    def __init__(self, fd: int, max_bytes: int, secrets: Sequence[bytes], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._max_bytes = max_bytes
        self._secrets = secrets
        self._longest = max(map(len, secrets), default=0)
        self._ended = ended
        self._lines = LineReader(STDERR_LINE_BYTES)
        self._tail = bytearray()
        self._is_cut = False
        self._window_ends = 0.0
        self._logged = 0
        """Lines in this window, including those that were not logged."""
        self.is_ended = False
        if fd != NO_END:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read)

    def text(self) -> str:
        """Return the tail, redacted."""
        seen = self.blotted(bytes(self._tail))
        if self._is_cut:
            # The cut may have split a secret, and half of one is not found.
            seen = seen[self._longest :]
        return seen[-self._max_bytes :].decode(errors="replace")

    def close(self) -> None:
        """Read the available data and close, even if another process holds the other end."""
        reads = 0
        while self._fd != NO_END and reads < STDERR_LAST_READS and not self.is_ended and self._take():
            reads += 1
        self.end()

    def _read(self) -> None:
        self._take()
        if self.is_ended:
            self._ended()

    def end(self) -> None:
        """Accept no more text. Idempotent."""
        if not self.is_ended:
            self.is_ended = True
            if self._fd != NO_END:
                self._loop.remove_reader(self._fd)
                os.close(self._fd)
            self._log(self._lines.end())

    def _take(self) -> bool:
        """Read one chunk. Return true if there was one."""
        try:
            chunk = os.read(self._fd, STDERR_READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.end()
            return False
        self.feed(chunk)
        return True

    def feed(self, chunk: bytes) -> None:
        """Add text."""
        self._tail += chunk
        excess = len(self._tail) - self._max_bytes - self._longest
        if excess > 0:
            self._is_cut = True
            del self._tail[:excess]
        self._log(self._lines.feed(chunk))

    def _log(self, lines: list[bytes | Oversized]) -> None:
        for line in lines:
            level = self._level()
            if not stderr_log.isEnabledFor(level):
                continue
            if isinstance(line, Oversized):
                stderr_log.log(level, "stderr: a line of %d bytes", line.size)
            else:
                stderr_log.log(level, "stderr: %s", self.blotted(line).decode(errors="replace"))

    def _level(self) -> int:
        """Return the log level of the next line: a limited number per minute are warnings, all others debug
        messages.
        """
        now = self._loop.time()
        if now >= self._window_ends:
            self._window_ends, self._logged = now + STDERR_WINDOW_S, 0
        self._logged += 1
        if self._logged == STDERR_LOGGED + 1:
            words = "stderr: the agent writes more than %d lines a minute; the rest is at debug"
            stderr_log.warning(words, STDERR_LOGGED, extra={"event": "stderr_limited"})
        return logging.WARNING if self._logged <= STDERR_LOGGED else logging.DEBUG

    def blotted(self, text: bytes, *, is_cut: bool = False) -> bytes:
        """Return text of the agent, redacted. `is_cut`: its end may be half of a secret."""
        for secret in self._secrets:
            text = text.replace(secret, BLOT)
        return text[: -self._longest] if is_cut and self._longest else text


# -- the agent ------------------------------------------------------------------------------------------------

Rung: TypeAlias = Literal["eof", "term", "kill"]


def signal_name(number: int) -> str:
    """Return `SIGKILL` or the like; `SIG35` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


@dataclass(frozen=True, slots=True)
class Exit:
    """How an agent ended. With neither a code nor a signal its end was not observed: its guard was killed."""

    exit_code: int | None
    signal: int | None
    stderr_tail: str
    """The last output to standard error, without the values of secret variables. If it is empty, the reader of
    standard output may store the last lines of that here instead.
    """
    stopped_by: Rung | None
    """Our last action to end it; `None` if it ended by itself."""


class ProcessLink(FrameLink, Protocol):
    """The link to a process."""

    @property
    def breaches(self) -> Counter[str]:
        """Number of dropped lines, by reason."""
        ...

    @property
    def last_breaches(self) -> deque[Breach]:
        """The newest dropped lines, each with its first bytes."""
        ...

    def end_output(self) -> None: ...

    def end_input(self) -> None: ...


class TreeKeeper(Protocol):
    """The small process that ends the agent's tree: a guard, or a holder."""

    @property
    def has_cleaned_up(self) -> bool: ...

    def order(self, what: bytes) -> bool: ...

    def kill(self) -> None: ...


class AgentProcess:
    """A running agent. The owner of the link closes it; `aclose` does both."""

    link: ProcessLink
    journal: Journal | None = None
    """The notes that outlive this process, if the agent does."""
    _guard: TreeKeeper
    _stderr: StderrTail

    def __init__(self, program: str, limits: Limits, sleep: Sleep) -> None:
        self._limits = limits
        self._sleep = sleep
        self.program = program
        """Name of its program, from the command."""
        self.pid = 0
        self.exit: Exit | None = None
        """How it ended; `None` before."""
        self._launch_failure: Report | None = None
        self._launched = anyio.Event()
        self._ending: Report | None = None
        self._guard_is_gone = False
        self._gone = anyio.Event()
        self._rung: Rung | None = None
        self._stop_lock = anyio.Lock()
        self._drain_timer: asyncio.TimerHandle | None = None

    async def exited(self) -> Exit:
        """Wait for its end. Several tasks may wait. Cancel-safe."""
        await self._gone.wait()
        assert self.exit is not None  # I2: set before `_gone`
        return self.exit

    @property
    def printed(self) -> str:
        """The end of its standard error, without the values of its secret variables."""
        return self._stderr.text()

    def blotted(self, words: bytes, *, is_cut: bool) -> bytes:
        """Return output without the values of its secret variables. `is_cut`: the output continues after
        this part.
        """
        return self._stderr.blotted(words, is_cut=is_cut)

    def terminate(self) -> None:
        """Send SIGTERM to the agent's process group, now. Does nothing if it is gone."""
        self._mark("term")
        if self.exit is None and not self._guard.order(TERMINATE):
            self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole tree, now. Does nothing if it is gone."""
        self._mark("kill")
        if self.exit is None and not self._guard.order(KILL):
            self._signal_group(signal.SIGKILL)

    async def stop(self) -> Exit:
        """End it: end of input, then SIGTERM, then SIGKILL, each with a deadline. Bounded, idempotent.

        Output that the agent still writes can be received meanwhile and afterwards. A cancelled call kills at once.
        """
        try:
            async with self._stop_lock:
                await self._run_ladder()
        except BaseException:
            self.kill()
            raise
        return await self.exited()

    async def aclose(self) -> None:
        """Stop it and close the link. Idempotent."""
        try:
            await self.stop()
        finally:
            await self.link.aclose()

    async def _run_ladder(self) -> None:
        self._mark("eof")
        self.link.end_output()
        if await self._is_gone_within(self._limits.stop_eof_s):
            return
        self.terminate()
        if await self._is_gone_within(self._limits.stop_term_s):
            return
        self.kill()
        if await self._is_gone_within(self._limits.stop_kill_s):
            return
        log.error("agent %d was not gone %g s after it was killed", self.pid, self._limits.stop_kill_s)
        await self._give_up()

    async def _give_up(self) -> None:
        """Kill the guard, which does not answer, and the agent's group."""
        self._guard.kill()
        self._signal_group(signal.SIGKILL)
        if not await self._is_gone_within(self._limits.stop_kill_s):
            self._finish()

    def _mark(self, rung: Rung) -> None:
        if self._ending is None and self.exit is None:
            self._rung = rung

    async def _is_gone_within(self, seconds: float) -> bool:
        async def give_up(scope: anyio.CancelScope) -> None:
            await self._sleep(seconds)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up, tasks.cancel_scope)
            await self._gone.wait()
            tasks.cancel_scope.cancel()
        return self._gone.is_set()

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal the process group: the only means without a guard."""
        if self.pid:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                log.debug("agent %d has no process group left", self.pid)

    # -- events from the guard and the pipes ---------------------------------------------------------------

    def _heard(self, report: Report) -> None:
        if "pid" in report:
            self.pid = int(report["pid"])
            self._launched.set()
        elif "launch_error" in report:
            self._launch_failure = report
        elif "exit_code" in report:
            self._ending = report
            self._start_draining()
        elif report.get("left"):
            log.error("%s processes of agent %d could not be killed", report["left"], self.pid)

    def _guard_ended(self) -> None:
        self._guard_is_gone = True
        if self._ending is None:
            self._signal_group(signal.SIGKILL)
            self._start_draining()
        self._launched.set()
        self._finish_if_drained()

    def _start_draining(self) -> None:
        if self._drain_timer is None:
            self._drain_timer = asyncio.get_running_loop().call_later(EXIT_DRAIN_S, self._finish)

    def _finish_if_drained(self) -> None:
        if self._guard_is_gone and self._stderr.is_ended:
            self._finish()

    def _finish(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        if self.exit is not None:
            return
        self._stderr.close()
        if not self._guard.has_cleaned_up:
            # A process of the tree may hold the pipe, and with it block readers that wait for the link to break.
            self.link.end_input()
        if not self._guard_is_gone:
            # The report of the agent's end may be forged, and an agent that has ended is not killed otherwise.
            self._guard.order(KILL)
        ending = self._ending or {}
        number = int(ending.get("signal", 0)) or None
        code = int(ending["exit_code"]) if ending and not number else None
        self.exit = Exit(code, number, self._stderr.text(), self._rung)
        self._gone.set()
        if self.pid:
            log.info("agent %d ended: exit code %s, signal %s", self.pid, self.exit.exit_code, self.exit.signal)

    # -- launching -----------------------------------------------------------------------------------------

    async def launched(self) -> None:
        """Return once the program runs. Raises `AgentLaunchFailed`; then, or when cancelled, no process remains."""
        try:
            with anyio.move_on_after(self._limits.launch_s):
                await self._launched.wait()
            if not self.pid:
                raise _launch_error(self._launch_failure, self._launched.is_set())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._discard()
            raise

    async def _discard(self) -> None:
        self.kill()
        if not await self._is_gone_within(self._limits.stop_kill_s):
            await self._give_up()
        await self.link.aclose()


class GuardedProcess(AgentProcess):
    """An agent below a guard, made by `spawn`."""

    def __init__(
        self,
        program: str,
        guard: subprocess.Popen[bytes],
        ends: Ends,
        hidden: Sequence[bytes],
        limits: Limits,
        sleep: Sleep,
    ) -> None:
        super().__init__(program, limits, sleep)
        self._guard = GuardEnd(guard, ends, self._heard, self._guard_ended)
        self._stderr = StderrTail(ends.stderr, STDERR_TAIL_BYTES, hidden, self._finish_if_drained)
        self.link = StdioLink(ends.stdout, ends.stdin, limits)


async def spawn(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    limits: Limits | None = None,
    sleep: Sleep = anyio.sleep,
) -> AgentProcess:
    """Start an agent. Cancel-safe: a cancelled call leaves no process.

    Args:
        command: The program, searched on the `PATH` of `env`, and its arguments.
        cwd: The directory it starts in.
        env: Its complete environment; see `turnwire.hosting.environment.agent_environment`.
        limits: Deadlines and sizes.
        sleep: Sleeps between the steps of `stop`.

    Raises:
        AgentLaunchFailed: The program is missing or cannot be run, or the directory is missing.
    """
    limits = limits or Limits()
    check_command(command)
    try:
        guard, ends = start_guard(command, cwd, env)
    except (OSError, ValueError) as error:
        raise not_started(error) from error
    return await launch(GuardedProcess(command[0], guard, ends, secrets(env), limits, sleep), env)


def check_command(command: Sequence[str]) -> None:
    """Raise `AgentLaunchFailed` for an empty command."""
    if not command:
        raise AgentLaunchFailed(
            "the agent's command is empty; name a program", definite=True, reason="empty_command"
        )


async def launch(agent: AgentProcess, env: Mapping[str, str]) -> AgentProcess:
    """Wait until an agent runs. Raises `AgentLaunchFailed`; then, or when cancelled, no process remains."""
    try:
        await agent.launched()
    except AgentLaunchFailed as error:
        log.warning("%r did not start: %s", agent.program, error.context.get("reason"))
        raise
    log.info("agent %d started: %s with %s", agent.pid, agent.program, " ".join(redacted(env)))
    return agent


def not_started(error: OSError | ValueError) -> AgentLaunchFailed:
    """Return the error for a guard or a holder that could not be started."""
    number = error.errno if isinstance(error, OSError) else errno.EINVAL
    return _launch_error({"launch_error": number or 0, "at": "guard"}, True)


_AT_EXEC = {
    errno.ENOENT: ("not_found", "the agent's program was not found; check the command and PATH"),
    errno.ENOTDIR: ("not_found", "the agent's program was not found; check the command and PATH"),
    errno.EACCES: ("not_executable", "the agent's program may not be run; check its permissions"),
    errno.ENOEXEC: (
        "not_executable",
        "the agent's program is no program; does its first line name an interpreter?",
    ),
}


def _launch_error(failure: Report | None, is_answered: bool) -> AgentLaunchFailed:
    if failure is None:
        reason, message = (
            ("guard_lost", "the agent's guard died before the agent ran; try again")
            if is_answered
            else ("too_slow", "the agent's program did not start in time; try again, or raise the limit `launch_s`")
        )
        return AgentLaunchFailed(message, definite=False, reason=reason)
    number = int(failure["launch_error"])
    name = errno.errorcode.get(number, str(number))
    if failure["at"] == "cwd":
        reason, message = "bad_cwd", "the agent's working directory cannot be entered; check that it exists"
    else:
        reason, message = _AT_EXEC.get(number, ("refused", f"the system refused to start the agent ({name})"))
    return AgentLaunchFailed(message, definite=True, reason=reason, errno=name)
