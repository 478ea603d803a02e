"""A workplace on this machine: own files and own processes, for a session whose client offers neither.

Takes the session's directories; gives `Workplace`. Files are read and written as the daemon does it for agents
(`turnwire.runtime.services.files`), commands run under a guard that ends their whole tree. Never leaves the
session's directories by a path, and never gives a command more of our environment than an agent gets: a model's key
stays here. A command itself may go anywhere that its user may; that is what permission is asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from anyio import CapacityLimiter, to_thread

from turnwire.builtin.tools.output import TwoEnds
from turnwire.builtin.tools.tool import Call, Ran
from turnwire.errors import TurnwireError
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.services import Roots
from turnwire.runtime.services.files import Files
from turnwire.runtime.services.terminals import SHELL, start_terminal


class LocalWorkplace:
    """Files and commands of one session. A workplace over a client's files or terminals derives from it."""

    def __init__(
        self,
        cwd: Path,
        directories: Sequence[Path] = (),
        *,
        allows_fetch: bool = False,
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Looks at nothing on disk yet. Raises `RequestRefused` for a directory that is not absolute.

        `environment` is what commands get; by default what an agent gets.
        """
        self.cwd = cwd
        self.roots = Roots(os.fspath(cwd), [os.fspath(each) for each in directories])
        self.allows_fetch = allows_fetch
        self._limits = limits or Limits()
        self._environment = agent_environment(os.environ) if environment is None else environment
        self._files = Files(self.roots, self._limits, CapacityLimiter(self._limits.file_threads))

    async def read_text(self, path: str) -> str:
        return await self._files.read_text_file(path)

    async def write_text(self, path: str, text: str) -> None:
        await self._files.write_text_file(path, text)

    async def run(self, command: str, call: Call, timeout_s: float) -> Ran:
        cwd = await to_thread.run_sync(self.roots.directory)
        shell = shutil.which("bash", path=self._environment.get("PATH", os.defpath)) or SHELL
        output, timed_out, failures = TwoEnds(), False, list[TurnwireError]()
        terminal = start_terminal([shell, "-c", command], cwd, self._environment, 0)
        # Nothing can have been read yet: the loop has not had a turn since.
        terminal.output = output
        try:
            await terminal.launched(self._limits.launch_s)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_tell, output, call, tasks.cancel_scope, failures)
                with anyio.move_on_after(timeout_s) as waiting:
                    await terminal.exited()
                timed_out = waiting.cancelled_caught
                await terminal.stop(self._limits.stop_kill_s)
                if terminal.exit is None:
                    # Something of it hangs in the kernel. What it has printed is all there is.
                    output.end()
        finally:
            await terminal.stop(self._limits.stop_kill_s)
        if failures:
            raise failures[0]
        ended = terminal.exit
        return Ran(
            exit_code=ended.exit_code if ended else None,
            signal=ended.signal if ended else None,
            output=output.text(),
            truncated=output.is_truncated,
            timed_out=timed_out,
        )


async def _tell(output: TwoEnds, call: Call, scope: anyio.CancelScope, failures: list[TurnwireError]) -> None:
    """Without anybody to tell, the command ends; why is told as it is, not wrapped in a group."""
    try:
        await output.tell(call)
    except TurnwireError as error:
        failures.append(error)
        scope.cancel()
