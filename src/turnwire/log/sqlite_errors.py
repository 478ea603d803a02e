"""What an error of SQLite is to our callers.

Takes an exception of `sqlite3`, gives a `LogError`. Goes by SQLite's result code, never by its text, and
never puts that text into the message: it may hold a path. The original is chained as the cause.
"""

from __future__ import annotations

import sqlite3

from turnwire.errors import LogCorrupt, LogError, LogFull, LogLocked, LogUnavailable

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


def may_be_one_jobs_fault(error: Exception) -> bool:
    """Whether the jobs of a failed group may fare better one by one.

    One append may be too large for SQLite or for the room that is left while the others fit (L10). A lock or
    a failing disk meets every job alike, and trying each would only multiply the wait.
    """
    kind = _kind(error)
    return kind is None or kind in _ALONE


def is_failed_sync(error: Exception) -> bool:
    """Whether a sync failed: what it should have written may be gone although later syncs succeed."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC
