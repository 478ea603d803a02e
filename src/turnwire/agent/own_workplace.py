"""What an agent does for itself when its client offers none of it: files and commands inside a session's roots.

Takes paths and commands; gives text and how a command ended, or raises `RequestRefused`. Reading, writing, roots
and process trees are those of `turnwire.runtime.services`; here they are only put together. A cancelled
`run` has killed its whole tree when it returns. Never gives a command more of the environment than an agent gets,
and never holds more of its output than was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import anyio
from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.services.files import Files
from turnwire.runtime.services.roots import Roots
from turnwire.runtime.services.terminals import Output, Terminal, prepare, start_terminal
from turnwire.wire.schema.common import TerminalExit

Heard: TypeAlias = Callable[[str], Awaitable[object]]
"""Takes a piece of output, and the next one once that has returned."""


class Ran(Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    exit_code: int | None
    """`None` if a signal ended it."""
    signal: str | None
    output: str
    """Both of its streams in the order they were written, or the end of that."""
    truncated: bool

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0


class OwnWorkplace:
    """Files and commands of one session. Made without a look at the disk."""

    def __init__(self, cwd: str, directories: Sequence[str] = (), limits: Limits | None = None) -> None:
        """Raises `RequestRefused` if a directory is not an absolute path."""
        self._limits = limits or Limits()
        self._threads = CapacityLimiter(self._limits.file_threads)
        self._roots = Roots(cwd, directories)
        self._files = Files(self._roots, self._limits, self._threads)

    async def read_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """A text file, or `limit` lines of it from `line` on. Raises `RequestRefused`."""
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
            prepare, self._roots, command, arguments, environment, cwd, limiter=self._threads
        )
        terminal = start_terminal(words, where, environment, output_bytes)
        # Nothing has been read yet: that begins when this task first waits.
        output = terminal.output = _Listened(output_bytes)
        try:
            await terminal.launched(self._limits.launch_s)
            ended = await _until_end(terminal, output, heard)
        finally:
            await terminal.stop(self._limits.stop_kill_s)
        return Ran(
            exit_code=ended.exit_code, signal=ended.signal, output=output.text(), truncated=output.is_truncated
        )


class _Listened(Output):
    """Output that can be taken piece by piece as well. What is not taken in time is cut like the whole."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._fresh = Output(max_bytes)
        self._max = max_bytes
        self.arrived = anyio.Event()

    def _keep(self, text: str) -> None:
        super()._keep(text)
        # Whole characters only, so the decoder of each buffer starts and ends clean.
        self._fresh.feed(text.encode())
        self.arrived.set()

    def take(self) -> str:
        """What came since the last time."""
        taken, self._fresh, self.arrived = self._fresh, Output(self._max), anyio.Event()
        return f"[...]\n{taken.text()}" if taken.is_truncated else taken.text()


async def _until_end(terminal: Terminal, output: _Listened, heard: Heard | None) -> TerminalExit:
    if heard is not None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wake_at_end, terminal, output)
            # Whoever knows the exit can read all of the output, so the last round has the rest.
            is_last = False
            while not is_last:
                await output.arrived.wait()
                is_last = terminal.exit is not None
                if text := output.take():
                    await heard(text)
    return await terminal.exited()


async def _wake_at_end(terminal: Terminal, output: _Listened) -> None:
    await terminal.exited()
    output.arrived.set()
