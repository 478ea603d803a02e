"""How a command finds the daemon and gets in: its address and a credential.

First come `--url`, `--token-file` and `--data`, then the environment, then the daemon of this user that runs here,
then the settings that one would have. On the daemon's own machine a command has a token of its own
(`turnwire.cli.kept_credentials`). It goes to a daemon on this machine only: elsewhere it would be given away.

Which session is meant is found there, too: by its id, the beginning of it that no other has, or `last`. A whole id
is taken as it is, so it costs no question. Everything else is looked up in the daemon's list. `last` is the session
in which something happened most recently, in whatever folder; one that is closed only if all are. An archived one
is never the last, and has its id as all others.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import anyio
import click
from msgspec import Struct

from turnwire.cli.failure import tell
from turnwire.client.http import TOKEN_VARIABLE, Http
from turnwire.errors import ConfigError, DaemonUnreachable, NotFound, SessionNotFound, TurnwireError
from turnwire.link.local_daemon import TOKEN_FILE, URL_VARIABLE, LocalDaemon, at_url, only_one, read_token, running
from turnwire.server.access.origins import is_loopback, is_wildcard
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import load_settings

LAST = "last"
PAGE = "100"
WHOLE = re.compile(r"s_[0-9a-f]{20}")
"""An id as daemons make them. What goes on behind it names a child session."""
MOST_SHOWN = 10
"""Sessions that are named when several are meant."""

Entry = dict[str, Any]
"""A session as `GET /session` lists it."""


# -- which session is meant ----------------------------------------------------------------------------------


class _Page(Struct, rename="camel"):
    sessions: list[Entry]
    next_cursor: str | None = None


async def list_sessions(http: Http, wanted: dict[str, str] | None = None) -> list[Entry]:
    """The sessions that are wanted, those first in which something happened most recently."""
    found: list[Entry] = []
    query = {"size": PAGE, **(wanted or {})}
    while True:
        page = (await http.ask("GET", f"/session?{urlencode(query)}", patient=False)).read(_Page)
        found += page.sessions
        if page.next_cursor is None:
            return sorted(found, key=_age, reverse=True)
        query["cursor"] = page.next_cursor


def _age(entry: Entry) -> tuple[str, str]:
    return str(entry.get("updatedAt", "")), str(entry.get("createdAt", ""))


async def whole_id(http: Http, given: str) -> str:
    """The id of the session that is meant. Raises `SessionNotFound`, `NotFound` if several begin so."""
    try:
        found = await list_sessions(http, {"archived": "all"})
    except DaemonUnreachable:
        # Whoever needs the daemon will say so; what a command does without one needs the id as it is.
        return given
    if given in (ids := [str(each["sessionId"]) for each in found]):
        return given
    if given == LAST:
        listed = [each for each in found if not each.get("archived")]
        if not listed:
            raise SessionNotFound("there is no session yet, so none is the last; `turnwire prompt TEXT` makes one")
        return str(next((each for each in listed if not each.get("closed")), listed[0])["sessionId"])
    begun = [index for index, each in enumerate(ids) if given and each.startswith(given)]
    if not begun:
        raise SessionNotFound(f"no session has the id {given!r}, or one that begins so")
    if len(begun) > 1:
        shown = "".join(f"\n  {_in_a_line(found[each])}" for each in begun[:MOST_SHOWN])
        more = f"\n  and {len(begun) - MOST_SHOWN} more" if len(begun) > MOST_SHOWN else ""
        raise NotFound(f"{len(begun)} sessions begin with {given!r}; write more of the id of one:{shown}{more}")
    return ids[begun[0]]


def _in_a_line(entry: Entry) -> str:
    return f"{entry['sessionId']}  {about(entry)}"


def about(entry: Entry) -> str:
    """A session in words, beside its id."""
    title, cwd = entry.get("title"), str(entry.get("cwd", ""))
    return f"{' '.join(str(title).split())} ({cwd})" if title else cwd


# -- how the daemon is found ---------------------------------------------------------------------------------


NOTICED_S = 0.5
"""A shorter wait is over before anybody wonders."""

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Reach(NamedTuple):
    """Where the daemon is, and what to show it."""

    url: str
    token: str | None
    data: Path | None
    """The data folder that a daemon of this user has, if that is known."""
    log: str = "sqlite"
    """Where the settings keep its log."""


def reach_options(function: Function) -> Function:
    """Give a command the options that `find_daemon` takes."""
    for option in (
        click.option("--data", metavar="DIR", help="The daemon's data folder, if it is not the usual one."),
        click.option("--token-file", metavar="TOKEN_FILE", help="A file that holds a token; else TURNWIRE_TOKEN."),
        click.option("--url", metavar="URL", help="The daemon's address; also TURNWIRE_URL."),
    ):
        function = option(function)
    return function


def with_reach(function: Function) -> Function:
    """Give a command the options that find the daemon, and `reach` as its first argument.

    Its `session`, if it takes one, is the whole id by then, however the user named it.
    """

    @reach_options
    @wraps(function)
    def with_reach(*args: Any, url: str | None, token_file: str | None, data: str | None, **options: Any) -> Any:
        reach = find_daemon(url, token_file, data)
        if (given := options.get("session")) is not None:
            options["session"] = meant_session(reach, given)
        return function(reach, *args, **options)

    return with_reach  # pyright: ignore[reportReturnType]


def meant_session(reach: Reach, given: str) -> str:
    """The id of the session that a user means. Raises `NotFound`."""
    return given if WHOLE.match(given) else run(reach, lambda http: whole_id(http, given))


def find_daemon(url: str | None, token_file: str | None, data: str | None) -> Reach:
    """Where the daemon is. Raises `ConfigError`."""
    url = url or os.environ.get(URL_VARIABLE)
    if url:
        check_url(url)
    token = _token_of(token_file) if token_file is not None else os.environ.get(TOKEN_VARIABLE)
    if url and token:
        return Reach(url, token, None if data is None else Path(data))
    # Where this command runs says nothing about where sessions may work.
    settings = load_settings({"data": data, "cwd": [str(Path.cwd())]}, os.environ).settings
    here = _local_daemon(url, settings, data)
    if here is not None:
        folder = None if here.data is None else Path(here.data)
        return Reach(here.url, token or settings.token or here.key(), folder, settings.log)
    url = url or usual_url(settings)
    return Reach(url, token or own_token(url, settings), settings.data, settings.log)


def _local_daemon(url: str | None, settings: Settings, data: str | None) -> LocalDaemon | None:
    """The daemon of this user that runs here and is meant; none if there is none. Raises `ConfigError`."""
    found = running(os.environ)
    folder = None if settings.data is None else settings.data.absolute()
    if data is not None:
        # Who names a folder means no daemon of another.
        found = [each for each in found if each.data == str(folder)]
    if url is not None:
        return at_url(url, found)
    return only_one(found, folder)


def _tell_away() -> None:
    tell("the daemon is away; waiting for it, Ctrl-C ends the wait")


@asynccontextmanager
async def open_http(
    reach: Reach, *, lost: Callable[[], None] = _tell_away, found: Callable[[], None] | None = None
) -> AsyncGenerator[Http]:
    """Requests to the daemon. Whoever waits is told when a stream cannot be had for a while, and when it can."""

    def hear(record: logging.LogRecord) -> bool:
        wait_s = getattr(record, "wait_s", None)
        if wait_s is None and found is not None:
            found()
        elif wait_s is not None and wait_s >= NOTICED_S:
            lost()
        return False

    streams = logging.getLogger("turnwire.client.stream")
    streams.setLevel(logging.INFO)
    streams.addFilter(hear)
    http = Http(reach.url, reach.token)
    try:
        yield http
    finally:
        streams.removeFilter(hear)
        await http.aclose()


def ask(reach: Reach, method: str, path: str, body: object = None, *, shape: type[Result]) -> Result:
    """One request and its answer. Raises what the daemon refuses it with."""
    return run(reach, lambda http: _ask(http, method, path, body, shape))


def tell_daemon(reach: Reach, method: str, path: str, body: object = None) -> None:
    """One request whose answer says nothing."""

    async def send(http: Http) -> None:
        await http.ask(method, path, body, patient=False)

    run(reach, send)


def run(reach: Reach, work: Callable[[Http], Awaitable[Result]]) -> Result:
    """Do something with the daemon."""

    async def main() -> Result:
        async with open_http(reach) as http:
            return await work(http)

    return anyio.run(main)


def tell_of_slow_agent(say: Callable[[str], None] = tell) -> None:
    """From now on whoever waits for an agent of this process is told what for."""

    def hear(record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) == "agent_silent":
            say(f"{record.getMessage()}; Ctrl-C ends the wait")
        return False

    logging.getLogger("turnwire.runtime.agent_pool").addFilter(hear)


class _Agent(Struct):
    state: str
    why: str | None = None


class _Agents(Struct):
    agents: list[_Agent]


@asynccontextmanager
async def telling_of_slow_agent(http: Http, say: Callable[[str], None] = tell) -> AsyncGenerator[None]:
    """Meanwhile the daemon opens a session at its agent; whoever waits long is told what for."""

    async def look() -> None:
        await http.clock.sleep(http.limits.initialize_silent_s + NOTICED_S)
        with suppress(TurnwireError):
            found = (await http.ask("GET", "/agents", patient=False)).read(_Agents).agents
            for each in found:
                if each.state == "starting" and each.why is not None:
                    say(f"{each.why}; Ctrl-C ends the wait")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield
        tasks.cancel_scope.cancel()


async def _ask(http: Http, method: str, path: str, body: object, shape: type[Result]) -> Result:
    # Somebody waits in front of a terminal: a daemon that is not there is told of at once.
    return (await http.ask(method, path, body, patient=False)).read(shape)


def check_url(url: str) -> None:
    """Refuse what nobody can read as an address, before a token is looked for. The client checks the rest.

    Raises:
        ConfigError: It is no URL.
    """
    try:
        urlsplit(url)
        is_url = url.isprintable()
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{url!a} is no URL; give one such as http://127.0.0.1:4170")


def _token_of(file: str) -> str:
    token = read_token(Path(file))
    if token is None:
        raise ConfigError(f"there is no file {file}; --token-file names a file that holds a token")
    return token


def usual_url(settings: Settings) -> str:
    """Where a daemon with these settings is. Raises `ConfigError` if they do not say."""
    if settings.port == 0:
        raise ConfigError("the daemon listens on any free port; say which with --url or TURNWIRE_URL")
    scheme = "http" if settings.tls_cert is None else "https"
    host = "127.0.0.1" if is_wildcard(settings.host) else settings.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def own_token(url: str, settings: Settings) -> str | None:
    """The token for a daemon on this machine, if there is one. Raises `ConfigError`."""
    if not is_loopback(urlsplit(url).hostname or ""):
        return None
    return settings.token or (None if settings.data is None else read_token(settings.data / TOKEN_FILE))
