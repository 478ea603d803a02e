"""Translation of SQLite's errors: by result code, and never with SQLite's text, which may contain a path."""

from __future__ import annotations

import sqlite3

from turnwire.errors import LogCorrupt, LogError, LogFull, LogLocked, LogUnavailable

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


def damaged() -> LogCorrupt:
    return LogCorrupt(_DAMAGED[1])


def is_failed_sync(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC


def may_be_one_jobs_fault(error: Exception) -> bool:
    """Return whether one change may be too large while the others fit. A lock or a failing disk affects all."""
    return _kind(error) in (None, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
