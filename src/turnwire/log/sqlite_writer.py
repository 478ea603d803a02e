"""The one thread that changes the file: it takes everything that waits and commits it as one transaction.

Takes jobs from the event loop; gives each its result, or the error that stopped it, back on the loop. Never
reports a job done before its commit returned, never lets one refused job fail another, and never keeps a lone
job waiting for company: the group is what has gathered while the last commit ran.

The loop hears of a group in one call. In that call the heads change first and the waiting callers wake
second, so nobody on the loop sees an acknowledged append without its head.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from anyio import to_thread

from turnwire.errors import LogUnavailable, TurnwireError
from turnwire.ids import SessionId
from turnwire.log import rules, sqlite_errors
from turnwire.log.durability import SYNC_OFF, Durability, sync_for
from turnwire.log.sqlite_checkpoint import Checkpointer
from turnwire.log.sqlite_file import SqliteFile
from turnwire.log.sqlite_jobs import Job, Row, Transaction

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

Changes = Mapping[SessionId, Row | None]
"""Sessions that a commit moved; `None` is a deleted one."""


class _Waiting(NamedTuple):
    job: Job[Any]
    future: asyncio.Future[Any]


class _Outcome(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


class SqliteWriter:
    """Owns the connection that writes. Everything but the thread itself is called on the event loop."""

    def __init__(
        self,
        file: SqliteFile,
        checkpointer: Checkpointer,
        *,
        durability: Durability,
        queue_limit: int,
        on_commit: Callable[[Changes], None],
    ) -> None:
        self._connection = file.writes
        self._rows = dict(file.rows)
        self._gate = file.gate
        self._checkpointer = checkpointer
        self._durability = durability
        self._queue_limit = queue_limit
        self._on_commit = on_commit
        self._sync = ""
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._submitted = self._delivered = 0
        self._abandoned: dict[SessionId, int] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="turnwire-log-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that have no outcome yet."""
        return self._submitted - self._delivered

    async def run(self, job: Job[_T]) -> _T:
        """Do a job in the order of the calls. When cancelled, the job may still be done (L6)."""
        if self._is_closing:
            raise rules.closed()
        if self.waiting >= self._queue_limit:
            raise LogUnavailable(
                "the disk does not keep up with the event log; try again, or give it a faster disk",
                waiting=self.waiting,
            )
        self._submitted += 1
        number = self._submitted
        future: asyncio.Future[_T] = self._loop.create_future()
        self._queue.put(_Waiting(job, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._abandoned[job.session_id] = number
            raise

    def is_unsure(self, session_id: SessionId) -> bool:
        """Whether a job that nobody waits for any more may still change this session."""
        return self._abandoned.get(session_id, 0) > self._delivered

    async def aclose(self) -> None:
        """Finish the jobs that were accepted, then end the thread."""
        self._is_closing = True
        self._queue.put(None)
        await to_thread.run_sync(self._thread.join)

    def _deliver(self, outcomes: list[_Outcome], changes: Changes) -> None:
        self._delivered += len(outcomes)
        if not self.waiting:
            self._abandoned.clear()
        self._on_commit(changes)
        for future, result, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    # What follows runs in the thread.

    def _run(self) -> None:
        is_open = True
        with closing(self._connection):
            while is_open:
                group = self._gather()
                is_open = group[-1] is not None
                jobs = [waiting for waiting in group if waiting is not None]
                if jobs:
                    self._commit(jobs)

    def _gather(self) -> list[_Waiting | None]:
        group = [self._queue.get()]
        # Nobody else takes from the queue, so what is counted is there; and it is bounded by `run`.
        group.extend(self._queue.get() for _ in range(self._queue.qsize()))
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        transaction = Transaction(self._connection, self._rows)
        try:
            with self._gate.transaction():
                outcomes = self._transact(group, transaction)
        except Exception as error:  # noqa: BLE001  The door of the thread: whatever it is, callers must hear of it.
            self._fail(group, error)
            return
        for session_id, row in transaction.changes.items():
            if row is None:
                self._rows.pop(session_id, None)
            else:
                self._rows[session_id] = row
        self._send(outcomes, transaction.changes)
        self._checkpointer.nudge()

    def _transact(self, group: list[_Waiting], transaction: Transaction) -> list[_Outcome]:
        self._gate.check_syncs()
        durable = any(waiting.job.durable for waiting in group)
        sync = sync_for(self._durability, durable=durable, may_restart=self._gate.may_restart)
        if sync != self._sync:
            # Only legal between transactions; holds from the next one on.
            self._connection.execute(f"PRAGMA synchronous = {sync}")
            self._sync = sync
        before = self._connection.total_changes
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [self._apply(waiting, transaction) for waiting in group]
            transaction.flush()
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite ends the transaction itself on some errors. If a rollback fails, the next BEGIN says so.
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise
        if self._connection.total_changes != before:
            self._gate.committed(synced=sync != SYNC_OFF)
        return outcomes

    def _apply(self, waiting: _Waiting, transaction: Transaction) -> _Outcome:
        try:
            return _Outcome(waiting.future, waiting.job.apply(transaction), None)
        except TurnwireError as refusal:
            return _Outcome(waiting.future, None, refusal)

    def _fail(self, group: list[_Waiting], error: Exception) -> None:
        if len(group) > 1 and sqlite_errors.may_be_one_jobs_fault(error):
            for waiting in group:
                self._commit([waiting])
            return
        if sqlite_errors.is_failed_sync(error):
            self._gate.sync_failed = True
        _log.error(
            "append failed",
            exc_info=error,
            extra={"event": "append_failed", "sqlite_code": getattr(error, "sqlite_errorcode", None)},
        )
        # A refusal within the group fails with it: what refused it may have been rolled back.
        self._send([_Outcome(each.future, None, sqlite_errors.log_error(error)) for each in group], {})

    def _send(self, outcomes: list[_Outcome], changes: Changes) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcomes, changes)
