"""A session store in a folder, which survives the agent's process.

Implements `turnwire.agent.store`. Each session has a folder with `meta.json`, replaced by renaming, and
`history.ndjson`, which only grows. Data acknowledged by `save` and `append` survives process and machine. Readers
and the next append drop a line that a crash cut off. Files are readable by their owner only. Calls run in one
worker thread, in order. Two processes may share the folder; a writer holds the lock on the session's history. No
session id leads outside the folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from turnwire.agent.store import (
    FIRST,
    PAGE,
    Kept,
    OptionValue,
    Page,
    check_revision,
    encoded,
    page_of,
    unknown_session,
)
from turnwire.errors import LogCorrupt, LogError, LogFull, LogUnavailable, LogVersionMismatch
from turnwire.hosting.services.roots import close_directory

logger = logging.getLogger(__name__)

VERSION = 1
META, HISTORY = "meta.json", "history.ndjson"
FILE_MODE, FOLDER_MODE = 0o600, 0o700
NAME_BYTES = 200
"""File systems allow 255 bytes; the rest is for the names of folders that are being deleted."""

_numbers = itertools.count(1)

T = TypeVar("T")


class _Head(Struct, kw_only=True):
    """`meta.json` without the state, which may be large and is not needed for a list."""

    version: int
    id: str
    cwd: str
    revision: int = FIRST
    directories: tuple[str, ...] = ()
    title: str | None = None
    updated_at: str = ""


class _Meta(_Head, kw_only=True):
    """All of `meta.json`."""

    mode: str | None = None
    options: dict[str, OptionValue] = {}
    state: dict[str, Any] = {}


class FolderStore:
    """Sessions below one folder, which is made when the first of them is saved."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).expanduser().absolute()
        # One thread at a time preserves the order of calls.
        self._turns = CapacityLimiter(1)

    async def save(self, record: Kept) -> None:
        """Store a session. Raises `LogError` if the disk fails, and as `SessionStore` states."""
        # Encode before the first wait: the author may go on changing the state.
        await self._run(self._save, record.id, record.revision, _as_meta(record))

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to a history. Raises `SessionNotFound`, `LogError`."""
        await self._run(self._append, session_id, updates)

    async def load(self, session_id: str) -> Kept | None:
        """Return a session with its history. Raises `LogCorrupt` or `LogVersionMismatch` if it cannot be read."""
        return await self._run(self._load, session_id)

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """Return a page of sessions, without unreadable ones. Raises `RequestRefused` for a bad cursor."""
        return page_of(await self._run(self._heads), cwd, cursor, limit)

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        await self._run(self._delete, session_id)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        try:
            return await to_thread.run_sync(function, *args, limiter=self._turns)
        except OSError as error:
            raise _from_os(error) from error

    # -- in a worker thread ---------------------------------------------------------------------------------

    def _save(self, session_id: str, revision: int, content: bytes) -> None:
        folder = self._at(session_id)
        if revision == FIRST:
            # Create it only now, so that a deleted session stays deleted.
            self._make(folder)
        try:
            with _locked(folder / HISTORY):
                check_revision(revision, _revision(folder / META))
                _replace(folder / META, content)
        except FileNotFoundError:
            raise unknown_session() from None

    def _make(self, folder: Path) -> None:
        # An agent that works for one session must not read others through their files.
        close_directory(self._folder)
        with suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
            _sync(self._folder)
        with _opened(folder / HISTORY, os.O_WRONLY | os.O_CREAT):
            pass

    def _append(self, session_id: str, updates: Sequence[bytes]) -> None:
        # Inside a JSON text a line end is white space only.
        lines = b"".join(each.replace(b"\n", b" ") + b"\n" for each in updates)
        try:
            with _locked(self._at(session_id) / HISTORY) as history:
                _write_at(history, _whole(history), lines)
                os.fsync(history)
        except FileNotFoundError:
            raise unknown_session() from None

    def _load(self, session_id: str) -> Kept | None:
        folder = self._at(session_id)
        try:
            meta = _read_meta(folder / META, _Meta)
            # Read after the record: a session that is being deleted has one of the two files, or none.
            lines = (folder / HISTORY).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return None
        if meta.id != session_id:
            return None
        return Kept(
            id=meta.id,
            cwd=meta.cwd,
            directories=meta.directories,
            title=meta.title,
            updated_at=meta.updated_at,
            mode=meta.mode,
            options=meta.options,
            state=meta.state,
            revision=meta.revision,
            history=_readable(lines, session_id),
        )

    def _heads(self) -> list[Kept]:
        found: list[Kept] = []
        with suppress(FileNotFoundError):
            for each in os.scandir(self._folder):
                if each.name.startswith("."):
                    continue
                try:
                    head = _read_meta(Path(each.path) / META, _Head)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except LogError as error:
                    logger.warning("a session is left out of the list: %s", error)
                    continue
                about = {name: getattr(head, name) for name in ("id", "cwd", "directories", "title", "updated_at")}
                found.append(Kept(**about))
        return found

    def _delete(self, session_id: str) -> None:
        folder, gone = self._at(session_id), self._folder / f".gone-{os.getpid()}-{next(_numbers)}"
        with ExitStack() as held:
            with suppress(FileNotFoundError):
                # Lock, so that no other writer's append is half done.
                held.enter_context(_locked(folder / HISTORY))
            with suppress(FileNotFoundError):
                # Renaming makes deletion one step for concurrent readers.
                folder.rename(gone)
                shutil.rmtree(gone)

    def _at(self, session_id: str) -> Path:
        """Return the folder of a session. Clients choose session names, so a name is never used as a path."""
        name = quote(session_id, safe="", errors="surrogatepass") or "%"
        if len(name) > NAME_BYTES:
            name = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / name.replace(".", "%2E")


def _as_meta(record: Kept) -> bytes:
    meta = _Meta(
        version=VERSION,
        id=record.id,
        cwd=record.cwd,
        revision=record.revision,
        directories=record.directories,
        title=record.title,
        updated_at=record.updated_at,
        mode=record.mode,
        options=record.options,
        state=record.state,
    )
    return encoded(meta)


@contextmanager
def _opened(path: Path, flags: int) -> Generator[int]:
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _locked(history: Path) -> Generator[int]:
    """Alone with a session that is there, among all processes. Raises `FileNotFoundError`, and makes nothing."""
    with _opened(history, os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _revision(path: Path) -> int | None:
    """Return the stored record's revision; None if its creator crashed before writing one."""
    try:
        return _read_meta(path, _Head).revision
    except FileNotFoundError:
        return None


def _whole(history: int) -> int:
    """Return the offset after the last whole line. A longer file was cut in the middle of a write."""
    end = os.fstat(history).st_size
    while end > 0:
        begin = max(0, end - 65536)
        piece = os.pread(history, end - begin, begin)
        if (found := piece.rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


def _write_at(history: int, at: int, lines: bytes) -> None:
    """Write all bytes or none: a partial write is undone after an error."""
    os.ftruncate(history, at)
    try:
        written = 0
        while written < len(lines):
            written += os.pwrite(history, lines[written:], at + written)
    except OSError:
        os.ftruncate(history, at)
        raise


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}-{os.getpid()}-{next(_numbers)}")
    try:
        with _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            _write_at(file, 0, content)
            os.fsync(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Sync a folder, without which a new name in it does not survive the machine."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        os.fsync(opened)


_MetaKind = TypeVar("_MetaKind", bound=_Head)


def _read_meta(path: Path, kind: type[_MetaKind]) -> _MetaKind:
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError:
        raise LogCorrupt(
            f"the session in the folder {path.parent.name} has a record that is no such; delete it"
        ) from None
    if meta.version != VERSION:
        raise LogVersionMismatch(
            "the session was stored by another version of turnwire; load it with that one, or delete it",
            version=meta.version,
        )
    return meta


def _readable(lines: Sequence[bytes], session_id: str) -> tuple[bytes, ...]:
    """Return the whole lines that are JSON. A power failure may leave one that is not; the others still count."""
    found: list[bytes] = []
    for each in lines:
        try:
            msgspec.json.decode(each, type=msgspec.Raw)
        except msgspec.MsgspecError:
            logger.warning("an update in the history of session %s cannot be read and is left out", session_id)
        else:
            found.append(each)
    return tuple(found)


def _from_os(error: OSError) -> LogError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogFull("the disk with the agent's sessions is full; make room")
    return LogUnavailable(f"the folder with the agent's sessions cannot be used: {os.strerror(error.errno or 0)}")
