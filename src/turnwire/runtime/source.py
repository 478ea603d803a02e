"""Where agents come from: a command that is started, or a link that somebody else has made.

Each agent has its link and its way to end. Whether one is started again is for `runtime.agent_pool` to decide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from turnwire.limits import Limits
from turnwire.link.base import FrameLink
from turnwire.link.environment import agent_environment
from turnwire.link.process import AgentProcess, Exit, spawn


class AgentHandle(Protocol):
    """An agent that was started for us."""

    @property
    def link(self) -> FrameLink: ...

    @property
    def pid(self) -> int:
        """Its process; 0 if it has none of its own."""
        ...

    @property
    def program(self) -> str:
        """The name of its program; empty if it has none of its own."""
        ...

    @property
    def printed(self) -> str:
        """The last that it wrote to its standard error, without the values of its secret variables."""
        ...

    @property
    def exit(self) -> Exit | None:
        """How it ended, once it has and if that can be known."""
        ...

    async def exited(self) -> Exit:
        """Wait for its end."""
        ...

    def blotted(self, words: bytes, *, is_cut: bool) -> bytes:
        """What it printed, without the values of its secret variables. `is_cut`: it went on behind."""
        ...

    def terminate(self) -> None:
        """Ask it to end, now."""
        ...

    def kill(self) -> None:
        """End it, now."""
        ...

    async def aclose(self) -> None:
        """End it in good order, bounded, and close the link. Idempotent."""
        ...


class AgentSource(Protocol):
    """Gives agents."""

    async def connect(self) -> AgentHandle:
        """A fresh agent. Raises `AgentLaunchFailed`, `LinkError`."""
        ...


class LinkedAgent:
    """An agent without a process of its own: it is there as long as its link is."""

    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self.pid = 0
        self.program = ""
        self.printed = ""
        self.exit: Exit | None = None

    async def exited(self) -> Exit:
        return Exit(None, None, "", None)

    def blotted(self, words: bytes, *, is_cut: bool) -> bytes:
        return words

    def terminate(self) -> None:
        """There is no process to ask; `aclose` ends it."""

    def kill(self) -> None:
        """There is no process to kill; `aclose` ends it."""

    async def aclose(self) -> None:
        await self.link.aclose()


class ProcessSource:
    """Starts a command for each agent. The command is a list, never a shell's line."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.command = tuple(command)
        self._cwd = cwd or os.getcwd()
        self._env = env if env is not None else agent_environment(os.environ)
        self._limits = limits or Limits()

    async def connect(self) -> AgentProcess:
        return await spawn(self.command, cwd=self._cwd, env=self._env, limits=self._limits)
