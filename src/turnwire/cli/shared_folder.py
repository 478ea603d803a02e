"""Several editors on one data folder: the process that has its log serves the others, over a socket in the folder.

Each `turnwire stdio` is one editor's. The first has the log, and its agents; a later one is a guest: it carries its
editor's frames to the first. Who has the log stays until its own editor and all guests have left. If it is killed,
a guest takes the log and goes on, and the others find it there; a turn that ran then has the end that a restart
gives it. Only who would host the same agents is let in, because a guest's editor asked for its own.

I1  Whoever listens has the log's lock, so one process listens, and a socket without it is left over from a kill.
I2  Nobody is let in once the host has begun to end: who comes then waits for the lock, like after any other end.
I3  A guest's editor hears an error at once when it cannot be served: by the answer to its first request.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from turnwire import __version__
from turnwire.cli.agent_source import hosted_agents, in_words
from turnwire.cli.relay import Relay, RelayProcess
from turnwire.errors import LinkError, LogLocked
from turnwire.limits import Limits
from turnwire.link.stdio import StdioLink
from turnwire.runtime.clock import SystemClock
from turnwire.server.acp.stdio import serve_stdio
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings

SOCKET = "stdio.sock"
GREETED_S = 5.0
"""Between two processes of one machine; who takes longer is stopped, or somebody else."""
OWN = frozenset({"data", "log_format", "log_level"})
"""Settings in which a guest may differ."""
WAITING = 64
"""Editors that come at the same moment."""

logger = logging.getLogger(__name__)


class _Greeting(Struct):
    """What a guest says first."""

    agents: str
    """By which agents that are the same are known."""


class _Welcome(Struct):
    """What it is answered."""

    is_let_in: bool
    agent: str = ""
    """The agent that is hosted, in words."""


def mark_of(settings: Settings) -> str:
    """The same for two processes that would host the same agents in the same way."""
    same = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in OWN}
    # A relative path means something else in another folder.
    words = [os.path.abspath(word) for entry in settings.hosted() for word in entry.command if os.path.exists(word)]
    return hashlib.sha256(repr((__version__, same, words)).encode()).hexdigest()


@contextmanager
def _address(data: Path) -> Generator[str]:
    """The socket's name, which is short however deep the folder is: a socket's may have 100 bytes."""
    folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        by_number = f"/proc/self/fd/{folder}/{SOCKET}"
        yield by_number if os.path.isdir(os.path.dirname(by_number)) else str(data / SOCKET)
    finally:
        os.close(folder)


# -- the host ------------------------------------------------------------------------------------------------


class Guests:
    """The other editors of a folder, for the process that has its log."""

    def __init__(self, daemon: Daemon, settings: Settings) -> None:
        self._daemon = daemon
        self._mark = mark_of(settings)
        self._agent = in_words(settings.hosted()[0])
        self._data = settings.data
        self._listening = anyio.CancelScope()
        self._changed = anyio.Event()
        self.count = 0

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve whoever comes, until `finish`. Has started once somebody may come."""
        listener = None if self._data is None else _listen(self._data)
        task_status.started()
        if listener is None:
            return
        async with anyio.create_task_group() as tasks:
            with listener, self._listening:
                while True:
                    await anyio.wait_readable(listener)
                    with suppress(OSError):
                        tasks.start_soon(self._serve, listener.accept()[0])

    async def _serve(self, connected: socket.socket) -> None:
        link = _link(connected, self._daemon.limits)
        try:
            with anyio.fail_after(GREETED_S):
                greeting = msgspec.json.decode((await link.receive())[0], type=_Greeting)
            if greeting.agents != self._mark:
                await link.send(msgspec.json.encode(_Welcome(False, self._agent)))
            elif not self._listening.cancel_called:
                await self._let_in(link)
        except (LinkError, TimeoutError, msgspec.DecodeError):
            return
        finally:
            await link.aclose()

    async def _let_in(self, link: StdioLink) -> None:
        # Counted before it knows: from then on nobody ends the log under it.
        self.count += 1
        try:
            await link.send(msgspec.json.encode(_Welcome(True)))
            await serve_stdio(self._daemon, link, anyio.Event())
        finally:
            self.count -= 1
            self._changed.set()

    async def finish(self) -> None:
        """Wait until all have left; then nobody is let in any more (I2)."""
        while self.count:
            self._changed = anyio.Event()
            await self._changed.wait()
        self.turn_away()

    def turn_away(self) -> None:
        """Let nobody in any more."""
        self._listening.cancel()
        if self._data is not None:
            (self._data / SOCKET).unlink(missing_ok=True)


def _listen(data: Path) -> socket.socket | None:
    """The socket of the folder, whose lock the caller has; none if there cannot be one: then nobody shares it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (data / SOCKET).unlink(missing_ok=True)
        with _address(data) as address:
            listener.bind(address)
        os.chmod(data / SOCKET, 0o600)
        listener.listen(WAITING)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        extra = {"event": "folder_not_shared", "error": type(error).__name__}
        logger.warning("no other editor can share %s with this one; give each a --data DIR", data, extra=extra)
        return None
    return listener


def _link(connected: socket.socket, limits: Limits) -> StdioLink:
    number = connected.detach()
    return StdioLink(number, os.dup(number), limits)


# -- a guest -------------------------------------------------------------------------------------------------


class GuestLink(StdioLink):
    """The link to the host."""

    def __init__(self, read_fd: int, write_fd: int, limits: Limits) -> None:
        super().__init__(read_fd, write_fd, limits)
        self._closed = anyio.Event()

    async def run(self) -> None:
        """Return once it is closed; it needs no task of its own."""
        await self._closed.wait()

    async def aclose(self) -> None:
        self._closed.set()
        await super().aclose()


async def enter(settings: Settings, limits: Limits) -> GuestLink | None:
    """A link to the host of the folder; none if none is there.

    Raises:
        LogLocked: The host hosts other agents.
    """
    assert settings.data is not None, "what is in memory is nobody else's"
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(settings.data) as address:
            connected.connect(address)
    except OSError:
        connected.close()
        return None
    number = connected.detach()
    link = GuestLink(number, os.dup(number), limits)
    try:
        with anyio.fail_after(GREETED_S):
            await link.send(msgspec.json.encode(_Greeting(mark_of(settings))))
            welcome = msgspec.json.decode((await link.receive())[0], type=_Welcome)
    except (LinkError, TimeoutError, msgspec.DecodeError):
        await link.aclose()
        return None
    if welcome.is_let_in:
        return link
    await link.aclose()
    raise LogLocked(
        f"another `turnwire stdio` uses {settings.data}, with another agent ({welcome.agent}) or other settings;"
        " give this one a folder of its own with --data DIR, or run `turnwire serve` with all agents and `turnwire"
        " stdio --daemon URL --agent NAME` in each editor"
    )


class Host:
    """Finds the host of a folder for a guest, and becomes it if there is none any more."""

    def __init__(self, settings: Settings, limits: Limits, tasks: TaskGroup, link: GuestLink) -> None:
        self._settings = settings
        self._limits = limits
        self._tasks = tasks
        self._first: GuestLink | None = link
        self._clock = SystemClock()
        self._is_host = False
        self._left = anyio.Event()
        """Our own editor has left."""
        self._signals = anyio.CancelScope()

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[GuestLink, bool]:
        """A link; never to a connection of before. Raises `LogLocked`."""
        link, self._first = self._first, None
        last = self._clock.monotonic() + within_s
        while link is None:
            link = await enter(self._settings, self._limits)
            if link is not None:
                break
            try:
                await self._tasks.start(self._be_host)
            except LogLocked:
                if self._clock.monotonic() >= last:
                    raise
                await self._clock.sleep(self._limits.log_retry_s)
        return link, False

    async def _be_host(self, *, task_status: TaskStatus[None]) -> None:
        """Serve all editors of the folder until they have left, ours among them."""
        settings, limits = self._settings, self._limits
        async with hosted_agents(settings, limits) as agents, open_daemon(settings, limits, agents) as daemon:
            logger.info("the process that had the log is gone; this one has it now", extra={"event": "log_taken"})
            guests = Guests(daemon, settings)
            async with anyio.create_task_group() as tasks:
                await tasks.start(guests.serve)
                self._is_host = True
                task_status.started()
                await self._left.wait()
                await guests.finish()
                await daemon.drain()
                tasks.cancel_scope.cancel()
        self._signals.cancel()

    def leave(self) -> None:
        """Our own editor has left: we end, or stay for the others until they have left."""
        self._left.set()
        if not self._is_host:
            self._signals.cancel()

    async def hear_signals(self, near: StdioLink) -> None:
        """The first signal is like the end of the editor's input; the second does not wait for what follows."""
        with self._signals, anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            is_first = True
            async for number in signals:
                if not is_first:
                    os._exit(128 + number)
                is_first = False
                near.end_input()


async def be_guest(link: GuestLink, near: StdioLink, settings: Settings, limits: Limits) -> None:
    """Carry frames between our editor and the host until the editor leaves. Raises `LogLocked`."""
    async with anyio.create_task_group() as tasks:
        host = Host(settings, limits, tasks, link)
        tasks.start_soon(host.hear_signals, near)
        await RelayProcess(host, Relay(), near, limits).run()
        # It reads to the end, however long we stay for others.
        await near.aclose()
        host.leave()
