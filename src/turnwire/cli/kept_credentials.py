"""The credentials that a daemon keeps, as commands on its own machine reach them.

While a daemon runs, commands of the same user find a token in its data folder. The others are read and changed here
while it does not run: in that folder, or in the database of its log. A file is changed only while no daemon has its
folder, because two writers would undo each other. A database takes care of that itself, and the nodes that use it
hear of what has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from turnwire.errors import ConfigError, LogLocked, TurnwireError
from turnwire.limits import Limits
from turnwire.link.local_daemon import TOKEN_FILE, read_token
from turnwire.log.address import NO_DRIVER, is_database, shown
from turnwire.log.credentials import Credentials
from turnwire.runtime.clock import SystemClock
from turnwire.server.access import token_file
from turnwire.server.access.identity import Role
from turnwire.server.access.token_file import TokenFile, read_records, write_private
from turnwire.server.access.token_table import TokenTable, table_records
from turnwire.server.access.tokens import TokenRecord, Tokens


async def kept_records(log: str, data: Path, limits: Limits) -> list[TokenRecord]:
    """What a daemon with these settings would start with. Changes nothing. Raises `ConfigError`, `LogError`."""
    in_file = read_records(data / token_file.NAME)
    if not is_database(log):
        return in_file
    async with _credentials(log, limits) as kept:
        return in_file if kept is None else [*in_file, *await table_records(kept)]


@asynccontextmanager
async def kept_tokens(log: str, data: Path | None, url: str) -> AsyncGenerator[tuple[Tokens, str] | None]:
    """The credentials of a daemon that does not answer at `url`, and where they are; none if no daemon made any.

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
    """Keep daemons away from a folder meanwhile: by the lock that each takes on its log."""
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
"""The author of what the command line does, as the log tells it."""


# -- the token of commands of the same user ------------------------------------------------------------------


async def keep_token(data: Path, tokens: Tokens) -> None:
    """See that the file holds a token that is valid; an old one that still is stays."""
    path = data / TOKEN_FILE
    with contextlib.suppress(TurnwireError):
        known = read_token(path)
        identity = None if known is None else await tokens.check(known)
        if identity is not None and identity.role is Role.OWNER:
            return
    _, secret = await tokens.issue(TOKEN_NAME, Role.OWNER)
    write_private(path, f"{secret}\n".encode())
