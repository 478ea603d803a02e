"""Opens the log's file: its owner's lock, its checks, its migrations, and the heads that are in it.

Takes a path, gives a `SqliteFile` ready to be written. Never changes a file that is not ours, is damaged or
is of a newer turnwire, and never lets two owners in. Everything here blocks; it is called in a worker thread.

The lock is an `flock` on `<path>.lock`. It goes when its process goes, however that dies, so a lock is never
stale. The file stays: removing it would let two owners lock two files of the same name.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from turnwire.errors import ConfigError, LogCorrupt, LogError, LogFull, LogLocked, LogTooNew, LogUnavailable
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import SessionHead
from turnwire.log.sqlite_checkpoint import PAUSE_S, WalGate
from turnwire.log.sqlite_errors import log_error
from turnwire.log.sqlite_jobs import Row, sweep

_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True)
class SqliteFile:
    """An open log file and what the threads around it share."""

    path: Path
    lock: int
    """Descriptor of the owner's lock."""
    writes: sqlite3.Connection
    """For the writer. Opened in one thread and used in another, never in two at a time."""
    checkpoints: sqlite3.Connection
    """For the checkpointer, likewise."""
    rows: dict[SessionId, Row]
    busy_timeout_s: float
    gate: WalGate = field(default_factory=WalGate)

    @property
    def wal_path(self) -> str:
        return f"{self.path}-wal"

    @classmethod
    def open(cls, path: Path, limits: Limits) -> SqliteFile:
        """Raises `LogError` or `ConfigError`; then nothing is left open."""
        path = _make_directories(path)
        with ExitStack() as undo:
            lock = _lock(path)
            undo.callback(os.close, lock)
            try:
                _make_file(path)
                _probe(path)
                writes = undo.enter_context(closing(_connect_writer(path, limits)))
                _migrate(writes)
                # What a crash kept from being removed.
                while sweep(writes):
                    pass
                rows = _load(writes)
                checkpoints = undo.enter_context(closing(_connect_checkpointer(path)))
            except sqlite3.Error as error:
                raise log_error(error) from error
            undo.pop_all()
        return cls(path, lock, writes, checkpoints, rows, limits.busy_timeout_s)

    def connect_reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        return connect(self.path, "ro", timeout_s=self.busy_timeout_s)

    def release(self) -> None:
        """Let another owner in."""
        os.close(self.lock)


def connect(path: Path, mode: str, *, timeout_s: float) -> sqlite3.Connection:
    """A connection to a file that exists, without Python's own transactions."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def _placed(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the event log cannot be at {str(path)!r} ({os.strerror(error.errno or 0)});"
            " give a file in a directory that can be written"
        ) from error


def _make_directories(path: Path) -> Path:
    """The real path, whose directories exist; new ones are for their owner only."""
    with _placed(path):
        path = path.resolve()
        # `mkdir(parents=True)` gives the mode to the last directory only.
        for directory in reversed(path.parents):
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700)
    return path


def _lock(path: Path) -> int:
    """Become the owner, or say who is."""
    with _placed(path):
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise LogUnavailable("the event log cannot be locked; put it on a local disk") from error
        raise LogLocked(
            f"process {owner or 'unknown'} owns the event log; stop it, or give another path",
            owner=int(owner) if owner.isdecimal() else None,
        ) from None
    # The pid is for people. On a full disk the log opens without it.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _make_file(path: Path) -> None:
    """Only for the owner: closing any descriptor of the file drops the locks that this process has on it."""
    with _placed(path):
        # SQLite gives the files beside it the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _probe(path: Path) -> None:
    """Refuse a foreign, damaged or newer file, over a connection that cannot change it."""
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
    if not magic:
        return
    if magic != _MAGIC:
        # SQLite would take a file of a few bytes for an empty one and write over it.
        raise LogCorrupt("the file is no database; give another path")
    with closing(connect(path, "ro", timeout_s=0.0)) as connection:
        tables, version, application = (
            connection.execute(each).fetchone()[0]
            for each in (sql.COUNT_TABLES, "PRAGMA user_version", "PRAGMA application_id")
        )
    if application != sql.APPLICATION_ID and (tables or version):
        raise LogCorrupt("the file is a database, but no event log of turnwire; give another path")
    if version > sql.VERSION:
        raise LogTooNew(
            f"the event log has format {version}, this turnwire knows {sql.VERSION}; use a newer turnwire",
            format=version,
            known=sql.VERSION,
        )


def _connect_writer(path: Path, limits: Limits) -> sqlite3.Connection:
    connection = connect(path, "rw", timeout_s=limits.busy_timeout_s)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise LogUnavailable("the event log needs a write-ahead log; put it on a local disk")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # The checkpointer reads the length of the content from the length of the file.
        connection.execute(f"PRAGMA journal_size_limit = {limits.checkpoint_bytes}")
        connection.execute("PRAGMA synchronous = FULL")
        _fold_leftovers(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _fold_leftovers(connection: sqlite3.Connection) -> None:
    """Copy and sync what a crash left in the WAL, before anything new is called durable."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        # Without room the log can still be read, and appends say themselves that there is none.
        if not isinstance(log_error(error), LogFull):
            raise


def _connect_checkpointer(path: Path) -> sqlite3.Connection:
    """A connection that hardly waits for anyone, and whose checkpoints are always synced."""
    connection = connect(path, "rw", timeout_s=PAUSE_S)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # SQLite opens the write-ahead log at the first read. Now, because the first to close must not be the
        # only one that has it open: that one would lock it and remove it.
        connection.execute(sql.COUNT_TABLES).fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, statements in enumerate(sql.MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise


def _load(connection: sqlite3.Connection) -> dict[SessionId, Row]:
    """The heads, checked against the events that are there."""
    rows: dict[SessionId, Row] = {}
    for key, name, epoch, first, head, unsettled, oldest, newest in connection.execute(sql.LIST_SESSIONS):
        if (oldest, newest) != ((first, head) if first <= head else (None, None)):
            raise _torn(name)
        rows[name] = Row(key, SessionHead(SessionId(name), Epoch(epoch), first, head, bool(unsettled)))
    return rows


def _torn(name: str) -> LogError:
    return LogCorrupt(
        f"the events of session {name!r} do not match its head; stop and restore the file from a backup",
        session=name,
    )
