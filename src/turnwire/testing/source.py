"""Scripted agents for a node: each connection gets a fresh one, in this process.

Takes a profile and options; gives links as `turnwire.runtime.source.AgentSource` wants them. Counts what it
started, and can cut the newest agent off, as a crash would.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from turnwire.link.base import FrameLink
from turnwire.link.memory import memory_pair
from turnwire.runtime.source import LinkedAgent
from turnwire.testing.scripted.agent import ScriptedAgent
from turnwire.testing.scripted.host import Gates, TaskHost
from turnwire.testing.scripted.options import AgentOptions, Profile


class ScriptedSource:
    """A source of scripted agents. `async with` it: its agents end when it does."""

    def __init__(self, profile: Profile = "v1", options: AgentOptions | None = None) -> None:
        self.profile: Profile = profile
        self.options = options or AgentOptions()
        self.gates = Gates()
        self.started = 0
        self._newest: FrameLink | None = None
        self._tasks: TaskGroup = anyio.create_task_group()

    async def connect(self) -> LinkedAgent:
        """A new agent."""
        ours, theirs = memory_pair()
        agent = ScriptedAgent(theirs, self.profile, self.options, TaskHost(theirs, self.gates))
        self._tasks.start_soon(agent.run)
        self._newest = theirs
        self.started += 1
        return LinkedAgent(ours)

    async def cut(self) -> None:
        """The newest agent goes away without a word."""
        if self._newest is not None:
            await self._newest.aclose()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)
