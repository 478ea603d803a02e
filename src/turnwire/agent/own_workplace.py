"""Files and commands on the agent's machine, for one session and inside its directories.

A command is killed with its process tree, and its output is reported while it is written. A command gets no more of
the environment than an agent.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import anyio
from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from turnwire.errors import TurnwireError
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.services.files import FILE_THREADS, Files
from turnwire.hosting.services.roots import Roots
from turnwire.hosting.services.terminals import Output, prepare, start_terminal
from turnwire.limits import Limits
from turnwire.wire.schema.common import TerminalExit

Heard: TypeAlias = Callable[[str], Awaitable[object]]
"""Receives a block of output; the next block follows when it has returned."""


class Ran(Struct, frozen=True, kw_only=True):
    """The result of a finished command."""

    exit_code: int | None
    """`None` after a signal."""
    signal: str | None
    output: str
    """Both of its streams in the order they were written, or the end of that."""
    truncated: bool
    timed_out: bool = False
    """It was ended because its time was up. `Turn.run` sets it no time."""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0


class OwnWorkplace:
    """Files and commands of one session. Made without a look at the disk."""

    def __init__(self, cwd: str, directories: Sequence[str] = (), limits: Limits | None = None) -> None:
        """Raises `RequestRefused` if a directory is not an absolute path."""
        self._limits = limits or Limits()
        self._threads = CapacityLimiter(FILE_THREADS)
        self.roots = Roots(cwd, directories)
        self._files = Files(self.roots, self._limits, self._threads)

    async def read_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return a text file, or `limit` lines of it from `line` on. Raises `RequestRefused`."""
        return await self._files.read_text_file(path, line, limit)

    async def write_file(self, path: str, text: str) -> None:
        """Create or replace a file, whole or not at all. Raises `RequestRefused`."""
        await self._files.write_text_file(path, text)

    async def run(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        output_bytes: int,
        heard: Heard | None = None,
    ) -> Ran:
        """Run a command to its end. Raises `RequestRefused` if it cannot start or its directory is outside."""
        environment = agent_environment(os.environ, additions=[f"{name}={value}" for name, value in env.items()])
        words, where = await to_thread.run_sync(
            prepare, self.roots, command, arguments, environment, cwd, limiter=self._threads
        )
        return await self.perform(words, where, environment, NewestOutput(output_bytes), heard)

    async def perform(
        self,
        words: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        output: LiveOutput,
        heard: Heard | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a program to its end or its timeout, then kill its process tree.

        Raises `RequestRefused` if it cannot start. If `heard` raises one of our errors, the program is ended and
        the error raised.
        """
        terminal = start_terminal(words, cwd, environment, 0)
        # Nothing has been read yet: that begins when this task first waits.
        terminal.output = output
        timed_out, failures = False, list[TurnwireError]()
        try:
            await terminal.launched(self._limits.launch_s)
            async with anyio.create_task_group() as tasks:
                if heard is not None:
                    tasks.start_soon(_tell, output, heard, tasks.cancel_scope, failures)
                with anyio.move_on_after(timeout_s) as waiting:
                    await terminal.exited()
                timed_out = waiting.cancelled_caught
                await terminal.stop(self._limits.stop_kill_s)
                if terminal.exit is None:
                    # A process is stuck in the kernel. Its output so far is all there is.
                    output.end()
        finally:
            await terminal.stop(self._limits.stop_kill_s)
        if failures:
            raise failures[0]
        ended = terminal.exit or TerminalExit()
        return Ran(
            exit_code=ended.exit_code,
            signal=ended.signal,
            output=output.text(),
            truncated=output.is_truncated,
            timed_out=timed_out,
        )


# -- what a command prints, told while it comes ------------------------------------------------------------


class LiveOutput(Output, ABC):
    """Output reported in blocks while it is written. A subclass decides which part, and when."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.has_ended = False
        self._news = anyio.Event()

    def end(self) -> None:
        super().end()
        self.has_ended = True
        self._news.set()

    @abstractmethod
    def take(self) -> str:
        """Return the unreported output; with `has_ended` all of the rest."""

    def wake(self) -> None:
        """Signal that there is output to report."""
        self._news.set()

    async def tell(self, heard: Heard) -> None:
        """Report output as it comes, and return when all is reported. Waits for a slow receiver."""
        is_last = False
        while not is_last:
            await self._news.wait()
            self._news = anyio.Event()
            is_last = self.has_ended
            if text := self.take():
                await heard(text)


class NewestOutput(LiveOutput):
    """The newest output. Output not reported in time is cut like the whole."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._fresh = Output(max_bytes)
        self._max = max_bytes

    def take(self) -> str:
        taken, self._fresh = self._fresh, Output(self._max)
        return f"[...]\n{taken.text()}" if taken.is_truncated else taken.text()

    def _keep(self, text: str) -> None:
        super()._keep(text)
        # Whole characters only, so the decoder of each buffer starts and ends clean.
        self._fresh.feed(text.encode())
        self.wake()


async def _tell(output: LiveOutput, heard: Heard, scope: anyio.CancelScope, failures: list[TurnwireError]) -> None:
    """The error is handed over, not raised: out of a task group it would come wrapped."""
    try:
        await output.tell(heard)
    except TurnwireError as error:
        failures.append(error)
        scope.cancel()
