"""Shared code of tests with real processes: agents of a few lines, and a way to detect that a process is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwire.errors import LinkBroken
from turnwire.hosting.base import FrameLink
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.process import AgentProcess, spawn
from turnwire_testing.patience import WAIT_S

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the table of processes of Linux")


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs some Python without loading unneeded modules."""
    return [sys.executable, "-I", "-S", "-u", "-c", code, *arguments]


@asynccontextmanager
async def running(
    command: Sequence[str], cwd: str | Path = "/", additions: Sequence[str] = (), **options: Any
) -> AsyncGenerator[AgentProcess]:
    """Run an agent that is gone when the test is over, also when the test fails."""
    env = agent_environment(os.environ, additions=additions)
    with anyio.fail_after(WAIT_S):
        agent = await spawn(command, cwd=cwd, env=env, **options)
    try:
        yield agent
    finally:
        with anyio.CancelScope(shield=True):
            agent.kill()
            await agent.aclose()


async def take(link: FrameLink, count: int) -> list[bytes]:
    """Receive until `count` frames have arrived."""
    frames: list[bytes] = []
    with anyio.fail_after(WAIT_S):
        while len(frames) < count:
            frames += await link.receive()
    return frames


async def take_all(link: FrameLink, seconds: float = WAIT_S) -> list[bytes]:
    """Receive until the peer is gone."""
    frames: list[bytes] = []
    with anyio.fail_after(seconds), suppress(LinkBroken):
        while True:
            frames += await link.receive()
    return frames


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_listed(pid: int) -> bool:
    """Return True if the system knows the process, including dead and unreaped ones."""
    return Path(f"/proc/{pid}").exists()


class Watched:
    """Processes held by handles, so that a reused process id is never mistaken for them."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def add(self, *pids: int) -> None:
        """Begin to watch processes, which must be alive."""
        for pid in pids:
            self._handles[pid] = os.pidfd_open(pid)

    async def gone(self) -> None:
        """Return once all have ended; a zombie has ended. Raises `TimeoutError`."""
        with anyio.fail_after(WAIT_S):
            for handle in self._handles.values():
                await anyio.wait_readable(handle)

    def end(self) -> None:
        """Kill all remaining processes, whatever the test found."""
        for handle in self._handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


@contextmanager
def watching(*pids: int) -> Generator[Watched]:
    watched = Watched()
    try:
        watched.add(*pids)
        yield watched
    finally:
        watched.end()
