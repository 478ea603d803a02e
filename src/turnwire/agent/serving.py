"""Ways to serve an agent: over any link, over standard input and output, inside this process.

Takes an agent's parts; serves clients. Never ends a process of its own accord.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from turnwire.agent.authored import Authored
from turnwire.agent.connection import Connection
from turnwire.limits import Limits
from turnwire.link.base import FrameLink
from turnwire.link.memory import memory_pair
from turnwire.link.stdio import StdioLink, open_pipes
from turnwire.runtime.source import LinkedAgent

Serve: TypeAlias = Callable[[FrameLink], Awaitable[None]]

logger = logging.getLogger(__name__)

DRAIN_S = 2.0
"""How long the last frames may take to a client that has stopped talking."""


async def serve(authored: Authored, link: FrameLink) -> None:
    """Serve one client until its link ends. The link stays open."""
    async with anyio.create_task_group() as tasks:
        connection = Connection(authored, link, tasks)
        await connection.serve()
        with anyio.move_on_after(DRAIN_S):
            await connection.drained()
        tasks.cancel_scope.cancel()


def run(serve_link: Serve) -> None:
    """Serve whoever started this process, until it leaves."""
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    anyio.run(_run, serve_link)


async def _run(serve_link: Serve) -> None:
    link = open_pipes(Limits())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, link)
        try:
            await serve_link(link)
        finally:
            await link.aclose()
        tasks.cancel_scope.cancel()


async def _stop_on_signal(link: StdioLink) -> None:
    """An end from outside is like a client that leaves: turns are ended, and what they say last is sent."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            link.end_input()
            return


class _Served(LinkedAgent):
    """An agent in this process, served as long as its link is open."""

    def __init__(self, link: FrameLink, theirs: FrameLink, serve_link: Serve, patience: float) -> None:
        super().__init__(link)
        self._patience = patience
        # Its owner is this handle, which is closed by whoever connected; there is no task group around both.
        self._task = asyncio.get_running_loop().create_task(self._serve(serve_link, theirs))

    async def _serve(self, serve_link: Serve, theirs: FrameLink) -> None:
        try:
            await serve_link(theirs)
        except Exception:  # nobody awaits this task but `aclose`, which has nothing to do about it
            logger.exception("an agent in this process failed")
        finally:
            await theirs.aclose()

    async def aclose(self) -> None:
        await super().aclose()
        with anyio.move_on_after(self._patience):
            await asyncio.wait([self._task])
        self._task.cancel()


class AgentInProcess:
    """Gives the same agent to everybody, over a link of their own. An `AgentSource`."""

    def __init__(self, serve_link: Serve, max_cancel_s: float) -> None:
        self._serve = serve_link
        self._patience = max_cancel_s + DRAIN_S

    async def connect(self) -> LinkedAgent:
        """A fresh connection to the agent."""
        ours, theirs = memory_pair()
        return _Served(ours, theirs, self._serve, self._patience)
