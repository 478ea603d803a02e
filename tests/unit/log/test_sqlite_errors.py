"""SQLite's result codes become our errors; its messages are not exposed."""

from __future__ import annotations

import sqlite3

import pytest

from turnwire.errors import LogCorrupt, LogError, LogFull, LogLocked, LogUnavailable
from turnwire.log.sqlite_file import is_failed_sync, log_error, may_be_one_jobs_fault


def sqlite_error(code: int | None) -> sqlite3.Error:
    error = sqlite3.OperationalError("/home/someone/log.db is on fire")
    if code is not None:
        error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, LogLocked),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, LogLocked),
        (sqlite3.SQLITE_LOCKED, LogLocked),
        (sqlite3.SQLITE_FULL, LogFull),
        (sqlite3.SQLITE_CORRUPT, LogCorrupt),
        (sqlite3.SQLITE_CORRUPT_VTAB, LogCorrupt),
        (sqlite3.SQLITE_NOTADB, LogCorrupt),
        (sqlite3.SQLITE_ERROR, LogCorrupt),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, LogCorrupt),
        (sqlite3.SQLITE_READONLY, LogUnavailable),
        (sqlite3.SQLITE_READONLY_DIRECTORY, LogUnavailable),
        (sqlite3.SQLITE_CANTOPEN, LogUnavailable),
        (sqlite3.SQLITE_IOERR, LogUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, LogUnavailable),
        (sqlite3.SQLITE_TOOBIG, LogError),
        (None, LogCorrupt),
    ],
)
def test_a_result_code_becomes_the_error_that_says_what_to_do(code: int | None, expected: type[LogError]) -> None:
    cause = sqlite_error(code)
    error = log_error(cause)
    assert type(error) is expected
    assert error.__cause__ is cause
    assert "someone" not in f"{error}{error.context}"


def test_our_own_error_stays_as_it_is() -> None:
    ours = LogUnavailable("why")
    assert log_error(ours) is ours


def test_only_what_may_be_one_jobs_fault_is_tried_again_alone() -> None:
    assert may_be_one_jobs_fault(sqlite_error(sqlite3.SQLITE_FULL))
    assert may_be_one_jobs_fault(sqlite_error(sqlite3.SQLITE_TOOBIG))
    assert may_be_one_jobs_fault(OverflowError())
    assert not may_be_one_jobs_fault(sqlite_error(sqlite3.SQLITE_BUSY))
    assert not may_be_one_jobs_fault(sqlite_error(sqlite3.SQLITE_IOERR_WRITE))
    assert not may_be_one_jobs_fault(sqlite_error(sqlite3.SQLITE_CORRUPT))


def test_a_failed_sync_is_told_from_other_failures() -> None:
    assert is_failed_sync(sqlite_error(sqlite3.SQLITE_IOERR_FSYNC))
    assert not is_failed_sync(sqlite_error(sqlite3.SQLITE_IOERR_WRITE))
    assert not is_failed_sync(OverflowError())
