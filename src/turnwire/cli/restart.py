"""`turnwire restart`: replace the daemon's program, for an upgrade or new settings, while turns continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import click

from turnwire.cli.commands import Command
from turnwire.cli.output import printable
from turnwire.errors import ConfigError
from turnwire.hosting.local_daemon import LocalDaemon, at_url, only_one, running

HAND_OVER = signal.SIGUSR2
"""The signal that asks a daemon to start its program again and leave its agents to it."""
STARTED_S = 60.0
"""Time for the new program to accept requests."""
LOOKED_S = 0.05
"""Interval of looking for it: its record is a file."""


@click.command(cls=Command, examples="turnwire restart\nturnwire restart --url http://127.0.0.1:4170")
@click.option("--url", help="The daemon's address, if several run.")
@click.option("--data", type=click.Path(path_type=Path), help="Or its data folder.")
def restart(url: str | None, data: Path | None) -> None:
    """Restart the daemon; its turns continue.

    Its agents continue, and clients see a pause.

    The new program is the one that is installed now, with the same arguments. Turns of agents that are no processes
    of the daemon, at an address for example, end.
    """
    found = running(os.environ)
    daemon = at_url(url, found) if url is not None else only_one(found, data)
    if daemon is None:
        raise ConfigError("no such daemon of yours runs on this machine; start one with: turnwire serve")
    try:
        os.kill(daemon.pid, HAND_OVER)
    except ProcessLookupError:
        raise ConfigError("the daemon ended before it could restart; start one with: turnwire serve") from None
    click.echo(f"restarted: {printable(anyio.run(_next, daemon))}")


async def _next(before: LocalDaemon) -> str:
    """Wait for the daemon's new program and return its address. The process id remains the same."""
    with anyio.move_on_after(STARTED_S):
        while True:
            for each in running(os.environ):
                if each.pid == before.pid and each.started != before.started:
                    return each.url
            await anyio.sleep(LOOKED_S)
    raise ConfigError("the daemon did not start again in time; its log says why")
