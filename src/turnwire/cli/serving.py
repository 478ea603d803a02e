"""The daemon as a process: opened, announced, and stopped by signals.

Takes loaded settings; returns when the daemon has stopped. The first signal drains: running turns may end, prompts
that wait stay for the next start. The second ends the process where it stands. A start that fails says why and
leaves nothing running.
"""

from __future__ import annotations

from functools import partial

import anyio

from turnwire.cli.announcing import announce
from turnwire.cli.credentials import keep_token
from turnwire.cli.folders import check_folders
from turnwire.cli.sources import agent_source, log_secrets
from turnwire.cli.stopping import stop_on_signal
from turnwire.cli.tracing import traced
from turnwire.server.access.identity import Role
from turnwire.server.access.origins import check_bind
from turnwire.server.access.tokens import read_records
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.listening.listen import Tls, check_tls, listen, run
from turnwire.server.listening.sockets import open_listener
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import Loaded
from turnwire.server.telemetry.logs import configure_logging


def run_daemon(loaded: Loaded, *, as_json: bool) -> None:
    """Run until a signal has stopped it. Raises `ConfigError`, `LogError` when it cannot start."""
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level, secrets=log_secrets(settings))
    check_folders(settings)
    _check_outside(settings)
    with traced():
        run(partial(_serve, loaded, as_json))


def _check_outside(settings: Settings) -> None:
    """Others may reach it only with a token that its owner knows already: one made now would be found in a log."""
    known = [] if settings.data is None else read_records(settings.data / "tokens.json")
    has_token = settings.token is not None or any(each.role is Role.OWNER for each in known)
    check_bind(settings.host, has_token=has_token, no_auth=settings.no_auth)


async def _serve(loaded: Loaded, as_json: bool) -> None:
    settings, limits = loaded.settings, loaded.limits
    # Bad files and a port that is taken are found out before a log is opened or a token made.
    tls = _tls(settings)
    if tls is not None:
        check_tls(tls)
    open_listener(settings.host, settings.port, limits).close()
    async with agent_source(settings, limits) as source, open_daemon(settings, limits, source) as daemon:
        if settings.data is not None and not settings.no_auth:
            keep_token(settings.data, daemon.tokens)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal, daemon, stop)
            await listen(
                create_app(daemon),
                host=settings.host,
                port=settings.port,
                tls=tls,
                server=settings.chosen_server,
                ready=lambda url: announce(loaded, daemon, url, as_json=as_json),
                stop=stop,
                limits=limits,
            )
            tasks.cancel_scope.cancel()


def _tls(settings: Settings) -> Tls | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_cert, settings.tls_key)
