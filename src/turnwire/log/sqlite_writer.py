"""The writer: one thread that makes all changes of the log, in groups.

Theory of operation
-------------------
The event loop hands over the changes of one of its rounds together. The thread dequeues all waiting changes and
makes them one transaction, in the order of the calls. If one of them is durable, or the level is `full`, it then
syncs the write-ahead log (WAL), once for the group, and hands the results to the loop in one call. Changes that
arrive meanwhile are the next group, so a slow disk makes groups larger. A lone change never waits for others.

SQLite (`synchronous = NORMAL`) syncs nothing in a commit but the header of a WAL that starts again. A committed
change survives the death of this process; the sync makes it and every commit before it survive the death of the
machine. `synchronous = FULL` does the same inside of each commit; here each group chooses.

When `checkpoint_bytes` were written, and the callers have their results, the thread copies the WAL into the
database, and waits up to `PAUSE_S` for readers. A foreign reader that stays longer makes the WAL grow until it
ends. SQLite's automatic checkpoint is off: it hides its errors. The mode is RESTART and not TRUNCATE, because a
sync is quicker if the file need not grow.

W1  Changes are made in the order of the calls, by this thread alone.
W2  A group is one transaction. A change that the rules reject is rejected alone; if the transaction fails, all its
    changes fail, unless they may succeed one by one.
W3  Nothing is reported before its commit returned, and nothing of a group with a durable change before its sync.
W4  Heads move first and callers wake second, in one step of the loop; until then no reader sees the events.
W5  After a failed sync, its own or SQLite's, nothing is written until the log is opened again: the system may have
    dropped the pages, and a later sync that succeeds proves nothing.
W6  At most `append_queue` changes wait; more are rejected at once.
W7  A cancelled caller does not undo its change. Until that has a result, `is_unsure` is true: the head may move.
W8  Closing finishes every accepted change and ends the thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from anyio import to_thread

from turnwire.errors import LogFull, LogUnavailable, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import SessionHead, Snapshot
from turnwire.log.sqlite_file import SqliteFile, is_failed_sync, log_error, may_be_one_jobs_fault

T = TypeVar("T")
_Result = tuple[Any, Exception | None]

PAUSE_S = 0.05
"""Time that a checkpoint waits for readers: many times the duration of reading a page."""

_COMMIT_BYTES = 8 * KiB
"""Approximate size of the pages that a commit writes in addition to its events."""

_log = logging.getLogger(__name__)


Changes = Mapping[SessionId, sql.Row | None]
"""Sessions that a commit has changed; `None` for a deleted one."""


class Durability(StrEnum):
    """The appends without `durable=True` that may be lost when the machine dies."""

    FULL = "full"
    """No append. Every commit is synced before it returns."""
    NORMAL = "normal"
    """Appends after the last sync: always a suffix."""


class Transaction:
    """The sessions as they will be if this transaction commits."""

    def __init__(self, connection: sqlite3.Connection, committed: Mapping[SessionId, sql.Row]) -> None:
        self._connection, self._execute = connection, connection.execute
        self._committed = committed
        self.changes: dict[SessionId, sql.Row | None] = {}
        self.written_bytes = 0
        """Approximate size of the written data."""

    def _find(self, session_id: SessionId) -> sql.Row | None:
        return self.changes[session_id] if session_id in self.changes else self._committed.get(session_id)

    def get(self, session_id: SessionId) -> sql.Row:
        """Return a session after all earlier changes of the transaction."""
        row = self._find(session_id)
        if row is None:
            raise rules.not_found(session_id)
        return row

    def create(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        if self._find(session_id) is not None:
            raise rules.exists(session_id)
        key = self._execute(sql.ADD_SESSION, (session_id, epoch, first)).lastrowid
        assert key is not None, "an INSERT returns a row id"
        head = SessionHead(session_id, epoch, first, first - 1, unsettled=False)
        self.changes[session_id] = sql.Row(key, head)
        return head

    def append(self, session_id: SessionId, bodies: Sequence[bytes], expected: int, unsettled: bool) -> int:
        key, current = self.get(session_id)
        rules.check_append(current, expected)
        for segment in sql.segments_of(key, expected + 1, bodies):
            self._execute(sql.ADD_SEGMENT, segment)
            self.written_bytes += len(segment.bodies)
        head = expected + len(bodies)
        self.changes[session_id] = sql.Row(key, current._replace(head=head, unsettled=unsettled))
        return head

    def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        key, current = self.get(session_id)
        rules.check_snapshot(current, snapshot)
        self._execute(sql.SAVE_SNAPSHOT, (key, *snapshot, sql.checksum(key, *snapshot)))
        self.written_bytes += len(snapshot.body)

    def trim(self, session_id: SessionId, upto: int) -> int:
        """Remove events from the log's visible range; `sweep` deletes them."""
        key, current = self.get(session_id)
        first = max(current.first, min(upto, current.head) + 1)
        if first > current.first:
            self._execute(sql.FORGET, (key, first - 1))
            self.changes[session_id] = sql.Row(key, current._replace(first=first))
        return first

    def delete(self, session_id: SessionId) -> None:
        """Remove a session from the log; `sweep` deletes its events."""
        key, current = self.get(session_id)
        self._execute(sql.FORGET, (key, current.head))
        self._execute(sql.DELETE_SNAPSHOTS, (key,))
        self._execute(sql.DELETE_SESSION, (key,))
        self.changes[session_id] = None

    def sweep(self) -> bool:
        self.written_bytes += sql.SWEEP_SEGMENTS << 12
        return sql.sweep(self._connection)

    def write_sessions(self) -> None:
        """Write the data of the changed sessions that the segments do not contain, once for all changes."""
        for session_id, row in self.changes.items():
            if row is None:
                continue
            before = self._committed.get(session_id)
            _, _, first, head, unsettled = row.head
            if before is None or (before.key, before.head[2], before.head[4]) != (row.key, first, unsettled):
                crc = sql.checksum(row.key, *row.head[:4], int(unsettled))
                self._execute(sql.UPDATE_SESSION, (first, head, unsettled, crc, row.key))


class _Job(NamedTuple):
    """A change queued for the thread."""

    number: int
    change: Callable[[Transaction], Any]
    durable: bool
    future: asyncio.Future[Any]


def sync_file(file: int) -> None:
    """Sync a file to the disk, with the metadata needed to read it back, as SQLite does."""
    getattr(os, "fdatasync", os.fsync)(file)


class SqliteWriter:
    """The thread and its queue."""

    def __init__(
        self,
        file: SqliteFile,
        limits: Limits,
        durability: Durability,
        on_commit: Callable[[Changes], None],
        sync: Callable[[int], None],
    ) -> None:
        self._file, self._limits, self._on_commit, self._sync_file = file, limits, on_commit, sync
        self._rows = dict(file.rows)
        self._is_full = durability is Durability.FULL
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Job] = []
        self._queue: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._submitted = self._reported = self._written_bytes = 0
        self._abandoned: dict[SessionId, int] = {}
        """Number of the last change whose caller was cancelled, by session."""
        self._is_closing = self._has_failed_sync = False
        self._thread = threading.Thread(target=self._run, name="turnwire-log-writer", daemon=True)
        self._thread.start()

    async def run(self, session_id: SessionId, change: Callable[[Transaction], T], *, durable: bool = False) -> T:
        """Make a change. Raises `LogError`. When cancelled, it may still be made (W7)."""
        if self._is_closing:
            raise rules.closed()
        waiting = self._submitted - self._reported
        if waiting >= self._limits.append_queue:
            raise LogUnavailable(
                "the disk does not keep up with the event log; try again, or give it a faster disk", waiting=waiting
            )
        self._submitted += 1
        job = _Job(self._submitted, change, durable, self._loop.create_future())
        if not self._gathered:
            # After this step of the loop, so that one wake-up serves all changes of the step.
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._abandoned[session_id] = job.number
            raise

    def is_unsure(self, session_id: SessionId) -> bool:
        """Return whether a change whose caller was cancelled may still move the head (W7)."""
        return self._abandoned.get(session_id, 0) > self._reported

    async def aclose(self) -> None:
        """Finish the accepted changes and end the thread (W8)."""
        self._is_closing = True
        self._hand_over()
        self._queue.put(None)
        await to_thread.run_sync(self._thread.join)

    def _hand_over(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def _report(self, jobs: Sequence[_Job], results: Sequence[_Result], changes: Changes) -> None:
        self._reported += len(jobs)
        self._on_commit(changes)
        for job, (value, error) in zip(jobs, results, strict=True):
            if job.future.done():
                continue  # cancelled
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)
        if self._submitted == self._reported:
            self._abandoned.clear()

    # -- in the thread

    def _run(self) -> None:
        with closing(self._file.connection):
            is_open = True
            while is_open:
                taken = [self._queue.get()]
                # No other thread reads from the queue, so all counted changes are there.
                taken += [self._queue.get() for _ in range(self._queue.qsize())]
                is_open = None not in taken
                if jobs := [job for each in taken if each is not None for job in each]:
                    self._do(jobs)
                if self._written_bytes >= self._limits.checkpoint_bytes:
                    self._checkpoint("RESTART")
            self._checkpoint("TRUNCATE")

    def _do(self, jobs: Sequence[_Job]) -> None:
        transaction = Transaction(self._file.connection, self._rows)
        try:
            if self._has_failed_sync:
                raise LogUnavailable("the disk failed to sync the event log; check it, then start again")
            self._file.check_place()
            results = self.commit(jobs, transaction)
            if self._is_full or any(job.durable for job in jobs):
                self.sync()
        except Exception as error:  # noqa: BLE001  Nothing may leave the thread: callers must get the error.
            self._has_failed_sync |= is_failed_sync(error)
            if len(jobs) > 1 and may_be_one_jobs_fault(error) and not self._has_failed_sync:
                for job in jobs:
                    self._do([job])
                return
            code = getattr(error, "sqlite_errorcode", None)
            told = log_error(error)
            # A stack says nothing more about a full disk.
            why = None if isinstance(told, LogFull) else error
            _log.error(
                "append failed: %s", told, exc_info=why, extra={"event": "append_failed", "sqlite_code": code}
            )
            # A rejection within the group fails with it: the state that caused it may have been rolled back.
            results: list[_Result] = [(None, told)] * len(jobs)
            transaction.changes.clear()
        with suppress(RuntimeError):  # A closed loop has no callers left.
            self._loop.call_soon_threadsafe(self._report, jobs, results, transaction.changes)

    def commit(self, jobs: Sequence[_Job], transaction: Transaction) -> list[_Result]:
        connection = self._file.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [_result_of(job, transaction) for job in jobs]
            transaction.write_sessions()
            connection.execute("COMMIT")
        except BaseException:
            # SQLite ends the transaction itself on some errors. If a rollback fails, the next BEGIN reports it.
            with suppress(sqlite3.Error):
                connection.rollback()
            raise
        self._written_bytes += transaction.written_bytes + _COMMIT_BYTES
        for session_id, row in transaction.changes.items():
            if row is None:
                self._rows.pop(session_id, None)
            else:
                self._rows[session_id] = row
        return results

    def sync(self) -> None:
        try:
            self._sync_file(self._file.wal)
        except BaseException:
            self._has_failed_sync = True
            raise

    def _checkpoint(self, mode: str) -> None:
        """Copy the WAL into the database, so that the next commit starts it again."""
        self._written_bytes = 0
        execute = self._file.connection.execute
        execute(f"PRAGMA busy_timeout = {PAUSE_S * 1000:.0f}")
        try:
            execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            # The events are safe in the WAL, and a full or failing disk is reported by later appends.
            self._has_failed_sync |= is_failed_sync(error)
            code = getattr(error, "sqlite_errorcode", None)
            _log.warning("checkpoint failed", extra={"event": "checkpoint_failed", "sqlite_code": code})
        finally:
            execute(f"PRAGMA busy_timeout = {self._file.busy_timeout_s * 1000:.0f}")


def _result_of(job: _Job, transaction: Transaction) -> _Result:
    try:
        return job.change(transaction), None
    except TurnwireError as rejection:
        return None, rejection
