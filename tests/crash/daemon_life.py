"""The processes of one daemon: one after the other on the same folder, started, killed and reaped.

The input is a folder and the settings of a process; the result is its URL once it accepts requests, and its exit
code. Every wait is bounded. A kill is one system call at the very point that requests it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.crash.daemon_child import Start

from turnwire_testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
AGENT = Path(__file__).parents[1] / "support/recording_agent.py"
TOKEN = "kill-test-owner-token-0123456789"


LINE_BYTES = 65_536

SEVERE = frozenset({"error", "critical"})
"""Levels of log lines that nothing but a defect leads to."""

SMALL = {
    "batch_inputs": 32,
    "ring_events": 16,
    "page_events": 16,
    "snapshot_events": 100,
    "idle_unload_s": 0.2,
    "checkpoint_bytes": 262_144,
    "drain_s": 5,
    "stop_eof_s": 0.05,
}
"""Limits so small that snapshots, checkpoints, unloading and reading past the ring happen all the time."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """The settings of one process of the daemon."""

    number: int
    cold: bool = False
    durability: str = "normal"
    agent_process: str = "shared"


class Folder:
    """State shared by the processes of one daemon: its log, its agents' record, its errors, its address."""

    def __init__(
        self, path: Path, database: str | None = None, hold_s: float = 0, habits: Sequence[str] = ("clings",)
    ) -> None:
        """`hold_s`: how long agents outlive their daemon. `habits`: those of the agent."""
        self._habits = habits
        path.mkdir()
        self.limits: dict[str, float] = {**SMALL, "hold_s": hold_s}
        self.path = path
        self.database = database
        self.log = path / "data" / "turnwire.db"
        self.record = path / "record"
        self.errors = path / "errors"
        # Bound without listening: the port stays ours between two processes, and each of them may bind it.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._port.getsockname()[1]}"

    def close(self) -> None:
        self._port.close()

    def start(self, manner: Manner) -> Start:
        options = {
            "--port": self.url.rpartition(":")[2],
            "--data": str(self.log.parent),
            "--cwd": str(self.path),
            "--token": TOKEN,
            "--log-format": "json",
            "--log-level": "warning",
            "--durability": manner.durability,
            "--config": str(self._config(manner)),
        }
        if self.database is not None:
            options["--log"] = self.database
        limits = [word for name, value in self.limits.items() for word in ("--limit", f"{name}={value}")]
        words = [word for option in options.items() for word in option]
        return Start(["--debug", "serve", "--json", *words, *limits], str(self.errors), manner.cold)

    def _config(self, manner: Manner) -> Path:
        """The settings file with the agent of this life."""
        agent = [sys.executable, "-I", "-S", str(AGENT), *self._mark(manner.number), *self._habits]
        file = self.path / "turnwire.toml"
        file.write_text(f'[agents.clings]\ncommand = {json.dumps(agent)}\nprocess = "{manner.agent_process}"\n')
        return file

    def _mark(self, life: int) -> tuple[str, str]:
        return str(self.record), str(life)

    async def agents_gone(self, life: int) -> None:
        """Return once no guard, agent or grandchild of that life is there. Raises `TimeoutError`."""
        mark = "\0".join(self._mark(life)).encode()
        with anyio.fail_after(WAIT_S):
            while found := processes_with(mark):
                for pid in found:
                    with suppress(ProcessLookupError):
                        await _end_of(os.pidfd_open(pid))

    def tags(self) -> list[tuple[str, int]]:
        """The prompts that agents got, in the order in which they got them, each with the life it was in."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        found: list[tuple[str, int]] = []
        for line in lines:
            _, _, life, _, _, tag = line.split(" ")
            found.append((tag, int(life)))
        return found

    def complaints(self) -> list[str]:
        """Return a daemon's log lines about errors; no kill may lead to one."""
        lines = self.errors.read_text().splitlines() if self.errors.exists() else []
        return [line for line in lines if not line.startswith("{") or json.loads(line)["level"] in SEVERE]


async def _end_of(handle: int) -> None:
    try:
        await anyio.wait_readable(handle)
    finally:
        os.close(handle)


def processes_with(mark: bytes) -> list[int]:
    """Return processes that have these words in their command line. A dead one has none."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes()
                if mark + b"\0" in words:
                    found.append(int(entry.name))
    return found


@dataclass
class Life:
    """One process of the daemon."""

    pid: int
    url: str | None = None
    """Set once it accepts requests."""
    has_recovered: bool = False
    """It has reported that all turns left open by an earlier process have ended."""
    is_dead: bool = False
    """It has ended, for any reason; its status was not read."""
    exit_code: int | None = None
    was_killed: bool = False
    moved: anyio.Event = field(default_factory=anyio.Event)
    """Set, and replaced, when one of the above changes."""

    def kill(self) -> None:
        """Kill it at once. It retains its id until it is reaped, so no other process can be hit."""
        if self.exit_code is None and not self.was_killed:
            os.kill(self.pid, signal.SIGKILL)
            self.was_killed = True
            self.move()

    def stop(self) -> None:
        """Ask it to end in good order."""
        os.kill(self.pid, signal.SIGTERM)

    def move(self) -> None:
        moved, self.moved = self.moved, anyio.Event()
        moved.set()

    async def ended(self) -> None:
        """Return once it is about to be gone, or is."""
        while not (self.was_killed or self.is_dead):
            await self.moved.wait()

    async def announced(self) -> None:
        """Return once it accepts requests or has ended."""
        while self.url is None and not self.is_dead:
            await self.moved.wait()

    async def watch(self) -> None:
        """Notice its end."""
        # One that ends while it is announced is gone before anybody looks.
        with suppress(ProcessLookupError):
            await _end_of(os.pidfd_open(self.pid))
        self.is_dead = True
        self.move()


class Daemons:
    """The child program: starts one daemon at a time."""

    def __init__(self, process: Process, tasks: TaskGroup) -> None:
        self._process = process
        self._tasks = tasks
        self._life: Life | None = None
        self._started = anyio.Event()

    async def start(self, start: Start) -> Life:
        """Start a process that will be a daemon. Raises `TimeoutError`."""
        self._life, self._started = None, anyio.Event()
        await self._write(start.line())
        with anyio.fail_after(WAIT_S):
            await self._started.wait()
        assert self._life is not None, "the child program is gone; its standard error says why"
        self._tasks.start_soon(self._life.watch)
        return self._life

    async def bury(self, life: Life) -> int:
        """Wait for its end; return its exit code. Raises `TimeoutError`."""
        await self._write(b"\n")
        with anyio.fail_after(WAIT_S):
            while life.exit_code is None:
                await life.moved.wait()
        return life.exit_code

    async def listen(self) -> None:
        """Read the output of the child program and its daemons, until it is gone."""
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead):
            while True:
                line = await lines.receive_until(b"\n", LINE_BYTES)
                with suppress(ValueError):
                    self._hear(json.loads(line))
        # Release waiters for output of a program that is gone.
        self._started.set()

    def _hear(self, said: dict[str, Any]) -> None:
        match said:
            case {"forked": int(pid)}:
                self._life = Life(pid)
                self._started.set()
            case {"url": str(url)} if self._life is not None:
                self._life.url = url
                self._life.move()
            case {"ended": int(code)} if self._life is not None:
                self._life.exit_code = code
                self._life.move()
            case _:
                pass

    async def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(line)


@asynccontextmanager
async def open_daemons() -> AsyncGenerator[Daemons]:
    """Run the child program; it and its processes are gone at the end."""
    command = [sys.executable, "-m", "tests.crash.daemon_child"]
    async with (
        await anyio.open_process(command, cwd=ROOT, stderr=None, start_new_session=True) as process,
        anyio.create_task_group() as tasks,
    ):
        daemons = Daemons(process, tasks)
        tasks.start_soon(daemons.listen)
        try:
            yield daemons
        finally:
            # With the daemon that may still be there: it is in the same group, and ends its agents with itself.
            os.killpg(process.pid, signal.SIGKILL)
            tasks.cancel_scope.cancel()
