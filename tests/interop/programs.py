"""The client programs in `clients/`, run with the published SDK of the REST contract; and a cable to cut.

The input is a daemon's address and a scenario's name; the result is the scenario's observations. Without the SDK
the test is skipped with the reason (see `peers.absent`). A program that does not end is killed, and its output is
shown.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, ByteStream, Process
from anyio.streams.text import TextReceiveStream
from tests.interop.peers import PEERS, ROOT, absent
from tests.patience import LONG_S
from tests.support.daemons import TOKEN

QWEN = PEERS / "qwen"
NODE = QWEN / "node_modules" / "node" / "bin" / "node"


class Program:
    """A running client program."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: list[str] = []
        self._open = ""
        assert process.stdout is not None
        self._output = TextReceiveStream(process.stdout)

    async def hear(self) -> Any:
        """Return its next reported fact."""
        while not self._lines:
            try:
                *whole, self._open = (self._open + await self._output.receive()).split("\n")
            except anyio.EndOfStream:
                stderr = self._process.stderr
                assert stderr is not None
                raise AssertionError(f"the program ended early: {await _all_of(stderr)}") from None
            self._lines += whole
        return msgspec.json.decode(self._lines.pop(0))

    async def tell(self, fact: Any) -> None:
        """Let it continue."""
        assert self._process.stdin is not None
        await self._process.stdin.send(msgspec.json.encode(fact) + b"\n")


def need_sdk() -> None:
    """Skip without the SDK. Call it before a test opens anything: a skip within a loop also ends the loop."""
    if not (QWEN / ".installed").exists() or not NODE.exists():
        absent(f"{QWEN.relative_to(ROOT)} is not there; run: make peers")


@asynccontextmanager
async def program(url: str, cwd: Path, name: str, scenario: str, *given: Any) -> AsyncGenerator[Program]:
    """Run a scenario of a program, with these arguments."""
    environment = os.environ | {"TURNWIRE_URL": url, "TURNWIRE_TOKEN": TOKEN, "TURNWIRE_CWD": str(cwd)}
    arguments = [msgspec.json.encode(each).decode() for each in given]
    links = ("--preserve-symlinks", "--preserve-symlinks-main")
    command = [str(NODE), *links, str(QWEN / "clients" / f"{name}.mjs"), scenario, *arguments]
    process = await anyio.open_process(command, env=environment)
    try:
        with anyio.fail_after(LONG_S):
            yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def outcome(url: str, cwd: Path, name: str, scenario: str, *given: Any) -> Any:
    """Run a scenario without interaction, and return its observations."""
    async with program(url, cwd, name, scenario, *given) as running:
        return await running.hear()


async def _all_of(stream: ByteReceiveStream) -> str:
    return "".join([each async for each in TextReceiveStream(stream, errors="replace")])


class Cable:
    """A relay in front of a daemon, with an address that stays while daemons come and go."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._target = ("", 0)
        self._open: set[anyio.CancelScope] = set()

    def lead_to(self, url: str) -> None:
        """New connections go there."""
        parts = urlsplit(url)
        self._target = parts.hostname or "", parts.port or 0

    def cut(self) -> None:
        """Close all connections now, with all data in transit."""
        for each in self._open:
            each.cancel()

    async def relay(self, near: ByteStream) -> None:
        """Carry one connection."""
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with near, await anyio.connect_tcp(*self._target) as far, anyio.create_task_group() as tasks:
                    for source, target in ((near, far), (far, near)):
                        tasks.start_soon(_carry, source, target, tasks.cancel_scope)
            except OSError:
                pass  # nobody is there: the connection just ends
            finally:
                self._open.discard(scope)


async def _carry(source: ByteStream, target: ByteStream, scope: anyio.CancelScope) -> None:
    try:
        async for piece in source:
            await target.send(piece)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    scope.cancel()


@asynccontextmanager
async def cable() -> AsyncGenerator[Cable]:
    """Run a relay that has no target yet. On exit it is cut."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    made = Cable(f"http://127.0.0.1:{port}")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, made.relay)
        try:
            yield made
        finally:
            tasks.cancel_scope.cancel()
