"""The daemon as a process: opened, announced, and stopped by signals.

A start that fails reports the reason and leaves nothing running. The first signal drains: running turns may end,
waiting prompts stay for the next start. The second one ends the process immediately: everything recorded is on
disk, and the agents are killed.

A daemon that `turnwire stdio` started also stops by itself: `limits.editor_idle_s` after its last client
disconnected and its last turn ended. A turn without a client and without any event for `limits.editor_turn_s`
counts as ended.
"""

from __future__ import annotations

import gc
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import click
from anyio.abc import TaskStatus
from opentelemetry import trace
from starlette.types import ASGIApp

from turnwire import __version__
from turnwire.cli.agent_source import hosted_agents, in_words, missing_key, models
from turnwire.cli.config import settings_hash
from turnwire.cli.credentials import keep_token, kept_records, open_meanwhile
from turnwire.cli.known_agents import known
from turnwire.cli.output import foreign_folder, is_full, leading, print_json, printable
from turnwire.cli.restart import HAND_OVER
from turnwire.errors import ConfigError, LifeOver, LogFull, LogLocked, TurnwireError
from turnwire.hosting.environment import SHORTEST_SECRET
from turnwire.hosting.held import end_held
from turnwire.hosting.local_daemon import URL_VARIABLE, LocalDaemon, recorded, running
from turnwire.hosting.process import adopt_orphans
from turnwire.hosting.services.roots import close_directory, is_in_closed
from turnwire.ids import UNNAMED
from turnwire.limits import Limits
from turnwire.log.address import is_database, password_of
from turnwire.log.address import shown as shown_log
from turnwire.runtime.node import Node
from turnwire.server.access.login import link_of
from turnwire.server.access.origins import check_bind, is_loopback, is_wildcard
from turnwire.server.access.tokens import Role
from turnwire.server.app import create_app, create_routes
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.listener import Tls, check_tls, listen, open_listener, run
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import Loaded, load_settings
from turnwire.server.telemetry.logs import configure_logging
from turnwire.server.telemetry.tracing import configure_tracing

USUAL = "http://127.0.0.1:4170"
"""Default address of the daemon for commands."""
LOST = LifeOver.exit_status
"""Exit code of a node that may not act any more and ends at once; its supervisor restarts it."""
FORCED = 128
"""Base of the exit code for a second signal; the signal's number is added, as in a shell."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, HAND_OVER)
STOPPING = {"event": "stopping"}
EDITOR_GRACE_S = 5.0
"""Seconds for a `turnwire stdio` to reconnect; on one machine a connection is lost with its process only."""
GC_THRESHOLDS = (10_000, 4, 20)
"""Garbage collection thresholds: objects per scan (4 ms), scans per scan of survivors (20 ms) and per full scan."""

logger = logging.getLogger(__name__)


def run_daemon(loaded: Loaded, *, as_json: bool, is_opened: bool = False, for_editors: bool = False) -> None:
    """Run until a signal has stopped it. Raises `ConfigError`, `LogError` if it cannot start.

    `for_editors`: it was started by `turnwire stdio`, is found by that only, and stops when unused.
    """
    settings = loaded.settings
    if for_editors:
        loaded = replace(loaded, limits=replace(loaded.limits, connection_grace_s=EDITOR_GRACE_S))
        # Sessions may work anywhere, except in the data of the user's daemon.
        usual = load_settings({"cwd": [os.sep]}, os.environ).settings.data
        if usual is not None:
            close_directory(usual)
    configure_logging(settings.log_format, settings.log_level, secrets=log_secrets(settings))
    check_folders(settings)
    adopt_orphans()
    try:
        with traced():
            hands_over = run(partial(_serve, loaded, as_json, is_opened, for_editors))
    except Exception as error:
        if (told := start_error(leading(error), settings)) is None:
            raise
        raise told from None
    if hands_over:
        # The process stays, and with it the place of the daemon at its supervisor.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def start_error(error: BaseException, settings: Settings) -> TurnwireError | None:
    """Return the error to report instead of one that prevented the start, if more is known."""
    if is_full(error) or isinstance(error, LogFull):
        return LogFull(f"there is no room left on the disk of {settings.data}")
    if isinstance(error, PermissionError) and error.filename is not None:
        path = Path(error.filename)
        return ConfigError(foreign_folder(next(each for each in (path, *path.parents) if _is_seen(each))))
    own = running(os.environ)
    data = None if settings.data is None else str(settings.data.absolute())
    if isinstance(error, LogLocked) and (mine := next((each for each in own if each.data == data), None)):
        return LogLocked(f"your daemon already runs at {mine.url} (process {mine.pid}); open it: turnwire open")
    is_port = isinstance(error, ConfigError) and error.context.get("port") == settings.port
    if is_port and (mine := next((each for each in own if _port(each) == settings.port), None)):
        words = f"your daemon already runs at {mine.url} (process {mine.pid}); open it: turnwire open"
        return ConfigError(f"{words}. For a second one, give --port 0 and --data DIR")
    return None


def _is_seen(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _port(daemon: LocalDaemon) -> int | None:
    return urlsplit(daemon.url).port


def log_secrets(settings: Settings) -> list[str]:
    """Return the secrets that must never be in a log line."""
    hosted = settings.hosted()
    tokens = [each for each in (settings.token, *(entry.token for entry in hosted)) if each is not None]
    given = [each.partition("=")[2] for entry in hosted for each in entry.env_set]
    given += [os.environ.get(name, "") for entry in hosted for name in entry.env]
    given += [each.secret for each in settings.webhooks]
    given += [password_of(settings.log) or ""]
    return tokens + [each for each in given if len(each) >= SHORTEST_SECRET]


def check_folders(settings: Settings) -> None:
    """Check the folders. The data folder may be missing: it is created. Raises `ConfigError`."""
    for folder in settings.cwd:
        if not folder.is_dir():
            raise ConfigError(f"cwd names {folder}, and that is no folder; make it, or name another with --cwd")
    if settings.data is None:
        return
    nearest = next(each for each in (settings.data, *settings.data.absolute().parents) if os.path.exists(each))
    if not nearest.is_dir():
        raise ConfigError(f"data is {settings.data}, and {nearest} is no folder; give a folder with --data")
    data = Path(os.path.realpath(settings.data))
    for folder in settings.cwd:
        # The reverse is fine: a data folder below a folder of sessions is out of reach for sessions.
        if data in (true := Path(os.path.realpath(folder)), *true.parents) or is_in_closed(true):
            raise ConfigError(
                f"cwd names {folder}, and that is inside turnwire's own data, where no session may work;"
                " give another folder with --cwd, or keep the data elsewhere with --data"
            )


async def _check_outside(settings: Settings, limits: Limits) -> None:
    """Require a known token for access from other machines: a generated one would be in a log."""
    has_token = settings.token is not None
    if not has_token and settings.data is not None and not is_loopback(settings.host):
        known = await kept_records(settings.log, settings.data, limits)
        has_token = any(each.role is Role.OWNER for each in known)
    check_bind(settings.host, has_token=has_token, no_auth=settings.no_auth)


@contextmanager
def traced() -> Generator[None]:
    """Record traces inside the block."""
    provider = configure_tracing(os.environ)
    if provider is None:
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


async def _serve(loaded: Loaded, as_json: bool, is_opened: bool, for_editors: bool) -> bool:
    """Serve until a signal ends it. Return true if the program is to be started again."""
    settings, limits = loaded.settings, loaded.limits
    await _check_outside(settings, limits)
    # Invalid files and a port in use are detected before a log is opened or a token created.
    tls = _tls(settings)
    if tls is not None:
        check_tls(tls)
    open_listener(settings.host, settings.port, limits).close()
    async with hosted_agents(settings, limits) as agents, open_daemon(settings, limits, agents) as daemon:
        if settings.data is not None and not settings.no_auth:
            await keep_token(settings.data, daemon.tokens)
        # The announcement cannot wait for the database.
        shown, opened = [None if settings.no_auth else await daemon.login.code() for _ in range(2)]
        scanned = await daemon.login.code() if _can_be_scanned(settings) else None
        daemon.clients.are_editors = for_editors
        stop = anyio.Event()
        # An orderly shutdown is not allowed any more; the guards end the agents.
        daemon.lost.add(end_lost)
        with ExitStack() as meanwhile:

            def ready(url: str) -> None:
                meanwhile.enter_context(recorded(_record(daemon, url, for_editors), os.environ))
                announce(daemon, url, _page(url, shown), as_json=as_json)
                if scanned is not None and not as_json:
                    _show_qr_code(link_of(reachable(url, settings.host), scanned))
                _collect_rarely()
                if is_opened:
                    open_meanwhile(_page(url, opened))

            async with anyio.create_task_group() as tasks:
                await tasks.start(stop_on_signal, daemon, stop)
                tasks.start_soon(_stop_when_asked, daemon, stop)
                if for_editors:
                    tasks.start_soon(_stop_when_unused, daemon, stop)
                routes = create_routes(daemon)
                async with _joined(daemon, routes, tls):
                    await listen(
                        create_app(daemon, routes),
                        host=settings.host,
                        port=settings.port,
                        tls=tls,
                        ready=ready,
                        stop=stop,
                        limits=limits,
                        make_room=daemon.open_streams.drop_one,
                    )
                tasks.cancel_scope.cancel()
        if daemon.hands_over:
            daemon.node.leave_agents()
        return daemon.hands_over


def _collect_rarely() -> None:
    """Limit the pauses of the garbage collector.

    By default it scans all objects now and then: with ten thousand open streams that stopped the daemon for a
    second. So imported objects are never scanned, and the rest in portions of a few milliseconds.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _record(daemon: Daemon, url: str, for_editors: bool) -> LocalDaemon:
    """Return the record by which programs on this machine find the daemon."""
    settings = daemon.settings
    editors, started = settings_hash(settings) if for_editors else None, time.time_ns()
    if settings.data is not None:
        return LocalDaemon(url, os.getpid(), str(settings.data.absolute()), started=started, editors=editors)
    token = None if settings.no_auth else settings.token or daemon.first_token
    return LocalDaemon(url, os.getpid(), token=token, started=started, editors=editors)


def _tls(settings: Settings) -> Tls | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_cert, settings.tls_key)


async def stop_on_signal(
    daemon: Daemon, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Drain at the first signal, then set `stop`. A signal during the stop ends the process.

    It has started once signals are handled: every process that knows the daemon may send one.
    """
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            async for number in signals:
                if number == HAND_OVER:
                    hand_over(daemon, stop)
                elif daemon.stopping.is_set():
                    end_now(number)
                else:
                    tasks.start_soon(drain, daemon, stop)


@asynccontextmanager
async def _joined(daemon: Daemon, routes: ASGIApp, tls: Tls | None) -> AsyncGenerator[None]:
    """Join the nodes that share the log inside the block, if others do."""
    if daemon.members is None:
        yield
        return
    # Links to other nodes are slow to import, and most daemons run alone.
    from turnwire.server.cluster.joining import joined

    async with joined(daemon, routes, tls):
        yield


async def _stop_when_asked(daemon: Daemon, stop: anyio.Event) -> None:
    """Stop like at a signal when `turnwire nodes drain` requests it."""
    await daemon.drain_asked.wait()
    if not daemon.stopping.is_set():
        await drain(daemon, stop)


async def _stop_when_unused(daemon: Daemon, stop: anyio.Event) -> None:
    """Drain a daemon for editors once it has had no client, no event and no open turn for a while."""
    limits, unused_s = daemon.limits, 0.0
    with daemon.activity.listening() as news:
        while unused_s < (limits.editor_turn_s if _has_turn(daemon.node) else limits.editor_idle_s):
            await daemon.clock.sleep(limits.editor_idle_s)
            with anyio.move_on_after(0) as waiting:
                await news.next()
            is_used = daemon.tokens.are_in_use or not waiting.cancelled_caught
            unused_s = 0.0 if is_used else unused_s + limits.editor_idle_s
    if not daemon.stopping.is_set():
        await drain(daemon, stop)


def _has_turn(node: Node) -> bool:
    states = [each.state for each in node.loaded.values()]
    return any(each.turn is not None or each.running_children or each.background for each in states)


async def drain(daemon: Daemon, stop: anyio.Event) -> None:
    """Let running turns end, up to the limit `drain_s`, then set `stop`."""
    seconds = daemon.limits.drain_s
    logger.info("stopping: turns have %g s to end; a second signal does not wait", seconds, extra=STOPPING)
    await daemon.drain()
    stop.set()


def hand_over(daemon: Daemon, stop: anyio.Event) -> None:
    """End the listener without waiting for turns: the next program continues them."""
    if daemon.stopping.is_set():
        return
    if daemon.settings.data is None:
        logger.warning("no restart: sessions are in memory and would be lost", extra={"event": "restart_refused"})
        return
    logger.info("restarting: turns continue", extra={"event": "restarting"})
    daemon.hands_over = True
    daemon.stopping.set()
    stop.set()


def end_now(number: int) -> None:
    end_held()
    _exit(FORCED + number)


def end_lost() -> None:
    click.echo(
        "turnwire: this node could not show that it lives, so others have its sessions; start it again", err=True
    )
    _exit(LOST)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def announce(daemon: Daemon, url: str, page: str, *, as_json: bool) -> None:
    """Print the address and the credentials."""
    data = daemon.settings.data
    if as_json:
        token = daemon.settings.token or (None if daemon.settings.no_auth else daemon.first_token)
        print_json({"url": url, "token": token, "pid": os.getpid(), "data": None if data is None else str(data)})
    else:
        click.echo(f"turnwire {__version__} listens on {url}\n")
        for name, words in [*_lines(daemon, page), ("try", _first_command(url)), ("stop", "Ctrl-C")]:
            click.echo(f"  {name:<6} {printable(words)}")
        click.echo()
    # A reader on a pipe waits for it.
    sys.stdout.flush()


def _can_be_scanned(settings: Settings) -> bool:
    """Return whether phones reach the daemon and a person reads the terminal."""
    return settings.page and not is_loopback(settings.host) and sys.stdout.isatty()


def _show_qr_code(link: str) -> None:
    from turnwire.server.access.qr_code import qr_text

    click.echo(f"  Scan to open the page on a phone (valid once, for 10 minutes):\n  {link}\n")
    with suppress(UnicodeEncodeError):
        click.echo(qr_text(link))
    sys.stdout.flush()


def reachable(url: str, host: str) -> str:
    """Return the URL for other machines: with the address of the default route if bound to every address."""
    if not is_wildcard(host):
        return url
    scheme, _, rest = url.partition("://")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # Connecting a datagram socket sends nothing: it selects the local address. No host has the peer's address.
        probe.connect(("192.0.2.1", 9))
        return f"{scheme}://{probe.getsockname()[0]}:{rest.rpartition(':')[2]}"
    return url


def _lines(daemon: Daemon, page: str) -> list[tuple[str, str]]:
    settings = daemon.settings
    log = [("log", shown_log(settings.log))] if is_database(settings.log) else []
    lines = [
        *_agents(daemon),
        ("data", "in memory, gone at the end" if settings.data is None else str(settings.data)),
        *log,
        ("token", _token(daemon)),
    ]
    if settings.page:
        hint = "" if settings.no_auth else "  (valid once, for 10 minutes; `turnwire login` makes another)"
        lines.insert(0, ("page", f"{page}{hint}"))
    return lines


def _page(url: str, code: str | None) -> str:
    """Return the link to the page; without a code if no credential is required."""
    return f"{url}/" if code is None else link_of(url, code)


def _agents(daemon: Daemon) -> list[tuple[str, str]]:
    default, *others = daemon.settings.hosted()
    lines = [("agent", _agent(default, is_default=bool(others)))]
    lines += [("", _agent(each, is_default=False)) for each in others]
    if any(not each.is_described and known(each.name) is None for each in (default, *others)) and not models():
        lines.append(
            ("", "for a model set TURNWIRE_AGENT_MODEL=PROVIDER:NAME; your own: turnwire serve -- COMMAND")
        )
    return lines


def _agent(entry: AgentEntry, *, is_default: bool) -> str:
    name = "" if entry.name == UNNAMED else f"{entry.name}: "
    label = "" if entry.label is None else f"{entry.label}, "
    key = missing_key(entry)
    return f"{name}{label}{in_words(entry)}{key and f' ({key})'}{' (default)' if is_default else ''}"


def _token(daemon: Daemon) -> str:
    if daemon.settings.no_auth:
        return "none is asked for: everybody on this machine gets in"
    if daemon.settings.token is not None:
        return "the one you gave"
    if daemon.first_token is not None:
        return f"{daemon.first_token}  (shown only once)"
    return "made at an earlier start; turnwire token create NAME makes another"


def _first_command(url: str) -> str:
    """Return a command that finds this daemon, even if others run."""
    is_alone = sum(each.editors is None for each in running(os.environ)) == 1
    words = [] if is_alone else [f"{URL_VARIABLE}={url}"]
    return " ".join([*words, _program(), 'prompt "hello"'])


def _program() -> str:
    """Return the name of this program for a shell in the folder in which the daemon was started."""
    called = Path(sys.argv[0])
    found = shutil.which("turnwire")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "turnwire"
    if called.name == "turnwire":
        return shlex.quote(os.path.relpath(called))
    return f"{shlex.quote(sys.executable)} -m turnwire"
