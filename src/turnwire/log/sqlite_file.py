"""The log's file: its tables and every statement that touches them, what SQLite's errors mean, how it is opened.

Opening never changes a file that is not ours, is damaged or is of a newer turnwire, and never lets two owners in.
Everything here blocks; it is called in a worker thread. The file is meant to be read by others: any SQLite tool may
open it read-only while turnwire owns it.

    sessions   one row per session
        id         what the other tables call it; never used again after a delete
        name       the session's id as clients know it
        epoch      this life of the session's log
        first      offset of the oldest kept event, one beyond the newest when none is kept
        unsettled  1 while a turn is open or prompts wait
    segments   one row for the events of an append, or for a part of them; without gaps from `first` on
        key        id of the session << 36 | offset of the last event
        ends       where each event ends in `bodies`, as a JSON array
        bodies     the events as they were given, one behind the other
    snapshots  one row per session and fold; a cache that may be emptied
        session, name, offset, version, body
    forgotten  events up to `upto` that a trim or delete has taken out of the log and is still removing
        session, upto
    events     the segments as a view for others: session, offset, body

The newest segment of a session has its head; so an append writes one row, and the table `sessions` only when
something else changes.

`PRAGMA user_version` is the number of migrations applied; `PRAGMA application_id` marks the file as ours.

The owner's lock is an `flock` on `<path>.lock`. It goes when its process goes, however that dies, so a lock is
never stale. The file stays: removing it would let two owners lock two files of the same name.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from turnwire.errors import ConfigError, LogCorrupt, LogError, LogFull, LogLocked, LogTooNew, LogUnavailable
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB, Limits, MiB
from turnwire.log.base import SessionHead
from turnwire.log.sqlite_wal import PAUSE_S, WalFile, WalGate, sync_file

_MAGIC = b"SQLite format 3\0"
_SWEEP_SEGMENTS = 16
"""Some milliseconds of work; a whole long session would stop every other one for seconds."""

# -- tables and statements -------------------------------------------------------------------------------------

APPLICATION_ID = 0x74776C67
"""`twlg`, where tools such as `file` look for it."""

OFFSET_BITS = 36
"""Of a segment's key: room for 134 million sessions with 68 billion events each."""
LAST_OFFSET = (1 << OFFSET_BITS) - 1

SEGMENT_EVENTS, SEGMENT_BYTES = 256, 256 * KiB
"""A reader that begins inside of a segment has read all of it, so it is bounded; an event that is larger is
alone."""

_BEGIN = "CASE each.key WHEN 0 THEN 0 ELSE json_extract(ends, '$[' || (each.key - 1) || ']') END"
"""Where an event begins in `bodies`, for the view."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            epoch TEXT NOT NULL,
            first INTEGER NOT NULL,
            head INTEGER NOT NULL,
            unsettled INTEGER NOT NULL
        )
        """,
        """
        CREATE TABLE events (
            session INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (session, offset)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE snapshots (
            session INTEGER NOT NULL,
            name TEXT NOT NULL,
            offset INTEGER NOT NULL,
            version INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (session, name)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE forgotten (
            session INTEGER NOT NULL PRIMARY KEY,
            upto INTEGER NOT NULL
        )
        """,
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
    (
        "ALTER TABLE sessions RENAME TO sessions_1",
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            epoch TEXT NOT NULL,
            first INTEGER NOT NULL,
            unsettled INTEGER NOT NULL
        )
        """,
        "INSERT INTO sessions SELECT id, name, epoch, first, unsettled FROM sessions_1",
        "DELETE FROM sqlite_sequence WHERE name = 'sessions'",
        "INSERT INTO sqlite_sequence SELECT 'sessions', seq FROM sqlite_sequence WHERE name = 'sessions_1'",
        "DROP TABLE sessions_1",
        "DROP TABLE events",
        f"""
        CREATE VIEW events AS
        SELECT segments.key >> {OFFSET_BITS} AS session,
               (segments.key & {LAST_OFFSET}) - json_array_length(ends) + 1 + each.key AS offset,
               coalesce(substr(bodies, 1 + {_BEGIN}, each.value - {_BEGIN}), zeroblob(0)) AS body
        FROM segments, json_each(segments.ends) AS each
        """,
    ),
)
"""Applied in order, one transaction each. A migration that was released is never changed."""

VERSION = len(MIGRATIONS)

COUNT_TABLES = "SELECT count(*) FROM sqlite_schema"

# The keys of a session's segments are above its own number and up to that with the last offset.
_NEWEST_KEY = f"""
    (SELECT key FROM segments
     WHERE key > sessions.id << {OFFSET_BITS} AND key <= sessions.id << {OFFSET_BITS} | {LAST_OFFSET}
     ORDER BY key DESC LIMIT 1)
"""
LIST_SESSIONS = f"SELECT id, name, epoch, first, unsettled, {_NEWEST_KEY} FROM sessions"
FIND_SESSION = f"SELECT id, epoch, first, unsettled, {_NEWEST_KEY} FROM sessions WHERE name = ?"
ADD_SESSION = "INSERT INTO sessions (name, epoch, first, unsettled) VALUES (?, ?, ?, 0)"
MOVE_SESSION = "UPDATE sessions SET first = ?, unsettled = ? WHERE id = ?"
DELETE_SESSION = "DELETE FROM sessions WHERE id = ?"

MAKE_SEGMENTS = """
    CREATE TABLE IF NOT EXISTS segments (key INTEGER PRIMARY KEY, ends TEXT NOT NULL, bodies BLOB NOT NULL)
"""
ADD_SEGMENT = "INSERT INTO segments (key, ends, bodies) VALUES (?, ?, ?)"
SEGMENTS = "SELECT key, ends, bodies FROM segments WHERE key > ? AND key <= ? ORDER BY key"

FORGET = """
    INSERT INTO forgotten (session, upto) VALUES (?, ?)
    ON CONFLICT (session) DO UPDATE SET upto = max(upto, excluded.upto)
"""
NEXT_FORGOTTEN = "SELECT session, upto FROM forgotten LIMIT 1"
DELETE_SEGMENTS = """
    DELETE FROM segments
    WHERE key IN (SELECT key FROM segments WHERE key > ? AND key <= ? ORDER BY key LIMIT ?)
"""
FORGOTTEN_IS_GONE = "DELETE FROM forgotten WHERE session = ?"

OLD_EVENTS = "SELECT session, offset, body FROM events ORDER BY session, offset LIMIT ?"
DELETE_OLD_EVENTS = "DELETE FROM events WHERE (session, offset) <= (?, ?)"

FIND_SNAPSHOT = "SELECT name, offset, version, body FROM snapshots WHERE session = ? AND name = ?"
SAVE_SNAPSHOT = """
    INSERT INTO snapshots (session, name, offset, version, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (session, name) DO UPDATE
    SET offset = excluded.offset, version = excluded.version, body = excluded.body
    WHERE excluded.offset >= snapshots.offset
"""
DELETE_SNAPSHOTS = "DELETE FROM snapshots WHERE session = ?"


# -- segments --------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A row of the table."""

    key: int
    ends: str
    bodies: bytes


def segments_of(session: int, first: int, bodies: Sequence[bytes]) -> list[Segment]:
    """Bodies that begin at an offset, as rows."""
    base = session << OFFSET_BITS
    ends = list(accumulate(map(len, bodies)))
    if not ends:
        return []
    if len(ends) <= SEGMENT_EVENTS and ends[-1] <= SEGMENT_BYTES:
        return [Segment(base | first + len(ends) - 1, _encode(ends), b"".join(bodies))]
    segments: list[Segment] = []
    start = begin = 0
    for stop, end in enumerate(ends):
        is_full = stop - start == SEGMENT_EVENTS or end - begin > SEGMENT_BYTES
        if is_full and stop > start:
            segments += segments_of_one(base | first + stop - 1, bodies[start:stop])
            start, begin = stop, ends[stop - 1]
    return segments + segments_of_one(base | first + len(ends) - 1, bodies[start:])


def segments_of_one(key: int, bodies: Sequence[bytes]) -> list[Segment]:
    return [Segment(key, _encode(list(accumulate(map(len, bodies)))), b"".join(bodies))]


def _encode(ends: list[int]) -> str:
    return msgspec.json.encode(ends).decode()


_decode_ends = msgspec.json.Decoder(list[int]).decode


def bodies_in(segment: Segment, after: int) -> tuple[int, list[bytes]]:
    """The offset of the first event of a segment, and the bodies of those after an offset."""
    bodies = segment.bodies
    try:
        ends = _decode_ends(segment.ends)
    except msgspec.MsgspecError:
        ends = []
    if not ends or ends[-1] != len(bodies):
        raise LogCorrupt("a segment's events are not as long as it says; stop and restore the file from a backup")
    first = (segment.key & LAST_OFFSET) - len(ends) + 1
    skipped = max(0, after + 1 - first)
    begin = ends[skipped - 1] if skipped else 0
    return first, [bodies[begin:end] for begin, end in pairwise([begin, *ends[skipped:]])]


# -- what an error of SQLite is to our callers -----------------------------------------------------------------
#
# It goes by SQLite's result code, never by its text, and never puts that text into the message: it may hold a path.

_PRIMARY = 0xFF
"""The low byte of a result code is its kind; the rest says where it happened."""

_HELD = (LogLocked, "another program holds the event log; end it or wait, then try again")
_NO_ROOM = (LogFull, "there is no room left for the event log; free some, then try again")
_DAMAGED = (LogCorrupt, "the event log's file is damaged or no database; stop and restore it from a backup")
_NOT_WRITABLE = (LogUnavailable, "the event log cannot be written; make its file and directory writable")
_FAILED = (LogUnavailable, "the event log failed; see the log of this program and check the disk")
_TOO_BIG = (LogError, "an event is larger than SQLite stores; lower the frame limit")

_BY_KIND: dict[int, tuple[type[LogError], str]] = {
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_PROTOCOL: _HELD,
    sqlite3.SQLITE_FULL: _NO_ROOM,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_TOOBIG: _TOO_BIG,
}
"""Everything else, such as an I/O error, is `_FAILED`."""

_ALONE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH})


def _kind(error: Exception) -> int | None:
    # Errors that Python itself raises, such as the use of a closed connection, carry no code.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY


def log_error(error: Exception) -> LogError:
    """The error to raise instead of `error`, with `error` as its cause."""
    if isinstance(error, LogError):
        return error
    kind = _kind(error)
    what, message = _FAILED if kind is None else _BY_KIND.get(kind, _FAILED)
    ours = what(message, sqlite_code=getattr(error, "sqlite_errorcode", None))
    ours.__cause__ = error
    return ours


def is_held(error: Exception) -> bool:
    """Whether another program's lock was in the way; whoever may wait can try again."""
    return _kind(error) == sqlite3.SQLITE_BUSY


def may_be_one_jobs_fault(error: Exception) -> bool:
    """Whether the jobs of a failed group may fare better one by one.

    One append may be too large for SQLite or for the room that is left while the others fit (L10). A lock or
    a failing disk meets every job alike, and trying each would only multiply the wait.
    """
    kind = _kind(error)
    return kind is None or kind in _ALONE


# -- opening ---------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A session and the number that the file's tables know it by."""

    key: int
    head: SessionHead


@dataclass(frozen=True)
class SqliteFile:
    """An open log file and what the threads around it share."""

    path: Path
    lock: int
    """Descriptor of the owner's lock."""
    writes: sqlite3.Connection
    """For the writer. Opened in one thread and used in others, never in two at a time."""
    checkpoints: sqlite3.Connection
    """For the checkpointer, likewise."""
    wal: WalFile
    rows: dict[SessionId, Row]
    busy_timeout_s: float
    gate: WalGate = field(default_factory=WalGate)

    @classmethod
    def open(cls, path: Path, limits: Limits, sync: Callable[[int], None] = sync_file) -> SqliteFile:
        """Raises `LogError` or `ConfigError`; then nothing is left open."""
        path = _make_directories(path)
        with ExitStack() as undo:
            lock = lock_file(path)
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
                wal = WalFile(f"{path}-wal", sync)
            except (sqlite3.Error, OSError) as error:
                raise log_error(error) from error
            undo.pop_all()
        return cls(path, lock, writes, checkpoints, wal, rows, limits.busy_timeout_s)

    def connect_reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        return connect(self.path, "ro", timeout_s=self.busy_timeout_s)

    def release(self) -> None:
        """Let another owner in."""
        self.wal.close()
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


def lock_file(path: Path) -> int:
    """Become the owner of the log at `path`, or say who is; gives the descriptor of the lock."""
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
    try:
        tables, version, application = _read_header(path, "ro")
    except sqlite3.OperationalError as error:
        if _kind(error) != sqlite3.SQLITE_READONLY:
            raise
        # Who made the file was killed while it did, and left a journal. Only who may write can roll that back.
        tables, version, application = _read_header(path, "rw")
    if application != APPLICATION_ID and (tables or version):
        raise LogCorrupt("the file is a database, but no event log of turnwire; give another path")
    if version > VERSION:
        raise LogTooNew(
            f"the event log has format {version}, this turnwire knows {VERSION}; use a newer turnwire",
            format=version,
            known=VERSION,
        )


def _read_header(path: Path, mode: str) -> tuple[int, int, int]:
    """How many tables there are, the format, and whose file it is."""
    with closing(connect(path, mode, timeout_s=0.0)) as connection:
        tables, version, application = (
            int(connection.execute(each).fetchone()[0])
            for each in (COUNT_TABLES, "PRAGMA user_version", "PRAGMA application_id")
        )
    return tables, version, application


def _connect_writer(path: Path, limits: Limits) -> sqlite3.Connection:
    connection = connect(path, "rw", timeout_s=limits.busy_timeout_s)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise LogUnavailable("the event log needs a write-ahead log; put it on a local disk")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {limits.checkpoint_bytes}")
        # Only the header of a WAL that starts again is synced by SQLite; the rest is `WalFile.sync`.
        connection.execute("PRAGMA synchronous = NORMAL")
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
        connection.execute(COUNT_TABLES).fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        if number == _SEGMENTS_VERSION:
            _move_events(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
    if version < len(MIGRATIONS):
        # What was written once is not in the way of what is written now.
        _fold_leftovers(connection)


_SEGMENTS_VERSION = 2
_MOVED_EVENTS, _MOVED_BYTES, _FOLD_EVERY = 2048, 2 * MiB, 16
"""What one transaction of the move takes, and after how many of them the write-ahead log is folded back."""


def _move_events(connection: sqlite3.Connection) -> None:
    """Format 1 had a row for each event. Each transaction moves some, so one that is broken off is gone on with."""
    connection.execute(MAKE_SEGMENTS)
    moves = 0
    while move_some(connection):
        moves += 1
        if moves % _FOLD_EVERY == 0:
            _fold_leftovers(connection)


def move_some(connection: sqlite3.Connection) -> bool:
    """Whether there may be more events of format 1."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        session = offset = first = size = 0
        bodies: list[bytes] = []
        rows: list[Segment] = []
        for row_session, row_offset, body in connection.execute(OLD_EVENTS, (_MOVED_EVENTS,)):
            if row_session != session or row_offset != offset + 1:
                rows += segments_of(session, first, bodies)
                first, bodies = row_offset, []
            session, offset = row_session, row_offset
            bodies.append(body)
            size += len(body)
            if size > _MOVED_BYTES:
                break
        rows += segments_of(session, first, bodies)
        connection.executemany(ADD_SEGMENT, rows)
        connection.execute(DELETE_OLD_EVENTS, (session, offset))
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return bool(rows)


def _load(connection: sqlite3.Connection) -> dict[SessionId, Row]:
    """The heads, checked against the events that are there."""
    rows: dict[SessionId, Row] = {}
    for key, name, epoch, first, unsettled, newest in connection.execute(LIST_SESSIONS):
        head = head_of(name, key, epoch, first, unsettled, newest)
        if head.first <= head.head:
            base = key << OFFSET_BITS
            oldest = connection.execute(SEGMENTS, (base | first - 1, base | LAST_OFFSET)).fetchone()
            if bodies_in(Segment(*oldest), first - 1)[0] > first:
                raise _torn(name)
        rows[name] = Row(key, head)
    return rows


def head_of(name: str, key: int, epoch: str, first: int, unsettled: int, newest: int | None) -> SessionHead:
    """A session as the tables have it."""
    head = first - 1 if newest is None else newest & LAST_OFFSET
    if head < first - 1:
        raise _torn(name)
    return SessionHead(SessionId(name), Epoch(epoch), first, head, bool(unsettled))


def _torn(name: str) -> LogError:
    return LogCorrupt(
        f"the events of session {name!r} do not match its head; stop and restore the file from a backup",
        session=name,
    )


def sweep(connection: sqlite3.Connection) -> bool:
    """Remove some forgotten segments of any session; whether there may be more. What a trim left of one stays."""
    row = connection.execute(NEXT_FORGOTTEN).fetchone()
    if row is None:
        return False
    session, upto = row
    base = session << OFFSET_BITS
    if connection.execute(DELETE_SEGMENTS, (base, base | upto, _SWEEP_SEGMENTS)).rowcount < _SWEEP_SEGMENTS:
        connection.execute(FORGOTTEN_IS_GONE, (session,))
    return True
