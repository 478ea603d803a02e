"""Sources of agents: a command that is started, or a link made by other code.

Each agent has its link and its way to end. `hosting.agent_pool` decides about restarts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from turnwire.hosting.base import FrameLink, Journal
from turnwire.hosting.environment import agent_environment, secrets
from turnwire.hosting.held import Holders
from turnwire.hosting.process import AgentProcess, Exit, spawn
from turnwire.limits import Limits


class AgentHandle(Protocol):
    """An agent that was started for us."""

    @property
    def link(self) -> FrameLink: ...

    @property
    def journal(self) -> Journal | None:
        """The notes that outlive this process, if the agent does."""
        ...

    @property
    def pid(self) -> int:
        """Its process id; 0 if it has no process."""
        ...

    @property
    def program(self) -> str:
        """The name of its program; empty if it has no process."""
        ...

    @property
    def printed(self) -> str:
        """The end of its standard error, without the values of its secret variables."""
        ...

    @property
    def exit(self) -> Exit | None:
        """How it ended; `None` if it runs or its end is unknown."""
        ...

    async def exited(self) -> Exit:
        """Wait for its end."""
        ...

    def blotted(self, words: bytes, *, is_cut: bool) -> bytes:
        """Return output without the values of its secret variables. `is_cut`: the output continues after
        this part.
        """
        ...

    def terminate(self) -> None:
        """Ask it to end now."""
        ...

    def kill(self) -> None:
        """Kill it now."""
        ...

    async def aclose(self) -> None:
        """End it gracefully, bounded, and close the link. Idempotent."""
        ...


class AgentSource(Protocol):
    """A source of agents."""

    async def connect(self) -> AgentHandle:
        """Return a fresh agent. Raises `AgentLaunchFailed`, `LinkError`."""
        ...


class LinkedAgent:
    """An agent without a process: it lives as long as its link."""

    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self.journal = None
        self.pid = 0
        self.program = ""
        self.printed = ""
        self.exit: Exit | None = None

    async def exited(self) -> Exit:
        return Exit(None, None, "", None)

    def blotted(self, words: bytes, *, is_cut: bool) -> bytes:
        return words

    def terminate(self) -> None:
        """Do nothing: there is no process; `aclose` ends it."""

    def kill(self) -> None:
        """Do nothing: there is no process; `aclose` ends it."""

    async def aclose(self) -> None:
        await self.link.aclose()


class ProcessSource:
    """A source that starts a command for each agent. The command is a list, never a shell's line."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        holders: Holders | None = None,
    ) -> None:
        """`holders`: the agents outlive this process."""
        self.holders = holders
        self.command = tuple(command)
        self._cwd = cwd or os.getcwd()
        self._env = env if env is not None else agent_environment(os.environ)
        self._limits = limits or Limits()

    @property
    def secrets(self) -> Sequence[bytes]:
        """Values of its environment that must not appear in its output."""
        return secrets(self._env)

    async def connect(self) -> AgentProcess:
        if self.holders is not None:
            return await self.holders.start(self.command, cwd=self._cwd, env=self._env, limits=self._limits)
        return await spawn(self.command, cwd=self._cwd, env=self._env, limits=self._limits)
