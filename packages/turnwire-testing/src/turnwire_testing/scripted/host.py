"""The host of a scripted agent: the test's process, or a separate process of the agent.

Commands that affect the outside (gates, exits, signals, grandchildren) take effect here. The process of a test is
not harmed: there an exit closes the link, and a grandchild is rejected.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, Protocol

import anyio

from turnwire.hosting.base import FrameLink
from turnwire.hosting.stdio import StdioLink
from turnwire_testing.patience import WAIT_S

GATE_S = 60.0
"""Timeout of an agent process for the file of a gate: longer than any test, but bounded."""

POLL_S = 0.01
"""Polling interval: there is no portable notification for a new file."""

GRANDCHILD_S = 600
"""Lifetime after which an abandoned grandchild exits."""


FLUSH_S = 5.0
"""Timeout for flushing the last bytes before the process ends."""


class Unavailable(Exception):
    """The action is not possible in this agent; the text has the reason."""


class Gates:
    """Named places where a scripted agent in this process waits for the test."""

    def __init__(self) -> None:
        self._open: dict[str, anyio.Event] = {}
        self._reached: dict[str, anyio.Event] = {}

    def open(self, name: str) -> None:
        """Release all current and future waiters at this gate."""
        self._open.setdefault(name, anyio.Event()).set()

    async def wait(self, name: str) -> None:
        """Wait at a gate, as the agent does."""
        self._reached.setdefault(name, anyio.Event()).set()
        await self._open.setdefault(name, anyio.Event()).wait()

    async def reached(self, name: str) -> None:
        """Return once an agent has come to this gate. Raises `TimeoutError` after `WAIT_S` seconds."""
        with anyio.fail_after(WAIT_S):
            await self._reached.setdefault(name, anyio.Event()).wait()


class Host(Protocol):
    """The outside of an agent."""

    async def wait_at_gate(self, name: str) -> None: ...

    async def exit(self, code: int) -> None: ...

    async def die_by(self, signal_name: str) -> None: ...

    def ignore(self, signal_name: str) -> None: ...

    def complain(self, text: str) -> None: ...

    def fork(self, *, hold_pipes: bool) -> int: ...


class TaskHost:
    """The agent runs as a task of a test."""

    def __init__(self, link: FrameLink, gates: Gates) -> None:
        self._link = link
        self._gates = gates

    async def wait_at_gate(self, name: str) -> None:
        await self._gates.wait(name)

    async def exit(self, code: int) -> None:
        await self._link.aclose()

    async def die_by(self, signal_name: str) -> None:
        await self._link.aclose()

    def ignore(self, signal_name: str) -> None:
        raise _needs_process("ignore-signal")

    def complain(self, text: str) -> None:
        raise _needs_process("stderr")

    def fork(self, *, hold_pipes: bool) -> int:
        raise _needs_process("fork")


class ProcessHost:
    """The host of an agent that runs as a separate process."""

    def __init__(self, link: StdioLink) -> None:
        self._link = link

    async def _flush(self) -> None:
        with anyio.move_on_after(FLUSH_S):
            await self._link.flush()

    async def wait_at_gate(self, name: str) -> None:
        path = anyio.Path(name)
        with anyio.fail_after(GATE_S):
            while not await path.exists():  # noqa: ASYNC110 nothing tells us that a file has appeared
                await anyio.sleep(POLL_S)

    async def exit(self, code: int) -> NoReturn:
        await self._flush()
        os._exit(code)

    async def die_by(self, signal_name: str) -> None:
        await self._flush()
        os.kill(os.getpid(), signal_number(signal_name))

    def ignore(self, signal_name: str) -> None:
        signal.signal(signal_number(signal_name), signal.SIG_IGN)

    def complain(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def fork(self, *, hold_pipes: bool) -> int:
        pipes = None if hold_pipes else subprocess.DEVNULL
        program = f"import signal; signal.alarm({GRANDCHILD_S}); signal.pause()"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=pipes,
            stderr=pipes,
            cwd=Path.cwd(),
            start_new_session=True,
        )
        return child.pid


def signal_number(name: str) -> int:
    """Return the number of a named signal. Raises `Unavailable` if the name is unknown."""
    try:
        return signal.Signals[name]
    except KeyError:
        raise Unavailable(f"there is no signal {name!r}") from None


def _needs_process(command: str) -> Unavailable:
    return Unavailable(f"{command} needs the agent to be a process of its own: python -m turnwire_testing.agent")
