"""One terminal: a command that runs without an input, its output, and its end.

Takes a command as a list; gives what it printed, both streams in the order they were written, and one exit
status. Never outlives its owner: the command runs under the guard (`turnwire.link.guard`), so its whole tree goes
when it exits, when it is killed, and when this process dies. There is no pseudo terminal.

The exit is told once the guard has buried the tree and everything that was printed has been read; so whoever
knows the exit can read all of the output.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio

from turnwire.errors import RequestRefused
from turnwire.link.process_guard import Ends, GuardEnd, Report, start_guard
from turnwire.runtime.last_words import signal_name
from turnwire.runtime.services import refusals
from turnwire.runtime.services.output import Output
from turnwire.wire.schema.common import TerminalExit

READ_BYTES = 64 * 1024
"""Taken in one turn of the loop; the size of a pipe."""

DRAIN_READS = 32
"""Reads after the end. A pipe holds sixteen at most; a foreign holder of its other end cannot keep us here."""


class Terminal:
    """A command and what it printed. `start_terminal` makes one."""

    def __init__(self, guard: subprocess.Popen[bytes], ends: Ends, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = ends.stdout
        self._is_reading = True
        self._pid = 0
        self._failure: Report | None = None
        self._ending: Report | None = None
        self._launched = anyio.Event()
        self._gone = anyio.Event()
        self.output = Output(max_bytes)
        self.exit: TerminalExit | None = None
        """How it ended, once it has."""
        self._guard = GuardEnd(guard, ends, self._heard, self._guard_ended)
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._read)

    async def launched(self, within_s: float) -> None:
        """Return once the command runs. Raises `RequestRefused`; then, or when cancelled, the owner kills it."""
        with anyio.move_on_after(within_s):
            await self._launched.wait()
        if not self._pid:
            raise _launch_refusal(self._failure)

    async def exited(self) -> TerminalExit:
        """Wait for the end. Any number of tasks may wait. Cancel-safe."""
        await self._gone.wait()
        assert self.exit is not None, "the exit is known before anybody is woken"
        return self.exit

    def kill(self) -> None:
        """SIGKILL to the whole tree, now. Nothing happens if it is gone."""
        if self.exit is None and not self._guard.order(b"K"):
            self._kill_group()

    async def stop(self, within_s: float) -> None:
        """Kill, and wait for the end for a while, also when cancelled. The guard goes on after that by itself."""
        self.kill()
        with anyio.move_on_after(within_s, shield=True):
            await self._gone.wait()
        if self.exit is None:
            # A guard that was stopped obeys nobody; the command itself can still be reached.
            self._kill_group()

    # -- what the guard and the pipe tell ------------------------------------------------------------------

    def _heard(self, report: Report) -> None:
        if "pid" in report:
            self._pid = int(report["pid"])
            self._launched.set()
        elif "launch_error" in report:
            self._failure = report
        elif "exit_code" in report:
            self._ending = report

    def _guard_ended(self) -> None:
        if self._ending is None:
            # Somebody killed the guard. The kernel kills the command where it can; the rest of its group is ours.
            self._kill_group()
        for _ in range(DRAIN_READS):
            if self._read() == 0:
                break
        self._close_output()
        self.output.end()
        self.exit = _exit_status(self._ending)
        self._launched.set()
        self._gone.set()

    def _read(self) -> int:
        """Take what has arrived; how much that was."""
        if not self._is_reading:
            return 0
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if chunk:
            self.output.feed(chunk)
        else:
            self._close_output()
        return len(chunk)

    def _close_output(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _kill_group(self) -> None:
        if self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def start_terminal(command: Sequence[str], cwd: str, env: Mapping[str, str], max_bytes: int) -> Terminal:
    """Start a command under a guard. Both its output streams are one pipe, so they keep their order.

    Call it in the thread that runs the event loop: the kernel signals a guard when the thread that started it ends.

    Raises:
        RequestRefused: Not even the guard could be started.
    """
    try:
        guard, ends = start_guard(command, cwd, env, output_only=True)
    except OSError as error:
        raise _guard_refusal(error) from None
    return Terminal(guard, ends, max_bytes)


def _exit_status(ending: Report | None) -> TerminalExit:
    """In ACP's words: a code or the name of a signal; neither if nobody saw it end."""
    if ending is None:
        return TerminalExit()
    number = int(ending["signal"])
    return TerminalExit(signal=signal_name(number)) if number else TerminalExit(exit_code=int(ending["exit_code"]))


_LAUNCH = {
    errno.ENOENT: ("command_not_found", "the command was not found; check its name, or give its full path"),
    errno.ENOTDIR: ("command_not_found", "the command was not found; check its name, or give its full path"),
    errno.EACCES: ("not_executable", "the command may not be run; check its permissions"),
    errno.ENOEXEC: ("not_executable", "the command is no program; run it with its interpreter"),
    errno.E2BIG: ("too_large", "the command has too many or too long arguments; pass them in a file"),
}


def _launch_refusal(failure: Report | None) -> RequestRefused:
    if failure is None:
        return refusals.failed("cannot_start", "the command did not start in time; try again")
    if failure["at"] == "cwd":
        return refusals.invalid("the terminal's directory cannot be entered; check that it exists", "bad_cwd")
    found = _LAUNCH.get(int(failure["launch_error"]))
    if found is None:
        return refusals.failed("cannot_start", "the system refused to start the command; try again")
    reason, message = found
    return refusals.invalid(message, reason)


def _guard_refusal(error: OSError) -> RequestRefused:
    if error.errno == errno.E2BIG:
        reason, message = _LAUNCH[errno.E2BIG]
        return refusals.invalid(message, reason)
    return refusals.failed("cannot_start", "no further process can be started now; release terminals and try again")
