"""`turnwire copy`: copy the log of a data folder into a database, or any log into any other, with the credentials.

It reports progress on stderr, can be interrupted and restarted, and finally prints the hash that both logs share.
Other files of a data folder stay there: use the same folder for the daemon with the new log.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import anyio
import click

from turnwire.cli.commands import Command
from turnwire.cli.output import print_json, progress, tell
from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.log.address import HOW, NO_DRIVER, check_database, is_database, shown, sqlite_file
from turnwire.log.copying import Copied, Progress, RestorableLog, copy_log
from turnwire.log.credentials import Credentials, LogWithCredentials
from turnwire.log.owners import NodeIdentity
from turnwire.runtime.folds import VIEW
from turnwire.runtime.session import STATE
from turnwire.server.access import token_file
from turnwire.server.access.token_file import read_records, write_records
from turnwire.server.access.token_table import table_records, take_records
from turnwire.server.access.tokens import TokenRecord

EXAMPLES = """
turnwire copy --from sqlite:///home/me/.local/state/turnwire --to postgresql://turnwire@db.example/turnwire
turnwire copy --from postgresql://turnwire@db.example/turnwire --to sqlite:///srv/turnwire/turnwire.db
"""
EVERY = 50_000
"""Events between two progress lines without a terminal."""


@click.command(cls=Command, examples=EXAMPLES)
@click.option(
    "--from", "source", metavar="LOG", required=True, help="The log to read: sqlite:///PATH or a database."
)
@click.option("--to", "target", metavar="LOG", required=True, help="The log to write; made if it is not there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as one line of JSON.")
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy a log into another one: from a data folder to PostgreSQL.

    Sessions keep their epochs and offsets, so all cursors stay valid. Tokens, logins and share links are copied as
    well.

    Stop the daemon first. An interrupted copy resumes when it is run again. At the end both logs are read and
    compared.
    """
    copied = anyio.run(_copy, source, target, backend_options={"use_uvloop": True})
    if as_json:
        print_json({"sessions": copied.sessions, "copied": copied.events, "sha256": copied.digest})
        return
    click.echo(
        f"{copied.sessions} sessions, {copied.events} events copied now; both logs have SHA-256 {copied.digest}"
    )


async def _copy(source: str, target: str) -> Copied:
    async with AsyncExitStack() as stack:
        read = await _open(stack, source, is_new=False)
        write = await _open(stack, target, is_new=True)
        told = 0
        with progress(f"copying to {shown(target)}") as show:

            def hear(now: Progress) -> None:
                nonlocal told
                show(f"{now.sessions} sessions and {now.events} events copied; now {now.session_id}")
                if now.events - told >= EVERY:
                    told = now.events
                    tell(f"{now.sessions} sessions and {now.events} events copied")

            copied = await copy_log(read, write, (STATE, VIEW), hear)
        await _copy_tokens(source, read, target, write)
        return copied


async def _copy_tokens(source: str, read: RestorableLog, target: str, write: RestorableLog) -> None:
    """Copy credentials once: a copied and then revoked one must not return with another copy."""
    known = await _tokens(source, read)
    path = _token_file(target)
    if path is None:
        await take_records(_credentials(write), known)
    elif not read_records(path):
        write_records(path, known)


async def _tokens(address: str, log: RestorableLog) -> list[TokenRecord]:
    path = _token_file(address)
    return read_records(path) if path is not None else await table_records(_credentials(log))


def _token_file(address: str) -> Path | None:
    path = sqlite_file(address)
    return None if path is None else path.parent / token_file.NAME


def _credentials(log: RestorableLog) -> Credentials:
    return cast("LogWithCredentials", log).credentials


async def _open(stack: AsyncExitStack, address: str, *, is_new: bool) -> RestorableLog:
    path = sqlite_file(address)
    if path is not None:
        if not is_new and not path.is_file():
            raise ConfigError(f"there is no log at {path}; name a data folder, or the file turnwire.db in it")
        log = await SqliteEventLog.open(path, limits=Limits(), durability=Durability.FULL)
        stack.push_async_callback(log.aclose)
        return log
    if not is_database(address):
        raise ConfigError(f"a log is sqlite:///PATH or {HOW}; write one of them")
    try:
        from turnwire.log.postgres import open_postgres_log
    except ImportError:
        raise ConfigError(NO_DRIVER) from None
    # The nodes that later open the sessions decide which place they belong to.
    opened = open_postgres_log(check_database(address), limits=Limits(), node=NodeIdentity("copy", ""))
    return await stack.enter_async_context(opened)
