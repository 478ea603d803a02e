"""A daemon on the test's own loop, with real sockets and a real SQLite file, so that a test can inspect its node.

Its scripted agent is a task of the test, because starting a process costs more than most tests. A test that needs
exit statuses, standard error or signals uses a process.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx

from turnwire.hosting.source import AgentSource, ProcessSource
from turnwire.ids import UNNAMED
from turnwire.limits import Limits
from turnwire.server.access.login import PAGE_KEY
from turnwire.server.app import create_app, create_routes
from turnwire.server.cluster.joining import joined
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.listener import Tls, listen
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire_testing.agent import read_arguments
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.agent import ScriptedSource
from turnwire_testing.scripted.host import POLL_S, Gates

TOKEN = "test-owner-token-0123456789"
SCRIPTED = (sys.executable, "-m", "turnwire_testing.agent")


OWN_PROCESS: dict[str, Any] = {"agents": (AgentEntry(name=UNNAMED, process="session"),)}
"""Settings of a daemon that gives each session an agent process."""

log_for: Callable[[Path], str] | None = None
"""Location of the log of a data folder's daemon, if elsewhere: set by the fixture `log_of_daemons`."""


class FileGates(Gates):
    """Gates of a scripted agent that a test opens by creating a file, as for an agent process."""

    async def wait(self, name: str) -> None:
        path = anyio.Path(name)
        while not await path.exists():  # noqa: ASYNC110 nothing tells us that a file has appeared
            await anyio.sleep(POLL_S)


@asynccontextmanager
async def agent_source(agent: Sequence[str], limits: Limits, *, as_process: bool) -> AsyncGenerator[AgentSource]:
    """Start agents of this command; a scripted one as tasks of this process, unless a process is asked for."""
    if as_process or tuple(agent[: len(SCRIPTED)]) != SCRIPTED:
        yield ProcessSource(agent, limits=limits)
        return
    async with ScriptedSource(*read_arguments(agent[len(SCRIPTED) :])) as source:
        source.gates = FileGates()
        yield source


class Running(NamedTuple):
    """A daemon that listens."""

    url: str
    token: str
    daemon: Daemon

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return an HTTP client with the owner's token."""
        return self.stranger(headers=self.headers | options.pop("headers", {}), **options)

    def stranger(self, **options: Any) -> httpx.AsyncClient:
        """Return an HTTP client without a token. Like a browser it stores both halves of a login, and sends
        them.
        """
        client = httpx.AsyncClient(base_url=self.url, timeout=30, **options)

        async def store(answer: httpx.Response) -> None:
            if PAGE_KEY in answer.headers:
                client.headers[PAGE_KEY] = answer.headers[PAGE_KEY]

        client.event_hooks["response"].append(store)
        return client


@asynccontextmanager
async def running_daemon(
    data: Path,
    *,
    agent: Sequence[str] = SCRIPTED,
    as_process: bool = False,
    limits: Limits | None = None,
    server_limits: Limits | None = None,
    tls: Tls | None = None,
    **settings: Any,
) -> AsyncGenerator[Running]:
    """Run a daemon over the log in `data`, listening on a free port. On exit it is stopped without a drain."""
    limits = limits or Limits()
    usual: dict[str, Any] = {"token": TOKEN, "cwd": (data.parent,)}
    if log_for is not None:
        usual["log"] = log_for(data)
    chosen = replace(Settings(), host="127.0.0.1", port=0, data=data, **usual | settings)
    stop = anyio.Event()
    urls: list[str] = []
    ready = anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    async with (
        agent_source(agent, limits, as_process=as_process) as source,
        open_daemon(chosen, limits, source) as daemon,
        anyio.create_task_group() as tasks,
    ):
        routes = create_routes(daemon)

        async def serve() -> None:
            async with joined(daemon, routes, tls):
                await serve_clients()

        async def serve_clients() -> None:
            await listen(
                create_app(daemon, routes),
                host="127.0.0.1",
                port=0,
                tls=tls,
                ready=listening,
                stop=stop,
                limits=server_limits,
                make_room=daemon.open_streams.drop_one,
            )

        tasks.start_soon(serve)
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        try:
            yield Running(urls[0], TOKEN, daemon)
        finally:
            daemon.stopping.set()
            stop.set()
