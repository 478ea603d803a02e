"""`turnwire doctor`: is everything in place?

Takes the same flags as `turnwire serve`; prints a line per check and ends with 1 if one of them failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import click

from turnwire.cli.checks import Check, check_agent, check_daemon, check_folder, check_machine, check_port
from turnwire.cli.examples import WithAgent, agent_of
from turnwire.cli.failing import DOCTOR_FAILED, printable
from turnwire.cli.flags import setting_options, settings_from
from turnwire.cli.reaching import URL_VARIABLE, Reach, check_url, own_token, usual_url
from turnwire.cli.showing import print_json
from turnwire.server.settings.sources import Loaded

EXAMPLES = """
turnwire doctor                      this machine, the settings, the built-in agent, a daemon that runs
turnwire doctor -- my-agent --flag   does this agent start and answer?
turnwire doctor --json
"""
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(cls=WithAgent, examples=EXAMPLES, params=setting_options())
@click.option("--url", metavar="URL", help="The daemon's address; also TURNWIRE_URL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per check.")
@click.pass_context
def doctor(ctx: click.Context, url: str | None, as_json: bool, **flags: Any) -> None:
    """Check this machine, the settings and the agent.

    Every line says ok, warn or fail, and what to do. The exit code is 1 if one of them failed.
    """
    loaded = settings_from(flags, agent_of(ctx))
    url = url or os.environ.get(URL_VARIABLE)
    if url:
        check_url(url)
    if anyio.run(_check, loaded, url, as_json):
        sys.exit(DOCTOR_FAILED)


async def _check(loaded: Loaded, url: str | None, as_json: bool) -> bool:
    """Print every check; gives whether one failed."""
    has_failed = False
    async for each in _all(loaded, url):
        has_failed |= each.level == "fail"
        _print(each, as_json)
    return has_failed


async def _all(loaded: Loaded, url: str | None) -> AsyncGenerator[Check]:
    settings, limits = loaded.settings, loaded.limits
    for each in (*check_machine(), *check_folder(settings)):
        yield each
    url = url or (usual_url(settings) if settings.port else None)
    daemon = None if url is None else await check_daemon(Reach(url, own_token(url, settings), settings.data))
    yield await check_port(settings, limits, has_daemon=daemon is not None and daemon.level != "warn")
    yield await check_agent(settings, limits)
    if daemon is not None:
        yield daemon


def _print(check: Check, as_json: bool) -> None:
    advice = check.next if check.level != "ok" else ""
    if as_json:
        print_json({"level": check.level, "name": check.name, "words": check.words, "next": advice})
        return
    level = click.style(f"{check.level:<5}", fg=COLOURS[check.level])
    click.echo(f"{level}{check.name:<8}{printable(check.words)}")
    if advice:
        click.echo(f"             next: {printable(advice)}")
