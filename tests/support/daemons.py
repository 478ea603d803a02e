"""A real daemon for tests: real sockets, a real agent process, a real SQLite file; in this process or in its own.

`running_daemon` runs it on the test's own loop, so a test can look into its node.
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

from turnwire.limits import Limits
from turnwire.runtime.source import ProcessSource
from turnwire.server.app import create_app, create_routes
from turnwire.server.cluster.joining import joined
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.listener import Tls, listen
from turnwire.server.settings.declared import Settings
from turnwire.testing.patience import WAIT_S

TOKEN = "test-owner-token-0123456789"
SCRIPTED = (sys.executable, "-m", "turnwire.testing.agent")


log_for: Callable[[Path], str] | None = None
"""Where the daemon of a data folder keeps its log, if not there: set by the fixture `log_of_daemons`."""


class Running(NamedTuple):
    """A daemon that listens."""

    url: str
    token: str
    daemon: Daemon
    http2: bool

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self, **options: Any) -> httpx.AsyncClient:
        """An HTTP client with the owner's token, in the version that the daemon is tested with."""
        return self.stranger(headers=self.headers | options.pop("headers", {}), **options)

    def stranger(self, **options: Any) -> httpx.AsyncClient:
        """The same without a token."""
        version: dict[str, bool] = {"http1": False, "http2": True} if self.http2 else {}
        return httpx.AsyncClient(base_url=self.url, timeout=30, **version, **options)


@asynccontextmanager
async def running_daemon(
    data: Path,
    *,
    http2: bool = False,
    agent: Sequence[str] = SCRIPTED,
    limits: Limits | None = None,
    server_limits: Limits | None = None,
    tls: Tls | None = None,
    **settings: Any,
) -> AsyncGenerator[Running]:
    """A daemon over the log in `data`, listening on a free port. On exit it is stopped without a drain."""
    limits = limits or Limits()
    usual: dict[str, Any] = {"token": TOKEN, "cwd": (data.parent,)}
    if log_for is not None and settings.get("durability") != "memory":
        usual["log"] = log_for(data)
    chosen = replace(Settings(), host="127.0.0.1", port=0, data=data, **usual | settings)
    source = ProcessSource(agent, limits=limits)
    stop = anyio.Event()
    urls: list[str] = []
    ready = anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    async with open_daemon(chosen, limits, source) as daemon, anyio.create_task_group() as tasks:
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
                http2=http2,
                ready=listening,
                stop=stop,
                limits=server_limits,
            )

        tasks.start_soon(serve)
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        try:
            yield Running(urls[0], TOKEN, daemon, http2)
        finally:
            daemon.stopping.set()
            stop.set()
