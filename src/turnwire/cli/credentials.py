"""Stored credentials of a daemon on this machine, and the browser that is started with a login link.

While a daemon runs, commands of the same user find a token in its data folder. Other credentials are changed here
only while no daemon uses the folder, because two writers would undo each other. A database needs no such lock: its
nodes are notified of revoked credentials.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import os
import sys
import threading
import webbrowser
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from turnwire.cli.output import tell
from turnwire.clock import SystemClock
from turnwire.errors import ConfigError, LogLocked, TurnwireError
from turnwire.hosting.local_daemon import TOKEN_FILE, folder_of, read_token
from turnwire.limits import Limits
from turnwire.log.address import NO_DRIVER, is_database, shown
from turnwire.log.credentials import Credentials
from turnwire.server.access import token_file
from turnwire.server.access.token_file import TokenFile, read_records, write_private
from turnwire.server.access.token_table import TokenTable, table_records
from turnwire.server.access.tokens import Role, TokenRecord, Tokens


async def kept_records(log: str, data: Path, limits: Limits) -> list[TokenRecord]:
    """Return the credentials that a daemon with these settings would start with, changing nothing. Raises
    `ConfigError`, `LogError`.
    """
    in_file = read_records(data / token_file.NAME)
    if not is_database(log):
        return in_file
    async with _credentials(log, limits) as kept:
        return in_file if kept is None else [*in_file, *await table_records(kept)]


@asynccontextmanager
async def kept_tokens(log: str, data: Path | None, url: str) -> AsyncGenerator[tuple[Tokens, str] | None]:
    """Return the credentials of a daemon that does not answer at `url`, and their store; `None` if no daemon
    created any.

    Raises `ConfigError`, `LogError`, `LogLocked`.
    """
    clock = SystemClock()
    if is_database(log):
        async with _credentials(log, Limits()) as kept:
            yield (
                None if kept is None else (Tokens(TokenTable(kept, clock), clock, None), f"database, {shown(log)}")
            )
        return
    path = None if data is None else data / token_file.NAME
    if path is None or not path.is_file():
        yield None
        return
    with _without_daemon(path.parent, url):
        yield Tokens(TokenFile(path, clock), clock, None), f"file, {path}"


@asynccontextmanager
async def _credentials(log: str, limits: Limits) -> AsyncGenerator[Credentials | None]:
    try:
        from turnwire.log.postgres_credentials import open_credentials
    except ImportError:
        raise ConfigError(NO_DRIVER) from None
    async with open_credentials(log, limits) as kept:
        yield kept


@contextmanager
def _without_daemon(data: Path, url: str) -> Generator[None]:
    """Exclude daemons from a folder inside the block, by the lock that each takes on its log."""
    lock = os.open(data / "turnwire.db.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LogLocked(
            f"a daemon uses {data}, and it is not the one at {url}; say where it is with --url"
        ) from None
    finally:
        os.close(lock)


TOKEN_NAME = "cli"
"""Author of the command line's actions in the log."""


# -- the token of commands of the same user ------------------------------------------------------------------


async def keep_token(data: Path, tokens: Tokens) -> None:
    """Ensure that the file holds a valid token; an old valid one stays."""
    path = data / TOKEN_FILE
    with contextlib.suppress(TurnwireError):
        known = read_token(path)
        identity = None if known is None else await tokens.check(known)
        if identity is not None and identity.role is Role.OWNER:
            return
    _, secret = await tokens.issue(TOKEN_NAME, Role.OWNER)
    write_private(path, f"{secret}\n".encode())


# -- the browser --------------------------------------------------------------------------------------------------


FILE = "open.html"
"""Name of the page that redirects to a login link, next to the records of local daemons."""
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables that indicate a session with a browser; the last one names the browser."""


def start_browser(link: str, environ: Mapping[str, str]) -> bool:
    """Open a link in a browser, by a private file that redirects to it. Returns whether a browser was started."""
    folder = folder_of(environ)
    if folder is None or (sys.platform == "linux" and not any(environ.get(each) for each in DISPLAYS)):
        # Without a display, Python would start a browser in the terminal.
        return False
    file = folder / FILE
    try:
        write_private(file, _leading_to(link))
        return webbrowser.open(file.absolute().as_uri())
    except (OSError, webbrowser.Error):
        return False


def open_meanwhile(link: str) -> None:
    """Call `start_browser` for a daemon, without waiting for the browser or staying alive because of it."""

    def run() -> None:
        if not start_browser(link, os.environ):
            tell("no browser can be started here; open the link of `turnwire login` in one")

    threading.Thread(target=run, name="turnwire-browser", daemon=True).start()


def _leading_to(link: str) -> bytes:
    to = html.escape(link)
    return (
        f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>turnwire</title>'
        f'<meta http-equiv="refresh" content="0;url={to}"><p><a href="{to}">Open turnwire</a></p>\n'
    ).encode()
