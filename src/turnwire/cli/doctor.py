"""`turnwire doctor`: checks of the machine, the settings and the agents.

Each check function reports the state of one thing and what to do. One line is printed for each, and the exit code
is 1 if one failed. It changes nothing: test data is removed before it returns.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import click
import msgspec

from turnwire import __version__
from turnwire.cli.agent_source import agent_of_entry, in_words
from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.config import setting_options, settings_from
from turnwire.cli.credentials import kept_records
from turnwire.cli.output import (
    DOCTOR_FAILED,
    MAKE_ROOM,
    foreign_folder,
    is_full,
    leading,
    log_trouble,
    print_json,
    printable,
    progress,
)
from turnwire.cli.reach import Reach, check_url, local_daemon, open_http, own_token, usual_url
from turnwire.client.http import TOKEN_VARIABLE
from turnwire.errors import ConfigError, LogError, LogFull, TurnwireError, Unauthenticated
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.local_daemon import TOKEN_FILE, URL_VARIABLE, LocalDaemon, read_token
from turnwire.hosting.source import AgentSource
from turnwire.ids import UNNAMED
from turnwire.limits import Limits
from turnwire.log.address import NO_DRIVER, is_database, shown
from turnwire.server.listener import open_listener
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import Loaded

EXAMPLES = """
turnwire doctor                      this machine, the settings, the built-in agent, a daemon that runs
turnwire doctor -- my-agent --flag   does this agent start and answer?
turnwire doctor --json
"""

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
OLDEST_SQLITE = (3, 35, 0)
"""The first version with all features that the log's statements use."""
LATE_S = 60.0
"""Seconds without a delivery after which a webhook has trouble with at least that session."""


class Check(NamedTuple):
    """The result of one check."""

    level: Literal["ok", "warn", "fail"]
    name: str
    words: str
    next: str = ""


def check_machine() -> Iterator[Check]:
    """Check Python and SQLite."""
    is_new = sys.version_info >= (3, 11)
    yield Check("ok" if is_new else "fail", "python", platform.python_version(), "use Python 3.11 or newer")
    is_new = sqlite3.sqlite_version_info >= OLDEST_SQLITE
    yield Check(
        "ok" if is_new else "fail", "sqlite", sqlite3.sqlite_version, "use a Python with SQLite 3.35 or newer"
    )


def check_folder(settings: Settings) -> Check:
    """Check the folder of the log: it accepts a database with write-ahead logging."""
    data = settings.data
    if data is None:
        return Check("warn", "data", "in memory: sessions are gone when the daemon ends", "set log to sqlite")
    try:
        place = next(each for each in (data, *data.absolute().parents) if each.is_dir())
        if data.is_dir() and not os.access(data, os.R_OK | os.W_OK | os.X_OK):
            return Check("fail", "data", foreign_folder(data))
        with tempfile.TemporaryDirectory(dir=place, prefix=".turnwire-doctor-") as folder:
            mode = _journal_mode(Path(folder) / "try.db")
    except (OSError, sqlite3.Error) as error:
        if is_full(error):
            return Check("fail", "data", f"the disk of {data} is full", f"make room on the disk of {data}")
        return Check("fail", "data", f"{data} cannot be written", "make it writable, or give --data DIR")
    if mode != "wal":
        return Check(
            "fail", "data", f"{data} cannot be locked as SQLite needs it", "give --data DIR on a local disk"
        )
    return Check("ok", "data", str(data) if place == data else f"{data}, created at the first start")


async def check_tokens(settings: Settings, limits: Limits) -> AsyncGenerator[Check]:
    """Check that there are credentials, and that commands can use them."""
    if settings.data is None:
        return
    try:
        tokens = await kept_records(settings.log, settings.data, limits)
        own = read_token(settings.data / TOKEN_FILE)
    except LogError:
        # The check of the log reports the database's problem.
        return
    except ConfigError as error:
        yield Check("fail", "tokens", str(error))
        return
    where = "the database" if is_database(settings.log) else "tokens.json"
    words = f"{len(tokens)} in {where}" if tokens else "none yet; the first start makes one"
    yield Check("ok", "tokens", f"{words}; {'one' if own else 'none yet'} for your own commands")


def _journal_mode(path: Path) -> str:
    database = sqlite3.connect(path)
    try:
        mode = database.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        database.execute("CREATE TABLE tried (n INTEGER)")
        database.commit()
    finally:
        database.close()
    return str(mode)


async def check_database(settings: Settings, limits: Limits) -> AsyncGenerator[Check]:
    """Check that a log in PostgreSQL could be used as it is."""
    if not is_database(settings.log):
        return
    where = shown(settings.log)
    try:
        from turnwire.log.postgres import inspect_database
    except ImportError:
        yield Check("fail", "log", NO_DRIVER)
        return
    try:
        with progress(f"asking {where}"):
            facts, made = await inspect_database(settings.log, limits)
    except TurnwireError as error:
        yield Check("fail", "log", str(error))
        return
    tables = f"tables of format {made}" if made else "no tables yet; the first start makes them"
    yield Check("ok", "log", f"{where}: PostgreSQL {facts.release}, {facts.encoding}, {tables}")
    if facts.synchronous_commit not in ("on", "remote_apply"):
        words = f"the database sets synchronous_commit to {facts.synchronous_commit}; turnwire commits with on"
        yield Check("warn", "log", words, "nothing, unless other programs rely on it")
    disks = f"its own disk and a standby of {facts.standbys}" if facts.standbys else "its own disk"
    yield Check("ok", "log", f"a commit waits for {disks}")


async def check_port(settings: Settings, limits: Limits, has_daemon: bool) -> Check:
    """Check that a daemon could listen."""
    where = f"{settings.host} port {settings.port}"
    try:
        open_listener(settings.host, settings.port, limits).close()
    except ConfigError as error:
        if has_daemon:
            return Check("ok", "port", f"{where}: the daemon listens there")
        return Check("fail", "port", str(error))
    return Check("ok", "port", f"{where} is free")


async def check_agents(settings: Settings, limits: Limits) -> AsyncGenerator[Check]:
    """Check that each agent starts and answers `initialize`."""
    for entry in settings.hosted():
        with progress(f"trying the agent {in_words(entry)}"):
            tried = await _check_agent(entry, settings, limits)
        yield tried


async def _check_agent(entry: AgentEntry, settings: Settings, limits: Limits) -> Check:
    shown = in_words(entry) if entry.name == UNNAMED else f"{entry.name} ({in_words(entry)})"
    try:
        async with AsyncExitStack() as stack:
            version = await _speaks(await agent_of_entry(stack, entry, settings, limits), limits)
    except (TurnwireError, ExceptionGroup) as error:
        why = leading(error)
        advice = "run it by hand: it should wait for JSON on its stdin"
        if entry.url is not None:
            advice = "check its address and its token, and that it runs there"
        return Check("fail", "agent", f"{shown}: {why}", advice)
    return Check("ok", "agent", f"{shown}: starts, and speaks ACP version {version}")


async def _speaks(source: AgentSource, limits: Limits) -> int:
    """Return the version of ACP that an agent answers with."""
    connection = AgentConnection(await source.connect(), limits)
    versions: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        try:
            versions.append((await connection.handshake()).version)
        finally:
            tasks.cancel_scope.cancel()
    return versions[0]


class _Version(msgspec.Struct):
    version: str | None = None


class _Readiness(msgspec.Struct):
    reason: str | None = None


async def check_daemon(reach: Reach) -> Check:
    """Check that a daemon answers, accepts the token, and has this version."""
    async with open_http(reach) as http:
        try:
            await http.ask("GET", "/health", patient=False)
        except TurnwireError as error:
            return Check("warn", "daemon", str(error), "turnwire serve")
        try:
            answer = await http.ask("GET", "/capabilities", patient=False)
            ready = await http.ask("GET", "/ready", patient=False, accepts={503})
        except Unauthenticated as error:
            return Check("fail", "daemon", f"{reach.url} rejects our token", str(error))
        except TurnwireError as error:
            return Check("fail", "daemon", f"{reach.url} does not answer as a daemon should", str(error))
    why = ready.read(_Readiness).reason
    if why is not None:
        advice = MAKE_ROOM if why == LogFull.code else "look at the log lines of the daemon"
        return Check("fail", "daemon", f"{reach.url} accepts no prompts: {log_trouble(why)}", advice)
    theirs = answer.read(_Version).version
    if theirs not in (None, __version__):
        advice = "restart the daemon, or update this one"
        return Check("warn", "daemon", f"{reach.url} is turnwire {theirs}, this is {__version__}", advice)
    return Check("ok", "daemon", f"{reach.url} answers")


class _Hosted(msgspec.Struct):
    name: str
    label: str
    state: str
    why: str | None = None


class _AllHosted(msgspec.Struct):
    agents: list[_Hosted]


async def check_hosted(reach: Reach) -> AsyncGenerator[Check]:
    """Check the agents of the running daemon, as it reports them."""
    async with open_http(reach) as http:
        try:
            found = (await http.ask("GET", "/agents", patient=False)).read(_AllHosted).agents
        except TurnwireError as error:
            yield Check("fail", "agent", f"{reach.url} does not list its agents: {error}")
            return
    for each in found:
        label = "" if each.label == each.name else f" ({each.label})"
        words = f"{each.name}{label} of {reach.url}: {each.why or each.state.replace('_', ' ')}"
        yield Check("fail" if each.state == "unavailable" else "ok", "agent", words, "turnwire agents")


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    origin: str
    state: str
    sessions_behind: int
    lag_seconds: float
    last_status: int | None = None


class _Webhooks(msgspec.Struct):
    webhooks: list[_Webhook]


async def check_webhooks(reach: Reach) -> AsyncGenerator[Check]:
    """Check that each webhook of a running daemon accepts its deliveries."""
    async with open_http(reach) as http:
        try:
            answer = await http.ask("GET", "/webhooks", patient=False)
        except TurnwireError:
            # The daemon is older, or the token is not an owner's; neither is a fault of a webhook.
            return
    for each in answer.read(_Webhooks).webhooks:
        if each.state == "working" and each.lag_seconds < LATE_S:
            yield Check("ok", "webhook", f"{each.name} is told of all that happens")
            continue
        told = "nobody answered" if each.last_status is None else f"its last answer was {each.last_status}"
        words = f"{each.name} is {each.state}: {told}, {each.sessions_behind} sessions wait"
        yield Check("warn", "webhook", words, f"look at {each.origin}")


@click.command(cls=WithAgent, examples=EXAMPLES, params=setting_options())
@click.option("--url", metavar="URL", help="The daemon's address; also TURNWIRE_URL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per check.")
@click.pass_context
def doctor(ctx: click.Context, url: str | None, as_json: bool, **flags: Any) -> None:
    """Check this machine, the settings and the agent.

    Every line reports ok, warn or fail, and what to do. The exit code is 1 if a check failed.
    """
    agent = agent_of(ctx)
    loaded = settings_from(flags, agent)
    url = url or os.environ.get(URL_VARIABLE)
    if url:
        check_url(url)
    has_own_agents = bool(agent or flags["agents"] or flags["config"])
    if anyio.run(_check, loaded, url, flags["data"], has_own_agents, as_json):
        sys.exit(DOCTOR_FAILED)


async def _check(loaded: Loaded, url: str | None, data: str | None, has_own_agents: bool, as_json: bool) -> bool:
    """Print every check; return whether one failed."""
    has_failed = False
    async for each in _all(loaded, url, data, has_own_agents):
        has_failed |= each.level == "fail"
        _print(each, as_json)
    return has_failed


async def _all(loaded: Loaded, url: str | None, data: str | None, has_own_agents: bool) -> AsyncGenerator[Check]:
    settings, limits = loaded.settings, loaded.limits
    mine = local_daemon(url, settings, data)
    if mine is not None and mine.data is not None:
        settings = replace(settings, data=Path(mine.data))
    for each in (*check_machine(), check_folder(settings)):
        yield each
    async for each in check_tokens(settings, limits):
        yield each
    async for each in check_database(settings, limits):
        yield each
    reach = _reach(url, settings, mine)
    daemon = None if reach is None else await check_daemon(reach)
    is_running = daemon is not None and daemon.level != "warn"
    if mine is None:
        yield await check_port(settings, limits, has_daemon=is_running)
    if reach is not None and is_running and not has_own_agents:
        async for each in check_hosted(reach):
            yield each
    else:
        async for each in check_agents(settings, limits):
            yield each
    if reach is None or daemon is None:
        return
    yield daemon
    if daemon.level == "ok":
        async for each in check_webhooks(reach):
            yield each


def _reach(url: str | None, settings: Settings, mine: LocalDaemon | None) -> Reach | None:
    token = os.environ.get(TOKEN_VARIABLE)
    if mine is not None:
        return Reach(mine.url, token or settings.token or mine.key(), settings.data)
    url = url or (usual_url(settings) if settings.port else None)
    return None if url is None else Reach(url, token or own_token(url, settings), settings.data)


def _print(check: Check, as_json: bool) -> None:
    advice = check.next if check.level != "ok" else ""
    if as_json:
        print_json({"level": check.level, "name": check.name, "words": check.words, "next": advice})
        return
    level = click.style(f"{check.level:<5}", fg=COLOURS[check.level])
    click.echo(f"{level}{check.name:<8}{printable(check.words)}")
    if advice:
        click.echo(f"             next: {printable(advice)}")
