"""An agent hosted for the one client on stdin and stdout: no listener, a log that outlives the process.

The log is in a folder of its own, so that a daemon of the same user is not in the way. A predecessor that still
lets its turns end is waited for. It ends when the client has left and its turns have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from turnwire.cli.agent_source import agent_source
from turnwire.cli.config import settings_from
from turnwire.cli.daemon import check_folders, drain, log_secrets, stop_on_signal, traced
from turnwire.cli.failure import tell
from turnwire.errors import LogLocked
from turnwire.limits import Limits
from turnwire.link.process import adopt_orphans
from turnwire.link.stdio import open_pipes
from turnwire.runtime.clock import SystemClock
from turnwire.runtime.services.roots import close_directory
from turnwire.runtime.source import AgentSource
from turnwire.server.acp.stdio import serve_stdio
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.server.telemetry.logs import configure_logging

FOLDER = "stdio"
"""Below the data folder of the settings, unless the command line names another."""


def run_host(flags: dict[str, Any], agent: Sequence[str]) -> None:
    """Serve the client until it leaves. Raises `ConfigError`, `LogError` when it cannot start."""
    # An editor opens folders as its user does; where it was started itself says nothing.
    loaded = settings_from({**flags, "cwd": flags.get("cwd") or ("/",)}, agent)
    # An editor starts us in the agent's place: the agent sees what it would see without us.
    settings = replace(loaded.settings, agent_env_all=True)
    if settings.data is not None and flags.get("data") is None:
        settings = replace(settings, data=settings.data / FOLDER)
    check_folders(settings)
    if settings.data is not None and flags.get("data") is None:
        # The folder above is a daemon's, and sessions may work anywhere.
        close_directory(settings.data.parent)
    configure_logging(settings.log_format, settings.log_level, secrets=log_secrets(settings))
    adopt_orphans()
    with traced():
        anyio.run(partial(_host, settings, loaded.limits), backend_options={"use_uvloop": True})


async def _host(settings: Settings, limits: Limits) -> None:
    async with AsyncExitStack() as stack:
        link = open_pipes(limits)
        stack.push_async_callback(link.aclose)
        source = await stack.enter_async_context(agent_source(settings, limits))
        daemon = await _opened(stack, settings, limits, source)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal, daemon, stop)
            await serve_stdio(daemon, link, stop)
            if not daemon.stopping.is_set():
                tasks.start_soon(drain, daemon, stop)
            await stop.wait()
            tasks.cancel_scope.cancel()


async def _opened(stack: AsyncExitStack, settings: Settings, limits: Limits, source: AgentSource) -> Daemon:
    """The daemon, once its folder is free. Raises `LogLocked` if somebody stays there."""
    clock = SystemClock()
    last = clock.monotonic() + limits.drain_s + limits.stop_eof_s + limits.stop_term_s + limits.stop_kill_s
    is_told = False
    while True:
        try:
            return await stack.enter_async_context(open_daemon(settings, limits, source))
        except LogLocked:
            if clock.monotonic() >= last:
                raise
        if not is_told:
            is_told = True
            tell(f"another process uses {settings.data}; waiting for it to end")
        await clock.sleep(limits.log_retry_s)
