"""`tokens.json`: the credentials of a daemon that shares its log with no other node; in memory if there is no file.

All credentials are in memory, and the file is written as a whole. Issuing writes it first. Revoking needs no room
on the disk: the file is replaced; or overwritten in place, where a crash leaves a file that is rejected as damaged;
or removed, so that a restart knows no credential rather than a revoked one. Failed writes are retried until they
succeed. A file that others may read or write is rejected, with instructions.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from turnwire.clock import Clock, KnownTime
from turnwire.errors import ConfigError, CredentialsNotStored
from turnwire.log.folders import make_folders, sync_folder
from turnwire.server.access.tokens import Role, TokenRecord, has_expired

NAME = "tokens.json"
VERSION = 1
FILE_MODE = 0o600
OTHERS, OTHERS_WRITE = 0o077, 0o022
RETRY_S = 1.0
"""Interval between attempts to write after a failure; it is a small file."""
PRUNE_S = 30.0
"""Interval between checks for expired credentials."""

logger = logging.getLogger(__name__)


class TokenFile:
    """A `TokenStore` in a file, or in memory without one."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        """Raises `ConfigError` if the file is open to others or damaged."""
        self._path = path
        self._clock = clock
        self._time = KnownTime(clock)
        self._records = {} if path is None else {each.id: each for each in read_records(path)}
        self._unstored: set[str] = set()
        """Credentials that have ended but are still on disk."""
        self._trouble = anyio.Event()
        """Set while the disk differs from memory."""

    def known(self, token_id: str) -> TokenRecord | None:
        return self._records.get(token_id)

    async def find(self, token_id: str) -> TokenRecord | None:
        return self._records.get(token_id)

    async def all(self) -> tuple[TokenRecord, ...]:
        return tuple(self._records.values())

    async def add(self, record: TokenRecord, most: int) -> bool:
        """Store a credential; it is on disk when this returns."""
        kept = {each.id: each for each in self._current()} | {record.id: record}
        if len(kept) > most:
            return False
        try:
            self._write(kept.values())
        except OSError as error:
            _log_trouble(error)
            raise _not_stored(
                error, "the credential was not made: the disk did not take it; make room, then try again"
            ) from None
        self._records = kept
        return True

    async def add_first(self, record: TokenRecord) -> bool:
        """Store an owner's token if there is none."""
        if any(each.role is Role.OWNER and each.kind == "token" for each in self._current()):
            return False
        try:
            return await self.add(record, len(self._records) + 1)
        except CredentialsNotStored as error:
            raise ConfigError(
                f"cannot write {self._path} ({error.context['why']}); make its directory writable, or use another"
                " --data"
            ) from None

    def forget(self, token_id: str) -> set[str]:
        gone = {token_id} & self._records.keys()
        while more := {each.id for each in self._records.values() if each.granted_by in gone} - gone:
            gone |= more
        self._records = {each.id: each for each in self._records.values() if each.id not in gone}
        self._unstored |= gone
        return gone

    async def remove(self, token_id: str) -> set[str]:
        """Remove a forgotten credential from the disk."""
        gone = {token_id} & self._unstored
        if gone:
            self._store()
        return gone

    async def run(self, ended: Callable[[Collection[str]], None]) -> None:
        """Retry failed writes, and remove expired credentials, so that a clock set back later revives none."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._retry)
            while True:
                if len(self._current()) < len(self._records):
                    self._records = {each.id: each for each in self._current()}
                    with contextlib.suppress(CredentialsNotStored):
                        self._store()
                await self._clock.sleep(PRUNE_S)

    async def _retry(self) -> None:
        while True:
            await self._trouble.wait()
            await self._clock.sleep(RETRY_S)
            with contextlib.suppress(CredentialsNotStored):
                self._store()

    def _current(self) -> list[TokenRecord]:
        now = self._time.now_ms()
        return [each for each in self._records.values() if not has_expired(each, now)]

    def _store(self) -> None:
        """Write the current credentials to disk. Raises `CredentialsNotStored`, and retries later."""
        try:
            try:
                self._write(self._current())
            except OSError as error:
                self._give_up_room(error)
        except OSError as error:
            if not self._trouble.is_set():
                _log_trouble(error)
            self._trouble.set()
            raise _not_stored(
                error,
                "the credential has ended; the disk does not take it yet, and it is tried again until it does",
            ) from None
        self._unstored.clear()
        if self._trouble.is_set():
            logger.info("credentials are written again", extra={"event": "credentials_stored"})
            self._trouble = anyio.Event()

    def _give_up_room(self, error: OSError) -> None:
        """Remove ended credentials without room on the disk. Raises `error` if the file had to be removed."""
        assert self._path is not None, "without a file no write fails"
        try:
            overwrite_records(self._path, self._current())
        except OSError:
            # It may have been partly written; and a restart must not find revoked credentials.
            self._path.unlink(missing_ok=True)
            raise error from None

    def _write(self, records: Iterable[TokenRecord]) -> None:
        if self._path is not None:
            write_records(self._path, records)


def _not_stored(error: OSError, message: str) -> CredentialsNotStored:
    return CredentialsNotStored(message, why=_why(error))


def _log_trouble(error: OSError) -> None:
    extra = {"event": "credentials_not_stored", "why": _why(error)}
    logger.error("credentials were not written: %s", _why(error), extra=extra)


def _why(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


# -- the file ------------------------------------------------------------------------------------------------


class _Stored(Struct):
    version: int
    tokens: list[TokenRecord]


def read_records(path: Path) -> list[TokenRecord]:
    """Return the stored records; an empty list if the file does not exist.

    Raises:
        ConfigError: The file or its directory is open to others, is not ours, or cannot be read.
    """
    try:
        _check_directory(path.parent)
        with path.open("rb") as file:
            _check_file(path, os.fstat(file.fileno()))
            content = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({type(error).__name__}); check its permissions") from None
    return _decode(path, content)


def write_records(path: Path, records: Iterable[TokenRecord]) -> None:
    """Replace the file. Once this returns, the records survive a crash; if it raises, the old file is unchanged."""
    write_private(path, msgspec.json.format(msgspec.json.encode(_Stored(VERSION, list(records))), indent=2))


def set_aside(path: Path) -> None:
    """Rename the file, because its credentials are stored elsewhere from now on."""
    path.replace(path.with_name(f"{path.name}.taken"))
    sync_folder(path.parent)


def overwrite_records(path: Path, records: Iterable[TokenRecord]) -> None:
    """Write the records over the content of the file, which must not be shorter. Needs no room on the disk."""
    content = msgspec.json.encode(_Stored(VERSION, list(records)))
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            raise OSError(errno.ENOSPC, "the file is too short")
        file.write(content.ljust(size))
        file.flush()
        os.fsync(file.fileno())


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read. A reader finds the old content or the new one, never a part."""
    make_folders(path.parent)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(number, "wb") as file:
            os.fchmod(number, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


def _check_directory(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"others may write in {path}, where the tokens are kept; close it to them: chmod 700 {path}"
        )


def _check_file(path: Path, found: os.stat_result) -> None:
    if found.st_mode & OTHERS:
        raise ConfigError(f"others may read {path}, which holds the tokens; close it to them: chmod 600 {path}")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user; start as that user, or use another data directory")


def _decode(path: Path, content: bytes) -> list[TokenRecord]:
    try:
        stored = msgspec.json.decode(content, type=_Stored)
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(
            f"{path} is damaged; restore it from a backup, or remove it to start with a new owner token"
        ) from None
    if stored.version != VERSION:
        raise ConfigError(f"{path} was written by another version of turnwire; use that, or another data directory")
    return stored.tokens
