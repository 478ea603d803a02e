"""Credentials on disk: `tokens.json`, for its owner alone.

Takes records with hashed secrets; gives them back after a restart. A write replaces the whole file at once, so a
reader finds the old one or the new one. Never holds a secret, and never reads a file that others may read or write:
that is refused with what to do. Blocks: the file is small and rarely written.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from turnwire.errors import ConfigError
from turnwire.ids import SessionId
from turnwire.server.door.identity import Role

VERSION = 1
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
OTHERS, OTHERS_WRITE = 0o077, 0o022


class TokenRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One credential. Of its secret only the hash is known."""

    id: str
    name: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hex. 256 random bits need no salt and no slow hash."""
    created_at: int
    """Milliseconds since 1970, as `expires_at`."""
    expires_at: int | None = None
    session_id: SessionId | None = None
    kind: Literal["token", "login"] = "token"
    """A token is sent as a header; a login lives in a browser's cookie. Neither passes for the other."""
    granted_by: str | None = None
    """The token that asked for this login; it ends with that token."""


class _Stored(Struct):
    version: int
    tokens: list[TokenRecord]


def read_records(path: Path) -> list[TokenRecord]:
    """What is stored; nothing when there is no file yet.

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
    """Replace the file. Once this returns, the records outlive a crash; if it raises, the old file is there."""
    write_private(path, msgspec.json.format(msgspec.json.encode(_Stored(VERSION, list(records))), indent=2))


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read; a reader finds the old content or the new one, never a part."""
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
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
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


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
    if stored.version > VERSION:
        raise ConfigError(f"{path} was written by a newer turnwire; use that one, or another data directory")
    return stored.tokens
