"""`turnwire nodes`: list the nodes that share a log, drain one, declare one gone, or move the sessions of a place.

It reads the database itself, so it also works if one node or all of them are down.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import click

from turnwire.cli.commands import Command, Group
from turnwire.cli.output import moment, print_json, print_table, tell
from turnwire.clock import SystemClock
from turnwire.errors import ConfigError, LocalProtocolError
from turnwire.limits import Limits
from turnwire.log.address import HOW, NO_DRIVER, is_database
from turnwire.server.settings.sources import load_settings

if TYPE_CHECKING:
    # Its driver may be absent.
    from turnwire.log.postgres_nodes import NodeRow, Nodes

EXAMPLES = """
turnwire nodes list --log postgresql://turnwire@db.example/turnwire
turnwire nodes drain web-2       let its turns end, and stop it
turnwire nodes bury web-3        its machine is off: let others take over what it had
turnwire nodes move attic office    no node has the place attic any more: its sessions go on in the office
"""
LOOKED_AGAIN_BEATS = 2.5
"""Heartbeats after which every live node has sent one."""

log_option = click.option(
    "--log", metavar="ADDRESS", help="The log that the nodes share; also TURNWIRE_LOG, or the settings' file."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group, examples=EXAMPLES)
def nodes() -> None:
    """List the nodes that share a log, drain one, or move sessions."""


@nodes.command("list", cls=Command, examples="turnwire nodes list\nturnwire nodes list --json")
@log_option
@json_option
def list_nodes(log: str | None, as_json: bool) -> None:
    """List the nodes that were not declared gone.

    The list reads the database twice, some seconds apart: a node without a heartbeat in between is silent.
    """
    found = _run(_look_twice, log)
    if as_json:
        print_json([{**each._asdict(), "beats": is_beating} for each, is_beating in found])
        return
    print_table(
        ("node", "life", "state", "place", "url", "version", "started", "sessions", "unsettled"),
        [_row(*each) for each in found],
    )
    if not found:
        tell("no nodes")


def _row(node: NodeRow, is_beating: bool) -> list[str]:
    state = "alone" if node.alone else "draining" if node.draining else "beats"
    numbers = [str(node.sessions), str(node.unsettled)]
    return [
        *(node.name, str(node.life), state if is_beating or node.alone else "silent", node.place, node.url),
        *(node.version, moment(node.started_ms), *numbers),
    ]


@nodes.command(cls=Command, examples="turnwire nodes drain web-2")
@click.argument("name")
@log_option
def drain(name: str, log: str | None) -> None:
    """Let a node's turns end, hand over its sessions, and stop it, like SIGTERM on its machine."""
    for each in _run(partial(_drain, name), log):
        tell(f"{each.name} (life {each.life}) was asked to end; it has {each.sessions} sessions")


@nodes.command(cls=Command, examples="turnwire nodes bury web-3")
@click.argument("name")
@log_option
def bury(name: str, log: str | None) -> None:
    """Declare a node gone, so that others take over its sessions at once.

    Use it for a node whose machine is off. A node that still sends heartbeats is rejected: drain or stop it
    instead.
    """
    for each in _run(partial(_bury, name), log):
        tell(f"{each.name} (life {each.life}) is gone; {each.unsettled} of its sessions had a turn or prompts")


@nodes.command(cls=Command, examples="turnwire nodes move old-office office")
@click.argument("old")
@click.argument("new")
@log_option
def move(old: str, new: str, log: str | None) -> None:
    """Move the sessions of a place without nodes to another place.

    The folders in which their agents worked must exist there under the same paths.
    """
    tell(f"{_run(partial(_move, old, new), log)} sessions of {old} are of {new} now")


# -- what they do ----------------------------------------------------------------------------------------------


def _run(what: Callable[[Nodes, Limits], Any], log: str | None) -> Any:
    flags = {} if log is None else {"log": log}
    loaded = load_settings(flags, os.environ)
    if not is_database(loaded.settings.log):
        raise ConfigError(f"only a log in PostgreSQL is shared by nodes; give its address: --log {HOW}")

    async def run() -> Any:
        async with _open(loaded.settings.log, loaded.limits) as found:
            return await what(found, loaded.limits)

    return anyio.run(run, backend_options={"use_uvloop": True})


@asynccontextmanager
async def _open(address: str, limits: Limits) -> AsyncGenerator[Nodes]:
    try:
        from turnwire.log.postgres_nodes import open_nodes
    except ImportError:
        raise ConfigError(NO_DRIVER) from None
    async with open_nodes(address, limits) as found:
        yield found


async def _look_twice(found: Nodes, limits: Limits) -> list[tuple[NodeRow, bool]]:
    """Return every node, and whether it has sent a heartbeat meanwhile."""
    before = {each.life: each.beat for each in await found.list()}
    if before:
        await SystemClock().sleep(LOOKED_AGAIN_BEATS * limits.beat_s)
    return [(each, each.beat != before.get(each.life, each.beat)) for each in await found.list()]


async def _drain(name: str, found: Nodes, limits: Limits) -> list[NodeRow]:
    chosen = [each for each in _named(name, await found.list()) if not each.alone]
    if not chosen:
        raise LocalProtocolError(f"{name} has its log for itself; stop it by SIGTERM")
    for each in chosen:
        await found.drain(each)
    return chosen


async def _bury(name: str, found: Nodes, limits: Limits) -> list[NodeRow]:
    looked = await _look_twice(found, limits)
    _named(name, [each for each, _ in looked])
    silent = [each for each, is_beating in looked if each.name == name and not is_beating and not each.alone]
    gone = [each for each in silent if await found.bury(each)]
    if not gone:
        raise LocalProtocolError(f"{name} still runs; stop it first, or let it end: turnwire nodes drain {name}")
    return gone


async def _move(old: str, new: str, found: Nodes, limits: Limits) -> int:
    if not new:
        raise LocalProtocolError("a place has a name; give that of the nodes that shall have the sessions")
    there = [each.name for each in await found.list() if each.place == old]
    if there:
        raise LocalProtocolError(
            f"{', '.join(there)} still has the place {old}; end it first: turnwire nodes drain"
        )
    return await found.move(old, new)


def _named(name: str, listed: list[NodeRow]) -> list[NodeRow]:
    chosen = [each for each in listed if each.name == name]
    if not chosen:
        known = ", ".join(sorted({each.name for each in listed})) or "none"
        raise LocalProtocolError(f"there is no node {name!r} that is not gone; there is: {known}")
    return chosen
