"""A node with a real agent process: shared code of the hosting tests.

The input is a command, limits, a clock and a policy; the result is sessions to use and every process that was
started. Every wait is bounded, and no started process outlives the test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.interop.node_session import WAIT_S, Talk
from tests.support.driving import of, texts

from turnwire.clock import SystemClock
from turnwire.errors import TurnwireError
from turnwire.hosting.agent_pool import AgentPolicy, Sharing
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.process import AgentProcess
from turnwire.hosting.source import ProcessSource
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.runtime.node import Node, open_node
from turnwire.session import events as ev
from turnwire_testing import ManualClock

PLAIN = Path(__file__).parent / "plain_agent.py"
SESSION = AgentPolicy(sharing=Sharing.SESSION)
LOADS: dict[str, Any] = {"loadSession": True}
RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}


def scripted(*arguments: str) -> list[str]:
    """The scripted agent as a program."""
    return [sys.executable, "-m", "turnwire_testing.agent", *arguments]


def plain(**habits: object) -> list[str]:
    """The agent of `plain_agent.py`, which starts fast."""
    return [sys.executable, "-I", "-S", str(PLAIN), json.dumps(habits)]


class Remembering(ProcessSource):
    """A source that records its processes."""

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        # Tests run the agents of this repository, which find their packages as the test does.
        env = agent_environment(os.environ, additions=[f"PYTHONPATH={os.pathsep.join(sys.path)}"])
        super().__init__(command, env=env, limits=limits)
        self.tries = 0
        self.processes: list[AgentProcess] = []
        self.failures: list[TurnwireError] = []

    async def connect(self) -> AgentProcess:
        self.tries += 1
        try:
            self.processes.append(await super().connect())
        except TurnwireError as error:
            self.failures.append(error)
            raise
        return self.processes[-1]

    @property
    def newest(self) -> AgentProcess:
        return self.processes[-1]

    @property
    def alive(self) -> list[int]:
        return [each.pid for each in self.processes if each.exit is None]


class Hosted:
    """A node with one agent command."""

    def __init__(self, node: Node, log: EventLog, source: Remembering, clock: ManualClock) -> None:
        self.node = node
        self.log = log
        self.source = source
        self.clock = clock

    async def talk(self, cwd: str | Path = "/", session_id: str | None = None, *, opened: bool = True) -> Talk:
        """Open a new session; by default wait until its agent has it."""
        with anyio.fail_after(WAIT_S):
            given = None if session_id is None else SessionId(session_id)
            talk = Talk(self.node, self.log, await self.node.create(str(cwd), session_id=given))
        if opened:
            await talk.until(lambda event: isinstance(event, ev.AgentStarted))
        return talk

    async def pid(self, talk: Talk) -> int | None:
        """The process that serves a session now."""
        return (await self.node.agents.explain(talk.session_id)).agent.pid


@asynccontextmanager
async def hosted(
    command: Sequence[str],
    *,
    limits: Limits | None = None,
    policy: AgentPolicy | None = None,
    log: EventLog | None = None,
    is_timed: bool = False,
) -> AsyncGenerator[Hosted]:
    """Run a node that starts this command; its clock is stopped unless `is_timed`, the process's is not."""
    clock, log, limits = ManualClock(), log or MemoryEventLog(), limits or Limits()
    source = Remembering(command, limits)
    runs = SystemClock() if is_timed else clock
    try:
        async with open_node(log, source, clock=runs, limits=limits, policy=policy) as node:
            yield Hosted(node, log, source, clock)
    finally:
        for each in source.processes:
            each.kill()
            with anyio.CancelScope(shield=True):
                await each.aclose()


async def how(talk: Talk) -> list[str]:
    """Return the ways in which the agents of a session obtained it, in order."""
    return [each.how for each in of(await talk.events(), ev.AgentStarted)]


async def words(talk: Talk) -> list[str]:
    """Return all text of the agent in a session, in order."""
    return texts(await talk.events())
