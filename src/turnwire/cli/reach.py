"""Shared steps of commands: find the daemon, its token and the session, open a session, and complete words in a
shell.

The daemon is the one of `--url`, `--token-file` and `--data`, else of the environment, else this user's local
daemon, else the address in the settings. The token in its data folder (`turnwire.cli.credentials`) is sent to this
machine only.

A session is named by its id, by an unambiguous prefix of it, or by `last`: the session with the newest event in any
folder, open ones before closed ones, archived ones never. A whole id is used without a lookup.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import anyio
import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from turnwire.cli.output import printable, tell
from turnwire.client.http import TOKEN_VARIABLE, Http, segment
from turnwire.client.port import DaemonSession
from turnwire.client.remote import RemoteDaemon
from turnwire.errors import ConfigError, DaemonUnreachable, NotFound, SessionNotFound, TurnwireError
from turnwire.hosting.local_daemon import (
    TOKEN_FILE,
    URL_VARIABLE,
    LocalDaemon,
    at_url,
    only_one,
    read_token,
    running,
)
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.origins import is_loopback, is_wildcard
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import load_settings

if TYPE_CHECKING:
    from turnwire.client.embedded import EmbeddedDaemon

LAST = "last"
PAGE = "100"
WHOLE = re.compile(r"s_[0-9a-f]{20}")
"""Pattern of ids that daemons create. A suffix names a child session."""
MOST_SHOWN = 10
"""Sessions that are listed if a prefix is ambiguous."""

Entry = dict[str, Any]
"""A session in the list of `GET /session`."""


# -- which session is meant ----------------------------------------------------------------------------------


class _Page(Struct, rename="camel"):
    sessions: list[Entry]
    next_cursor: str | None = None


async def list_sessions(http: Http, wanted: dict[str, str] | None = None) -> list[Entry]:
    """Return the matching sessions, those with the most recent event first."""
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
    """Return the id of the named session. Raises `SessionNotFound`, or `NotFound` for an ambiguous prefix."""
    try:
        found = await list_sessions(http, {"archived": "all"})
    except DaemonUnreachable:
        # A command that needs the daemon reports it; one that does not needs the id unchanged.
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
    """Describe a session, in addition to its id."""
    title, cwd = entry.get("title"), str(entry.get("cwd", ""))
    return f"{' '.join(str(title).split())} ({cwd})" if title else cwd


# -- how the daemon is found ---------------------------------------------------------------------------------


NOTICED_S = 0.5
"""Seconds; a shorter wait needs no message."""

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Reach(NamedTuple):
    """The address of the daemon, and the credential."""

    url: str
    token: str | None
    data: Path | None
    """The data folder of this user's daemon, if known."""
    log: str = "sqlite"
    """The log named in the settings."""


def reach_options(function: Function) -> Function:
    """Add the options of `find_daemon` to a command."""
    for option in (
        click.option("--data", metavar="DIR", help="The daemon's data folder, if it is not the usual one."),
        click.option("--token-file", metavar="TOKEN_FILE", help="A file that holds a token; else TURNWIRE_TOKEN."),
        click.option("--url", metavar="URL", help="The daemon's address; also TURNWIRE_URL."),
    ):
        function = option(function)
    return function


def with_reach(function: Function) -> Function:
    """Add the options that find the daemon to a command, and pass `reach` as its first argument.

    Its `session` argument, if any, is resolved to the whole id.
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
    """Return the id of the session that a user names. Raises `NotFound`."""
    return given if WHOLE.match(given) else run(reach, lambda http: whole_id(http, given))


def find_daemon(url: str | None, token_file: str | None, data: str | None) -> Reach:
    """Find the daemon. Raises `ConfigError`."""
    url = url or os.environ.get(URL_VARIABLE)
    if url:
        check_url(url)
    token = _token_of(token_file) if token_file is not None else os.environ.get(TOKEN_VARIABLE)
    if url and token:
        return Reach(url, token, None if data is None else Path(data))
    # The working directory of this command does not limit the folders of sessions.
    settings = load_settings({"data": data, "cwd": [str(Path.cwd())]}, os.environ).settings
    here = local_daemon(url, settings, data)
    if here is not None:
        folder = None if here.data is None else Path(here.data)
        return Reach(here.url, token or settings.token or here.key(), folder, settings.log)
    url = url or usual_url(settings)
    return Reach(url, token or own_token(url, settings), settings.data, settings.log)


def local_daemon(url: str | None, settings: Settings, data: str | None) -> LocalDaemon | None:
    """Return this user's matching local daemon, or `None`. Raises `ConfigError`."""
    found = running(os.environ)
    folder = None if settings.data is None else settings.data.absolute()
    if data is not None:
        # A named folder excludes the daemons of other folders.
        found = [each for each in found if each.data == str(folder)]
    if url is not None:
        return at_url(url, found)
    return only_one(found, folder)


def _tell_away() -> None:
    tell("the daemon is away; waiting for it, Ctrl-C ends the wait")


@asynccontextmanager
async def open_http(
    reach: Reach, *, lost: Callable[[], None] = _tell_away, found: Callable[[], None] = lambda: None
) -> AsyncGenerator[Http]:
    """Open a connection to the daemon. The user is notified of a stream's longer outage and of its end."""

    is_away = False

    def hear(record: logging.LogRecord) -> bool:
        nonlocal is_away
        wait_s = getattr(record, "wait_s", None)
        if wait_s is None:
            is_away = False
            found()
        elif wait_s >= NOTICED_S and not is_away:
            is_away = True
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
    """Send one request and return its answer. Raises the daemon's error."""
    return run(reach, lambda http: _ask(http, method, path, body, shape))


def tell_daemon(reach: Reach, method: str, path: str, body: object = None) -> None:
    """Send one request whose answer has no content."""

    async def send(http: Http) -> None:
        await http.ask(method, path, body, patient=False)

    run(reach, send)


def run(reach: Reach, work: Callable[[Http], Awaitable[Result]]) -> Result:
    """Run a function with a connection to the daemon."""

    async def main() -> Result:
        async with open_http(reach) as http:
            return await work(http)

    return anyio.run(main)


def tell_of_slow_agent(say: Callable[[str], None] = tell) -> None:
    """Notify the user of the reason when an agent of this process is slow to start."""

    def hear(record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) == "agent_silent":
            say(f"{record.getMessage()}; Ctrl-C ends the wait")
        return False

    logging.getLogger("turnwire.hosting.agent_pool").addFilter(hear)


class _Agent(Struct):
    state: str
    why: str | None = None


class _Agents(Struct):
    agents: list[_Agent]


@asynccontextmanager
async def telling_of_slow_agent(http: Http, say: Callable[[str], None] = tell) -> AsyncGenerator[None]:
    """Inside the block, notify the user if the daemon waits long for the agent of a session."""

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
    # A user is waiting at a terminal: an unreachable daemon is reported at once.
    return (await http.ask(method, path, body, patient=False)).read(shape)


def check_url(url: str) -> None:
    """Reject an unreadable address before a token is looked up. The client checks the rest.

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
    """Return the address of a daemon with these settings. Raises `ConfigError` if they do not define it."""
    if settings.port == 0:
        raise ConfigError("the daemon listens on any free port; say which with --url or TURNWIRE_URL")
    scheme = "http" if settings.tls_cert is None else "https"
    host = "127.0.0.1" if is_wildcard(settings.host) else settings.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def own_token(url: str, settings: Settings) -> str | None:
    """Return the token for a daemon on this machine, if there is one. Raises `ConfigError`."""
    if not is_loopback(urlsplit(url).hostname or ""):
        return None
    return settings.token or (None if settings.data is None else read_token(settings.data / TOKEN_FILE))


# -- opening a session --------------------------------------------------------------------------------------------


LEAVING_S = 1.0


class WantedSession(NamedTuple):
    """The requested session and its properties."""

    session: str | None
    is_new: bool
    cwd: str
    mode: str | None
    model: str | None
    agent: str | None = None
    """The name of one of the daemon's agents."""


def session_options(function: Function) -> Function:
    """Add the options of `WantedSession` to a command."""
    for option in (
        click.option("--model", help="Set the agent's model first."),
        click.option("--mode", help="Set the agent's mode first."),
        click.option("--cwd", metavar="DIR", default=".", help="Where the session works.  [default: here]"),
        click.option(
            "--agent",
            metavar="NAME",
            help="The agent of the session, by its name at the daemon.",
        ),
        click.option("--new", "is_new", is_flag=True, help="Make a new session, whatever is open in this folder."),
        click.option(
            "-s",
            "--session",
            metavar="SESSION",
            shell_complete=session_ids,
            help="The session: its id, the beginning of it, or `last`.  [default: the newest open one of this"
            " folder, or a new one]",
        ),
    ):
        function = option(function)
    return function


class Entered(NamedTuple):
    """A session of a daemon that was entered."""

    session: DaemonSession
    client_id: str | None = None
    """The client id of this command there; `None` if the session was only looked up."""


class _Opened(Struct, rename="camel"):
    session_id: str
    client_id: str | None = None


async def enter(http: Http, wanted: WantedSession, say: Callable[[str], None] = tell) -> Entered:
    """Enter the requested session: by its id, the newest of the folder, or a new one.

    The user is notified if its agent is slow.
    """
    if wanted.session is not None:
        opened = _Opened(await _meant(http, wanted.session))
    else:
        async with telling_of_slow_agent(http, say):
            opened = await _open(http, wanted)
    session = await RemoteDaemon(http).find(SessionId(opened.session_id))
    for name, value in (("mode", wanted.mode), ("model", wanted.model)):
        if value is not None:
            await http.ask("POST", f"/session/{segment(session.session_id)}/{name}", {f"{name}Id": value})
    return Entered(session, opened.client_id)


async def _meant(http: Http, given: str) -> str:
    return given if WHOLE.match(given) else await whole_id(http, given)


async def _open(http: Http, wanted: WantedSession) -> _Opened:
    scope = "thread" if wanted.is_new else "single"
    body = {"cwd": wanted.cwd, "sessionScope": scope} | ({} if wanted.agent is None else {"agent": wanted.agent})
    return (await http.ask("POST", "/session", body, patient=False)).read(_Opened)


async def leave(http: Http, entered: Entered) -> None:
    """Detach, so that no absent client is listed. Nothing depends on it, so the wait is short."""
    if entered.client_id is not None:
        with anyio.move_on_after(LEAVING_S, shield=True), suppress(TurnwireError):
            path = f"/session/{segment(entered.session.session_id)}/detach"
            await http.ask("POST", path, headers={"Turnwire-Client-Id": entered.client_id}, patient=False)


@asynccontextmanager
async def open_agent(
    command: tuple[str, ...], cwd: str, say: Callable[[str], None] = tell, *, on_stderr: Callable[[str], None]
) -> AsyncGenerator[EmbeddedDaemon]:
    """Open a node in this process with this agent. Raises `ConfigError` if there is no such program.

    `on_stderr` is called with each line that the agent writes to stderr: its developer has no other log of it.
    """
    # Imported here: commands for a daemon need no local node, and the import would delay each of them.
    from turnwire.cli.agent_source import check_program
    from turnwire.client.embedded import open_embedded
    from turnwire.hosting.environment import agent_environment
    from turnwire.hosting.process import stderr_log
    from turnwire.hosting.source import ProcessSource

    limits = Limits()
    tell_of_slow_agent(say)
    # It is the user's own process, and gets the user's environment.
    env = agent_environment(os.environ, everything=True)
    check_program(command[0], env)
    source = ProcessSource(command, cwd=cwd, env=env, limits=limits)
    lines = _StderrLines(on_stderr)
    stderr_log.addHandler(lines)
    stderr_log.setLevel(logging.DEBUG)
    try:
        async with open_embedded(source, None, limits, None) as daemon:
            yield daemon
    finally:
        stderr_log.removeHandler(lines)


class _StderrLines(logging.Handler):
    """Passes on the lines of an agent's stderr."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self._on_line = on_line

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) != "stderr_limited":
            self._on_line(record.getMessage().removeprefix("stderr: "))


# -- completion in a shell ----------------------------------------------------------------------------------------


PATIENCE_S = 1.0
"""Timeout of completions: the user has just pressed a key."""

PLAIN = re.compile(r"[\w.:@%+=/-]+")
"""Characters without meaning in a shell: ids of agents and other clients go into the user's command line."""


def session_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete every session, the newest first, with its title and folder; none without a daemon."""
    url, token_file, data = (ctx.params.get(name) for name in ("url", "token_file", "data"))
    if not (url or os.environ.get(URL_VARIABLE) or running(os.environ)):
        return []

    async def in_time(http: Http) -> list[Entry]:
        with anyio.fail_after(PATIENCE_S):
            return await list_sessions(http)

    try:
        found = run(find_daemon(url, token_file, data), in_time)
    except Exception:  # noqa: BLE001  The command itself reports the error.
        return []
    offered = [(str(each["sessionId"]), about(each)) for each in found]
    return [
        CompletionItem(value, help=" ".join(printable(words).split()) or None)
        for value, words in [*offered, *([(LAST, "the newest of them")] if offered else [])]
        if value.startswith(incomplete) and PLAIN.fullmatch(value)
    ]
