"""The daemon as a process: opened, announced, and stopped by signals.

A start that fails says why and leaves nothing running. The first signal drains: running turns may end, prompts
that wait stay for the next start. The second ends the process where it stands: what is recorded is on disk, and
the guards end the agents.

`turnwire stdio` has all of it but the listener: `turnwire.cli.stdio_host`.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
import click
from anyio.abc import TaskStatus
from opentelemetry import trace
from starlette.types import ASGIApp

from turnwire import __version__
from turnwire.cli.agent_source import hosted_agents, in_words
from turnwire.cli.browser import open_meanwhile
from turnwire.cli.kept_credentials import keep_token, kept_records
from turnwire.cli.output import print_json, printable
from turnwire.errors import ConfigError, LifeOver
from turnwire.ids import UNNAMED
from turnwire.limits import Limits
from turnwire.link.environment import SHORTEST_SECRET
from turnwire.link.local_daemon import URL_VARIABLE, LocalDaemon, recorded, running
from turnwire.link.process import adopt_orphans
from turnwire.log.address import password_of
from turnwire.runtime.services.roots import is_in_closed
from turnwire.server.access.identity import Role
from turnwire.server.access.login import link_of
from turnwire.server.access.origins import check_bind, is_loopback
from turnwire.server.app import create_app, create_routes
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.listener import Tls, check_tls, listen, open_listener, run
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import Loaded
from turnwire.server.telemetry.logs import configure_logging
from turnwire.server.telemetry.pauses import rare_collection
from turnwire.server.telemetry.tracing import configure_tracing

USUAL = "http://127.0.0.1:4170"
"""Where commands look for a daemon when nobody says where it is."""
LOST = LifeOver.exit_status
"""A node that may not act any more ends at once with this; its supervisor starts it again."""
FORCED = 128
"""Added to the number of the second signal, as a shell does."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = {"event": "stopping"}

logger = logging.getLogger(__name__)


def run_daemon(loaded: Loaded, *, as_json: bool, is_opened: bool = False) -> None:
    """Run until a signal has stopped it. Raises `ConfigError`, `LogError` when it cannot start."""
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level, secrets=log_secrets(settings))
    check_folders(settings)
    adopt_orphans()
    with traced():
        run(partial(_serve, loaded, as_json, is_opened))


def log_secrets(settings: Settings) -> list[str]:
    """What must never be in a log line."""
    hosted = settings.hosted()
    tokens = [each for each in (settings.token, *(entry.token for entry in hosted)) if each is not None]
    given = [each.partition("=")[2] for entry in hosted for each in entry.env_set]
    given += [os.environ.get(name, "") for entry in hosted for name in entry.env]
    given += [each.secret for each in settings.webhooks]
    given += [password_of(settings.log) or ""]
    return tokens + [each for each in given if len(each) >= SHORTEST_SECRET]


def check_folders(settings: Settings) -> None:
    """Refuse folders that are none. The data folder may be missing: it is made. Raises `ConfigError`."""
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
        # The other way round is in order: data below a folder of sessions are out of reach there.
        if data in (true := Path(os.path.realpath(folder)), *true.parents) or is_in_closed(true):
            raise ConfigError(
                f"cwd names {folder}, and that is inside turnwire's own data, where no session may work;"
                " give another folder with --cwd, or keep the data elsewhere with --data"
            )


async def _check_outside(settings: Settings, limits: Limits) -> None:
    """Others may reach it only with a token that its owner knows already: one made now would be found in a log."""
    has_token = settings.token is not None
    if not has_token and settings.data is not None and not is_loopback(settings.host):
        known = await kept_records(settings.log, settings.data, limits)
        has_token = any(each.role is Role.OWNER for each in known)
    check_bind(settings.host, has_token=has_token, no_auth=settings.no_auth)


@contextmanager
def traced() -> Generator[None]:
    """Meanwhile traces are made."""
    provider = configure_tracing(os.environ)
    if provider is None:
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


async def _serve(loaded: Loaded, as_json: bool, is_opened: bool) -> None:
    settings, limits = loaded.settings, loaded.limits
    await _check_outside(settings, limits)
    # Bad files and a port that is taken are found out before a log is opened or a token made.
    tls = _tls(settings)
    if tls is not None:
        check_tls(tls)
    open_listener(settings.host, settings.port, limits).close()
    async with hosted_agents(settings, limits) as agents, open_daemon(settings, limits, agents) as daemon:
        if settings.data is not None and not settings.no_auth:
            await keep_token(settings.data, daemon.tokens)
        # Whoever announces it cannot wait for the database.
        shown, opened = [None if settings.no_auth else await daemon.login.code() for _ in range(2)]
        stop = anyio.Event()
        # Nothing that it would do in good order may be done any more; the guards end the agents.
        daemon.lost.add(end_lost)
        with ExitStack() as meanwhile:

            def ready(url: str) -> None:
                meanwhile.enter_context(recorded(_record(daemon, url), os.environ))
                announce(daemon, url, _page(url, shown), as_json=as_json)
                meanwhile.enter_context(rare_collection(daemon.metrics.gc_pause_s.observe))
                if is_opened:
                    open_meanwhile(_page(url, opened))

            async with anyio.create_task_group() as tasks:
                await tasks.start(stop_on_signal, daemon, stop)
                tasks.start_soon(_stop_when_asked, daemon, stop)
                routes = create_routes(daemon)
                async with _joined(daemon, routes, tls):
                    await listen(
                        create_app(daemon, routes),
                        host=settings.host,
                        port=settings.port,
                        tls=tls,
                        http2=settings.http2,
                        ready=ready,
                        stop=stop,
                        limits=limits,
                    )
                tasks.cancel_scope.cancel()


def _record(daemon: Daemon, url: str) -> LocalDaemon:
    """How others on this machine find the daemon."""
    settings = daemon.settings
    if settings.data is not None:
        return LocalDaemon(url, os.getpid(), str(settings.data.absolute()))
    return LocalDaemon(url, os.getpid(), token=None if settings.no_auth else settings.token or daemon.first_token)


def _tls(settings: Settings) -> Tls | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_cert, settings.tls_key)


async def stop_on_signal(
    daemon: Daemon, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Drain at the first signal, then set `stop`. A signal for a daemon that stops already ends the process.

    It has started once signals are heard: whoever knows of the daemon may send one.
    """
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            async for number in signals:
                if daemon.stopping.is_set():
                    end_now(number)
                tasks.start_soon(drain, daemon, stop)


@asynccontextmanager
async def _joined(daemon: Daemon, routes: ASGIApp, tls: Tls | None) -> AsyncGenerator[None]:
    """Meanwhile the daemon is one of the nodes that share its log, if others do."""
    if daemon.members is None:
        yield
        return
    # What links to other nodes are made of takes time to import, and most daemons are alone.
    from turnwire.server.cluster.joining import joined

    async with joined(daemon, routes, tls):
        yield


async def _stop_when_asked(daemon: Daemon, stop: anyio.Event) -> None:
    """As at a signal, when somebody asks for it by `turnwire nodes drain`."""
    await daemon.drain_asked.wait()
    if not daemon.stopping.is_set():
        await drain(daemon, stop)


async def drain(daemon: Daemon, stop: anyio.Event) -> None:
    """Let running turns end, up to the limit `drain_s`, then set `stop`."""
    seconds = daemon.limits.drain_s
    logger.info("stopping: turns have %g s to end; a second signal does not wait", seconds, extra=STOPPING)
    await daemon.drain()
    stop.set()


def end_now(number: int) -> None:
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
    """Say where it is and how to get in."""
    data = daemon.settings.data
    if as_json:
        token = daemon.settings.token or (None if daemon.settings.no_auth else daemon.first_token)
        print_json({"url": url, "token": token, "pid": os.getpid(), "data": None if data is None else str(data)})
    else:
        click.echo(f"turnwire {__version__} listens on {url}\n")
        for name, words in [*_lines(daemon, page), ("try", _first_command(url)), ("stop", "Ctrl-C")]:
            click.echo(f"  {name:<6} {printable(words)}")
        click.echo()
    # Whoever reads it through a pipe waits for it.
    sys.stdout.flush()


def _lines(daemon: Daemon, page: str) -> list[tuple[str, str]]:
    settings = daemon.settings
    lines = [
        *_agents(daemon),
        ("data", "in memory, gone at the end" if settings.data is None else str(settings.data)),
        ("token", _token(daemon)),
    ]
    if settings.page and settings.rest:
        hint = "" if settings.no_auth else "  (works once, for ten minutes; then turnwire login)"
        lines.insert(0, ("page", f"{page}{hint}"))
    return lines


def _page(url: str, code: str | None) -> str:
    """What leads a browser to the page; without a code if nobody is asked for a credential."""
    return f"{url}/" if code is None else link_of(url, code)


def _agents(daemon: Daemon) -> list[tuple[str, str]]:
    default, *others = daemon.settings.hosted()
    if not others and default.name == UNNAMED:
        return [("agent", in_words(default))]
    return [
        ("agent", f"{each.name}: {in_words(each)}{' (default)' if each is default else ''}")
        for each in (default, *others)
    ]


def _token(daemon: Daemon) -> str:
    if daemon.settings.no_auth:
        return "none is asked for: everybody on this machine gets in"
    if daemon.settings.token is not None:
        return "the one you gave"
    if daemon.first_token is not None:
        return f"{daemon.first_token}  (shown this once)"
    return "made at an earlier start; turnwire token create NAME makes another"


def _first_command(url: str) -> str:
    """A command that finds this daemon, also beside others."""
    is_alone = len(running(os.environ)) == 1
    words = [] if is_alone else [f"{URL_VARIABLE}={url}"]
    return " ".join([*words, _program(), 'prompt "hello"'])


def _program() -> str:
    """How this program is called from the folder that the daemon was started in."""
    called = Path(sys.argv[0])
    found = shutil.which("turnwire")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "turnwire"
    if called.name == "turnwire":
        return shlex.quote(os.path.relpath(called))
    return f"{shlex.quote(sys.executable)} -m turnwire"
