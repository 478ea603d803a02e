"""Opening the log file: creation, checks, connections. Everything here blocks and is called in a worker thread.

Opening never changes a file that is not a log, is damaged or has another format. A new file is created under
another name and renamed, so the file is either absent or a whole log; an empty one lost its content.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from turnwire.errors import LogCorrupt, LogError, LogFull, LogLocked, LogUnavailable, LogVersionMismatch
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import sqlite_schema as sql
from turnwire.log.file_lock import lock_file, usable
from turnwire.log.folders import make_folders, sync_folder

_MAGIC, _WAL_MODE = b"SQLite format 3\0", b"\2\2"
"""Bytes 0 and 18 of SQLite's header, in every log. The format is at 60, the application id at 68."""


@dataclass(frozen=True)
class SqliteFile:
    """An open log file."""

    path: Path
    lock: int
    """Descriptor of the owner's lock."""
    connection: sqlite3.Connection
    """For the writer."""
    wal: int
    """Descriptor of the write-ahead log, for the writer's syncs. It stays open: the system reports a failed write
    once to each descriptor that was open then."""
    rows: dict[SessionId, sql.Row]
    busy_timeout_s: float
    identity: os.stat_result
    """The file at `path` when it was opened."""

    @classmethod
    def open(cls, path: Path, limits: Limits) -> SqliteFile:
        """Open or create a log. Raises `LogError` or `ConfigError`; then everything is closed again."""
        with usable(path):
            path = path.resolve()
            make_folders(path.parent)
        with ExitStack() as undo:
            lock = lock_file(path)
            undo.callback(os.close, lock)
            try:
                with usable(path):
                    is_new = not path.exists()
                    if not is_new:
                        _check_header(path)
                if is_new:
                    _create(path)
                connection = undo.enter_context(closing(_connect(path, "rw", timeout_s=limits.busy_timeout_s)))
                _prepare(connection, limits)
                rows = _load(connection)
                # Finish the removals that a crash interrupted.
                while sql.sweep(connection):
                    pass
                wal = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
                identity = path.stat()
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise log_error(error) from error
            undo.pop_all()
        return cls(path, lock, connection, wal, rows, limits.busy_timeout_s, identity)

    def connect_reader(self) -> sqlite3.Connection:
        """Return a connection that cannot write."""
        return _connect(self.path, "ro", timeout_s=self.busy_timeout_s)

    def check_place(self) -> None:
        """Raise `LogCorrupt` if the file was deleted or replaced: SQLite would write to the old one."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), self.identity):
                return
        raise LogCorrupt(
            f"the event log {self.path} was deleted or replaced while in use, so nothing is stored any more."
            " Stop, and restore it from a backup"
        )

    def release(self) -> None:
        """Admit another owner."""
        os.close(self.wal)
        os.close(self.lock)


def _connect(path: Path, mode: str, *, timeout_s: float) -> sqlite3.Connection:
    """Return a connection to an existing file, without Python's own transactions."""
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def _check_header(path: Path) -> None:
    """Reject a file that is not a log of this format."""
    with path.open("rb") as file:
        header = file.read(100)
    version, application = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
    if not header:
        raise LogCorrupt(
            f"the event log {path} is empty: it lost its content. Restore it from a backup, or delete it to start"
            " with a new log"
        )
    if header[:16] != _MAGIC:
        raise LogCorrupt("the file is no database; give another path")
    if application != sql.APPLICATION_ID:
        raise LogCorrupt("the file is a database, but no event log of turnwire; give another path")
    if version != sql.VERSION:
        raise LogVersionMismatch(
            f"the event log has format {version} and this turnwire reads format {sql.VERSION} only;"
            " use the turnwire that wrote it, or start with another data folder (--data DIR)",
            format=version,
            known=sql.VERSION,
        )
    if header[18:20] != _WAL_MODE:
        raise LogCorrupt(_DAMAGED[1])  # SQLite would open it read-only, or without a write-ahead log.


def _create(path: Path) -> None:
    """Create a log without sessions, whole or not at all, also over a power cut."""
    if Path(f"{path}-wal").exists():
        # SQLite would apply it to the new file.
        raise LogCorrupt(
            f"the event log {path} is missing, but its newest events are in {path.name}-wal. Restore both from a"
            " backup, or delete the latter to start with a new log"
        )
    new = path.with_name(f"{path.name}.new")
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{new}{suffix}").unlink(missing_ok=True)
    with usable(path):
        # SQLite creates the files next to this one with the same mode.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(_connect(new, "rw", timeout_s=0.0)) as connection:
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise LogUnavailable("the event log needs a write-ahead log; put it on a local disk")
        connection.execute("BEGIN IMMEDIATE")
        for statement in sql.TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    new.rename(path)
    sync_folder(path.parent)


def _prepare(connection: sqlite3.Connection, limits: Limits) -> None:
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {limits.checkpoint_bytes}")
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        # Copy and sync the changes before a crash, before any new change is called durable.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        # Without room the log can still be read, and appends report the full disk.
        if not isinstance(log_error(error), LogFull):
            raise


def _load(connection: sqlite3.Connection) -> dict[SessionId, sql.Row]:
    """Return the sessions, with their oldest and newest events checked. Raises `LogCorrupt`."""
    # A lost row has no checksum that could detect it; the index on the names still has it.
    if connection.execute(sql.CHECK_SESSIONS).fetchone() != ("ok",):
        raise LogCorrupt(_DAMAGED[1])
    rows: dict[SessionId, sql.Row] = {}
    for found in connection.execute(sql.LIST_SESSIONS):
        key, head = row = sql.row_of(found)
        base = key << sql.OFFSET_BITS
        for after in {head.first - 1, head.head - 1} if head.first <= head.head else ():
            segment = connection.execute(sql.SEGMENTS, (base | after, base | sql.LAST_OFFSET)).fetchone()
            if segment is None or sql.bodies_in(sql.Segment(*segment), after)[0] > after + 1:
                raise sql.torn(head.session_id)
        rows[head.session_id] = row
    return rows


# -- errors: by result code, and never with SQLite's text, which may contain a path

_LOCKED = (LogLocked, "another program holds the event log; end it or wait, then try again")
_FULL = (LogFull, "there is no room left for the event log; free some, then try again")
_DAMAGED = (LogCorrupt, "the event log's file is damaged or no database; stop and restore it from a backup")
_NOT_WRITABLE = (LogUnavailable, "the event log cannot be written; make its file and directory writable")
_FAILED = (LogUnavailable, "the event log failed; see the log of this program and check the disk")
_TOO_BIG = (LogError, "an event is larger than SQLite stores; lower the frame limit")

_BY_KIND: dict[int, tuple[type[LogError], str]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    # Our statements are constant: if a table is missing or a key exists, the file is wrong.
    sqlite3.SQLITE_ERROR: _DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: _DAMAGED,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_TOOBIG: _TOO_BIG,
}
"""Everything else, such as an I/O error, is `_FAILED`."""


def _kind(error: Exception) -> int | None:
    """Return the low byte of the result code; the other bits name the location."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def log_error(error: Exception) -> LogError:
    """Return the error to raise instead of `error`, with `error` as its cause."""
    if isinstance(error, LogError):
        return error
    kind = _kind(error)
    # Python raises these without a code when damaged text is not UTF-8.
    is_not_text = isinstance(error, UnicodeDecodeError) or (
        kind is None and type(error) is sqlite3.OperationalError
    )
    what, message = _DAMAGED if is_not_text else _FAILED if kind is None else _BY_KIND.get(kind, _FAILED)
    ours = what(message, sqlite_code=getattr(error, "sqlite_errorcode", None))
    ours.__cause__ = error
    return ours


def is_failed_sync(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC


def may_be_one_jobs_fault(error: Exception) -> bool:
    """Return whether one change may be too large while the others fit. A lock or a failing disk affects all."""
    return _kind(error) in (None, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
