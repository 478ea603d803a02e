"""The daemon for one client on stdin and stdout: what `turnwire stdio` hosts an agent with.

Its log is in a folder of its own, so that a daemon of the same user is not in the way, and a predecessor that still
lets its turns end is waited for. One that serves an editor is shared with it (`turnwire.cli.shared_folder`). It
ends when its client and all guests have left and their turns have ended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskStatus

from turnwire.cli.agent_source import agent_folder, hosted_agents
from turnwire.cli.config import settings_from
from turnwire.cli.daemon import SIGNALS, check_folders, drain, end_now, log_secrets, traced
from turnwire.cli.failure import tell
from turnwire.cli.shared_folder import GuestLink, Guests, be_guest, enter
from turnwire.errors import LinkError, LogLocked, RemoteProtocolError
from turnwire.limits import Limits
from turnwire.link.local_daemon import running
from turnwire.link.process import adopt_orphans
from turnwire.link.stdio import StdioLink, open_pipes
from turnwire.runtime.agent_pool import HostedAgent
from turnwire.runtime.clock import SystemClock
from turnwire.runtime.services.roots import close_directory
from turnwire.server.acp.rpc import failure_of
from turnwire.server.acp.stdio import serve_stdio
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.server.telemetry.logs import configure_logging
from turnwire.wire.jsonrpc import Request, decode

logger = logging.getLogger(__name__)

FOLDER = "stdio"
"""Below the data folder, with a folder for each agent in it, unless the command line names another."""


def run_host(flags: dict[str, Any], agent: Sequence[str]) -> None:
    """Serve the client until it leaves. Raises `ConfigError`, `LogError` when it cannot start."""
    # An editor opens folders as its user does; where it was started itself says nothing.
    loaded = settings_from({**flags, "cwd": flags.get("cwd") or ("/",)}, agent)
    # It starts us in the agent's place: the agent sees what it would see without us.
    settings = replace(loaded.settings, agent_env_all=True)
    if loaded.is_default("log_level"):
        # Editors show what comes on stderr, some of them as errors.
        settings = replace(settings, log_level="warning")
    above = settings.data if flags.get("data") is None else None
    if above is not None:
        # A folder for each agent: an editor has several side by side, and a log has one process.
        settings = replace(settings, data=above / FOLDER / agent_folder(settings.hosted()[0]))
    check_folders(settings)
    if above is not None:
        # The folder above is a daemon's, and sessions may work anywhere.
        close_directory(above)
    configure_logging(settings.log_format, settings.log_level, secrets=log_secrets(settings))
    adopt_orphans()
    with traced():
        anyio.run(partial(_host, settings, loaded.limits), backend_options={"use_uvloop": True})


async def _host(settings: Settings, limits: Limits) -> None:
    async with AsyncExitStack() as stack:
        link = open_pipes(limits)
        stack.push_async_callback(link.aclose)
        agents = await stack.enter_async_context(hosted_agents(settings, limits))
        try:
            opened = await _opened(stack, settings, limits, agents)
        except LogLocked as error:
            await _refuse(link, error, limits)
            raise
        if not isinstance(opened, Daemon):
            await be_guest(opened, link, settings, limits)
            return
        stop, guests = anyio.Event(), Guests(opened, settings)
        async with anyio.create_task_group() as tasks:
            await tasks.start(guests.serve)
            await tasks.start(_leave_on_signal, opened, link, guests, stop)
            await serve_stdio(opened, link, stop)
            # It reads to the end, however long others stay.
            await link.aclose()
            if not opened.stopping.is_set():
                await guests.finish()
                tasks.start_soon(drain, opened, stop)
            await stop.wait()
            tasks.cancel_scope.cancel()


async def _leave_on_signal(
    daemon: Daemon,
    link: StdioLink,
    guests: Guests,
    stop: anyio.Event,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """As `stop_on_signal`, but other editors are not left alone: for them the first signal only ends our own."""
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        is_leaving = False
        async with anyio.create_task_group() as tasks:
            async for number in signals:
                if daemon.stopping.is_set() or is_leaving:
                    end_now(number)
                if guests.count:
                    is_leaving = True
                    logger.info(
                        "other editors use this log; it ends when they have left; a second signal does not wait",
                        extra={"event": "stays_for_guests", "guests": guests.count},
                    )
                    link.end_input()
                else:
                    guests.turn_away()
                    tasks.start_soon(drain, daemon, stop)


async def _refuse(link: StdioLink, error: LogLocked, limits: Limits) -> None:
    """Let the client hear why it is not served: by the answer to its first request, if it has one."""
    with suppress(LinkError), anyio.move_on_after(limits.opening_s):
        while True:
            for frame in await link.receive():
                with suppress(RemoteProtocolError):
                    message = decode(frame)
                    if isinstance(message, Request):
                        await link.send(failure_of(message.id, error))
                        await link.flush()
                        return


async def _opened(
    stack: AsyncExitStack, settings: Settings, limits: Limits, agents: Sequence[HostedAgent]
) -> Daemon | GuestLink:
    """The daemon, once its folder is free, or a link to the process that has it.

    Raises:
        LogLocked: Somebody stays there who cannot be shared with.
    """
    clock = SystemClock()
    last = clock.monotonic() + limits.drain_s + limits.stop_eof_s + limits.stop_term_s + limits.stop_kill_s
    is_told = False
    while True:
        try:
            return await stack.enter_async_context(open_daemon(settings, limits, agents))
        except LogLocked:
            if (guest := await enter(settings, limits)) is not None:
                return guest
            _check_no_daemon(settings)
            if clock.monotonic() >= last:
                raise
        if not is_told:
            is_told = True
            tell(f"another process uses {settings.data}; waiting for it to end")
        await clock.sleep(limits.log_retry_s)


def _check_no_daemon(settings: Settings) -> None:
    """Raises `LogLocked` at once if the folder is a running daemon's: that does not end by itself."""
    assert settings.data is not None, "what is in memory is nobody else's"
    found = [each for each in running(os.environ) if each.data == str(settings.data.absolute())]
    if found:
        raise LogLocked(
            f"{settings.data} is used by the daemon at {found[0].url}; use that with `turnwire stdio --daemon"
            f" {found[0].url}`, or give this one a folder of its own with --data DIR"
        )
