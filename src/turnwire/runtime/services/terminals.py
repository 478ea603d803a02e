"""The terminals of one session: created, read, waited for, killed and released by its agent.

Takes a request of ACP, gives its answer or raises `RequestRefused`. An id is good from its creation to its
release; a terminal that was never released is killed when the session lets go. Bounded in number and in the
output each one keeps. Never runs a command with more of the daemon's environment than an agent gets.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping

from anyio import CapacityLimiter, create_task_group, to_thread

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime import mint
from turnwire.runtime.services import refusals
from turnwire.runtime.services.roots import Roots
from turnwire.runtime.services.terminal import Terminal, start_terminal
from turnwire.wire.schema.common import NamedValue, TerminalExit
from turnwire.wire.schema.v1 import CreateTerminalRequest, TerminalOutputResponse

SHELL = "/bin/sh"
"""Every system has it."""


class Terminals:
    """What an agent runs in a session."""

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

    async def create(self, request: CreateTerminalRequest) -> str:
        """Start a command and give the terminal's id once it runs. A cancelled call leaves no process.

        Raises:
            RequestRefused: The command cannot be started, its directory is outside, or there are too many.
        """
        self._check_room()
        max_bytes = self._output_bound(request.output_byte_limit)
        environment = {**self._environment, **_given_environment(request.env)}
        if any("\0" in each for each in (request.command, *request.args)) or not request.command:
            raise refusals.invalid("the command is empty or holds a zero byte; name a program", "malformed")
        self._starting += 1
        try:
            command, cwd = await to_thread.run_sync(self._prepare, request, environment, limiter=self._threads)
            if self._is_closed:
                raise refusals.closed()
            terminal = start_terminal(command, cwd, environment, max_bytes)
        finally:
            self._starting -= 1
        terminal_id = mint.terminal_id()
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

    def output(self, terminal_id: str) -> TerminalOutputResponse:
        """What it has printed so far, and how it ended if it has."""
        terminal = self._get(terminal_id)
        output = terminal.output
        return TerminalOutputResponse(
            output=output.text(), truncated=output.is_truncated, exit_status=terminal.exit
        )

    async def wait_for_exit(self, terminal_id: str) -> TerminalExit:
        """Its end, also if it is released meanwhile. Cancel-safe."""
        return await self._get(terminal_id).exited()

    async def kill(self, terminal_id: str) -> None:
        """End the command and everything it started. The id stays good."""
        await self._get(terminal_id).stop(self._limits.stop_kill_s)

    async def release(self, terminal_id: str) -> None:
        """End it and forget it: the id is unknown from now on."""
        terminal = self._get(terminal_id)
        del self._terminals[terminal_id]
        await terminal.stop(self._limits.stop_kill_s)

    async def aclose(self) -> None:
        """End and forget all of them. None can be created any more. Idempotent."""
        self._is_closed = True
        terminals, self._terminals = list(self._terminals.values()), {}
        async with create_task_group() as tasks:
            for terminal in terminals:
                terminal.kill()
                tasks.start_soon(terminal.stop, self._limits.stop_kill_s)

    def _get(self, terminal_id: str) -> Terminal:
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            raise refusals.closed() if self._is_closed else refusals.unknown_terminal()
        return terminal

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
            return self._limits.terminal_output_bytes
        if asked < 0:
            raise refusals.invalid("`outputByteLimit` is negative; give a number of bytes", "malformed")
        return min(asked, self._limits.terminal_output_bytes)

    def _prepare(self, request: CreateTerminalRequest, environment: Mapping[str, str]) -> tuple[list[str], str]:
        """Looks at the disk, so it runs in a worker thread."""
        cwd = self._roots.directory(request.cwd)
        return command_line(request, environment.get("PATH", os.defpath), cwd), cwd


def command_line(request: CreateTerminalRequest, path: str, cwd: str) -> list[str]:
    """The program to start and its arguments.

    Agents send either a program with `args`, or one line for a shell and no `args`. The second is known by
    characters that mean something to a shell, unless there is a program of just that name.
    """
    command = request.command
    if request.args or shlex.quote(command) == command:
        return [command, *request.args]
    if shutil.which(os.path.join(cwd, command) if "/" in command else command, path=path):
        return [command]
    # The lines that agents write are bash's more often than not.
    return [shutil.which("bash", path=path) or SHELL, "-c", command]


def _given_environment(variables: list[NamedValue]) -> dict[str, str]:
    try:
        given = agent_environment({}, additions=[f"{each.name}={each.value}" for each in variables])
    except ConfigError:
        given = {}
    # A name with an equals sign in it would have become another name.
    if given.keys() != {each.name for each in variables}:
        raise refusals.invalid(
            "a variable in `env` cannot be set; use letters, digits and `_`, and no name of the daemon's own",
            "malformed",
        )
    return given
