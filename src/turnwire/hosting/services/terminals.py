"""The terminals of one session: created, read, waited for, killed and released by its agent.

A terminal is a command that runs without input, its output (both streams in the order they were written) and its
exit. There is no pseudo terminal. It never outlives its owner: the command runs under the guard
(`turnwire.hosting.guard`), so its whole tree ends when it exits, when it is killed, and when this process dies. The
exit is reported once the guard has ended the tree and everything that was printed has been read; so a caller that
has the exit can read all of the output.

An id is valid from creation to release; a terminal that was never released is killed when the session is detached.
Terminals are bounded in number and in the output that each one stores, and no command gets more of the daemon's
environment than an agent does.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
from anyio import CapacityLimiter, create_task_group, to_thread

from turnwire.errors import ConfigError, RequestRefused
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.process import KILL, Ends, GuardEnd, Report, signal_name, start_guard
from turnwire.hosting.services import refusals
from turnwire.hosting.services.roots import Roots
from turnwire.limits import Limits
from turnwire.wire.schema.common import TerminalExit

TERMINAL_OUTPUT_BYTES = 1024 * 1024
"""Output stored per terminal: more than an agent reads back. The beginning is dropped first."""
READ_BYTES = 64 * 1024
"""Maximum size of one read; the size of a pipe."""

DRAIN_READS = 32
"""Reads after the end. A pipe holds sixteen at most; a foreign holder of its other end cannot make us wait."""

SHELL = "/bin/sh"
"""A shell that every system has."""


class Output:
    """The output of a command, or its end, within a number of bytes. It begins and ends at a character.

    Invalid UTF-8 is shown as replacement characters. The memory is bounded by the limit plus one read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        """The stored output; always whole characters of UTF-8."""
        self.is_truncated = False

    def feed(self, chunk: bytes) -> None:
        self._keep(self._decoder.decode(chunk))

    def end(self) -> None:
        """End the output: an incomplete last character stays incomplete."""
        self._keep(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        return self._kept.decode()

    def _keep(self, text: str) -> None:
        self._kept += text.encode()
        excess = len(self._kept) - self._max_bytes
        if excess <= 0:
            return
        # The continuation bytes of a character are 10xxxxxx; a character that lost its first byte is dropped as a
        # whole.
        while excess < len(self._kept) and self._kept[excess] & 0xC0 == 0x80:
            excess += 1
        del self._kept[:excess]
        self.is_truncated = True


class Terminal:
    """A command and its output. `start_terminal` makes one."""

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
        """How it ended; `None` before."""
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
        """Wait for the end. Several tasks may wait. Cancel-safe."""
        await self._gone.wait()
        assert self.exit is not None, "the exit is known before anybody is woken"
        return self.exit

    def kill(self) -> None:
        """Send SIGKILL to the whole tree, now. Does nothing if it is gone."""
        if self.exit is None and not self._guard.order(KILL):
            self._kill_group()

    async def stop(self, within_s: float) -> None:
        """Kill, and wait for the end for a while, even when cancelled. The guard continues after that by itself."""
        self.kill()
        with anyio.move_on_after(within_s, shield=True):
            await self._gone.wait()
        if self.exit is None:
            # A stopped guard obeys no order, but can be killed; then the processes it watched can still be reached.
            self._kill_group()
            self._guard.kill()
            with anyio.move_on_after(within_s, shield=True):
                await self._gone.wait()

    # -- events from the guard and the pipe ----------------------------------------------------------------

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
            # The guard was killed. The kernel kills the command where it can; the rest of its group is killed here.
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
        """Read the available output and return its size."""
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
    """Start a command under a guard. Both its output streams are one pipe, which preserves their order.

    Call it in the thread that runs the event loop: the kernel signals a guard when the thread that started it ends.

    Raises:
        RequestRefused: The guard could not be started.
    """
    try:
        guard, ends = start_guard(command, cwd, env, output_only=True)
    except OSError as error:
        raise _guard_refusal(error) from None
    return Terminal(guard, ends, max_bytes)


def _exit_status(ending: Report | None) -> TerminalExit:
    """Return the exit in ACP's form: a code or the name of a signal; neither if its end was not observed."""
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


class Terminals:
    """The terminals of an agent in a session."""

    def __init__(
        self, roots: Roots, limits: Limits, threads: CapacityLimiter, environment: Mapping[str, str] | None
    ) -> None:
        self._roots = roots
        self._limits = limits
        self._threads = threads
        self._environment = agent_environment(os.environ) if environment is None else environment
        self._terminals: dict[str, Terminal] = {}
        self._starting = 0
        self._is_closed = False

    async def create(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
    ) -> str:
        """Start a command and return the terminal's id once it runs. A cancelled call leaves no process.

        `env` is added to the environment of every command; `cwd` defaults to the session's.

        Raises:
            RequestRefused: The command cannot be started, its directory is outside, or there are too many.
        """
        self._check_room()
        max_bytes = self._output_bound(output_byte_limit)
        environment = {**self._environment, **_checked_environment(env or {})}
        if any("\0" in each for each in (command, *args)) or not command:
            raise refusals.invalid("the command is empty or holds a zero byte; name a program", "malformed")
        self._starting += 1
        try:
            words, directory = await to_thread.run_sync(
                prepare, self._roots, command, args, environment, cwd, limiter=self._threads
            )
            if self._is_closed:
                raise refusals.closed()
            terminal = start_terminal(words, directory, environment, max_bytes)
        finally:
            self._starting -= 1
        terminal_id = new_terminal_id()
        self._terminals[terminal_id] = terminal
        try:
            await terminal.launched(self._limits.launch_s)
            if self._is_closed:
                raise refusals.closed()
        except BaseException:
            self._terminals.pop(terminal_id, None)
            await terminal.stop(self._limits.stop_kill_s)
            raise
        return terminal_id

    def find(self, terminal_id: str) -> Terminal:
        """Return a terminal with its output and exit. Callers that wait for its exit get it even if it is
        released.
        """
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            raise refusals.closed() if self._is_closed else refusals.unknown_terminal()
        return terminal

    async def kill(self, terminal_id: str) -> None:
        """Kill the command and everything it started. The id stays valid."""
        await self.find(terminal_id).stop(self._limits.stop_kill_s)

    async def release(self, terminal_id: str) -> None:
        """Kill it and forget it: the id is unknown from now on."""
        terminal = self.find(terminal_id)
        del self._terminals[terminal_id]
        await terminal.stop(self._limits.stop_kill_s)

    async def aclose(self) -> None:
        """End and forget all of them. No terminal can be created any more. Idempotent."""
        self._is_closed = True
        terminals, self._terminals = list(self._terminals.values()), {}
        async with create_task_group() as tasks:
            for terminal in terminals:
                terminal.kill()
                tasks.start_soon(terminal.stop, self._limits.stop_kill_s)

    def _check_room(self) -> None:
        if self._is_closed:
            raise refusals.closed()
        if len(self._terminals) + self._starting >= self._limits.terminals:
            raise refusals.invalid(
                f"the session has {self._limits.terminals} terminals; release one that is no longer needed",
                "too_many_terminals",
            )

    def _output_bound(self, asked: int | None) -> int:
        if asked is None:
            return TERMINAL_OUTPUT_BYTES
        if asked < 0:
            raise refusals.invalid("`outputByteLimit` is negative; give a number of bytes", "malformed")
        return min(asked, TERMINAL_OUTPUT_BYTES)


def new_terminal_id() -> str:
    """Return a unique id that no agent can guess."""
    return f"t_{secrets.token_hex(10)}"


def prepare(
    roots: Roots, command: str, args: Sequence[str], environment: Mapping[str, str], cwd: str | None
) -> tuple[list[str], str]:
    """Return the command and its directory, `cwd` inside the roots. Reads the disk, so call it in a worker thread.

    Raises:
        RequestRefused: The directory is missing or outside.
    """
    directory = roots.directory(cwd)
    return command_line(command, args, environment.get("PATH", os.defpath), directory), directory


def command_line(command: str, args: Sequence[str], path: str, cwd: str) -> list[str]:
    """Return the program to start and its arguments.

    Agents send either a program with `args`, or one line for a shell and no `args`. A line is recognized by shell
    metacharacters, unless there is a program of exactly that name.
    """
    if args or shlex.quote(command) == command:
        return [command, *args]
    if shutil.which(os.path.join(cwd, command) if "/" in command else command, path=path):
        return [command]
    # The lines that agents write are mostly for bash.
    return [shutil.which("bash", path=path) or SHELL, "-c", command]


def _checked_environment(variables: Mapping[str, str]) -> dict[str, str]:
    try:
        checked = agent_environment({}, additions=[f"{name}={value}" for name, value in variables.items()])
    except ConfigError:
        checked = {}
    # A name that contains an equals sign would have become another name.
    if checked.keys() != variables.keys():
        raise refusals.invalid(
            "a variable in `env` cannot be set; use letters, digits and `_`, and no name of the daemon's own",
            "malformed",
        )
    return checked
