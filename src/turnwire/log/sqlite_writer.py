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
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from anyio import to_thread

from turnwire.errors import LogUnavailable, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log.base import SessionHead, Snapshot
from turnwire.log.sqlite_file import (
    ADD_EVENT,
    ADD_EVENTS,
    ADD_SESSION,
    DELETE_SESSION,
    DELETE_SNAPSHOTS,
    EVENTS_AT_ONCE,
    FORGET,
    MOVE_SESSION,
    SAVE_SNAPSHOT,
    Row,
    SqliteFile,
    log_error,
    may_be_one_jobs_fault,
    sweep,
)
from turnwire.log.sqlite_wal import SYNC_OFF, Checkpointer, Durability, is_failed_sync, sync_for

_T = TypeVar("_T")
T_co = TypeVar("T_co", covariant=True)
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
            # It may still be done, so until then nobody can say from memory where the session's head is.
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
        except Exception as error:  # noqa: BLE001  Nothing may leave the thread: whatever it is, callers must hear of it.
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
        if len(group) > 1 and may_be_one_jobs_fault(error):
            # Whose fault it was shows when each is committed alone, and the others are stored.
            for waiting in group:
                self._commit([waiting])
            return
        if is_failed_sync(error):
            self._gate.sync_failed = True
        _log.error(
            "append failed",
            exc_info=error,
            extra={"event": "append_failed", "sqlite_code": getattr(error, "sqlite_errorcode", None)},
        )
        # A refusal within the group fails with it: what refused it may have been rolled back.
        self._send([_Outcome(each.future, None, log_error(error)) for each in group], {})

    def _send(self, outcomes: list[_Outcome], changes: Changes) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcomes, changes)


# -- the jobs: each change of the log inside a transaction that several share ----------------------------------


class Transaction:
    """The sessions as they will be if this transaction commits."""

    def __init__(self, connection: sqlite3.Connection, committed: Mapping[SessionId, Row]) -> None:
        self.connection = connection
        self._committed = committed
        self.changes: dict[SessionId, Row | None] = {}
        """What the commit changes; `None` is a deleted session."""

    def find(self, session_id: SessionId) -> Row | None:
        if session_id in self.changes:
            return self.changes[session_id]
        return self._committed.get(session_id)

    def get(self, session_id: SessionId) -> Row:
        row = self.find(session_id)
        if row is None:
            raise rules.not_found(session_id)
        return row

    def flush(self) -> None:
        """Write the moved heads: once per session, however many appends moved it."""
        moved = [
            (row.head.first, row.head.head, row.head.unsettled, row.key)
            for row in self.changes.values()
            if row is not None
        ]
        self.connection.executemany(MOVE_SESSION, moved)


class Job(Protocol[T_co]):
    """One change: it checks the rules of the contract, then writes. `durable` asks for a synced commit."""

    @property
    def session_id(self) -> SessionId: ...
    @property
    def durable(self) -> bool: ...

    def apply(self, transaction: Transaction) -> T_co:
        """Do it, or raise before anything is written."""
        ...


@dataclass(frozen=True)
class Create:
    session_id: SessionId
    epoch: Epoch
    first: int = 1
    durable: bool = False

    def apply(self, transaction: Transaction) -> SessionHead:
        if transaction.find(self.session_id) is not None:
            raise rules.exists(self.session_id)
        head = SessionHead(self.session_id, self.epoch, self.first, self.first - 1, unsettled=False)
        row = (head.session_id, head.epoch, head.first, head.head)
        key = transaction.connection.execute(ADD_SESSION, row).lastrowid
        assert key is not None, "an INSERT gives a row id"
        transaction.changes[self.session_id] = Row(key, head)
        return head


@dataclass(frozen=True)
class Append:
    session_id: SessionId
    bodies: Sequence[bytes]
    expected: int
    unsettled: bool
    durable: bool

    def apply(self, transaction: Transaction) -> int:
        key, current = transaction.get(self.session_id)
        rules.check_append(current, self.expected)
        bodies, connection = self.bodies, transaction.connection
        whole = len(bodies) - len(bodies) % EVENTS_AT_ONCE
        for start in range(0, whole, EVENTS_AT_ONCE):
            first = self.expected + 1 + start
            connection.execute(ADD_EVENTS, (key, first, *bodies[start : start + EVENTS_AT_ONCE]))
        rest = [(key, offset, body) for offset, body in enumerate(bodies[whole:], self.expected + 1 + whole)]
        connection.executemany(ADD_EVENT, rest)
        head = self.expected + len(bodies)
        moved = SessionHead(self.session_id, current.epoch, current.first, head, self.unsettled)
        transaction.changes[self.session_id] = Row(key, moved)
        return head


@dataclass(frozen=True)
class Look:
    """Nothing but the head, after everything that was asked before."""

    session_id: SessionId
    durable: bool = False

    def apply(self, transaction: Transaction) -> SessionHead:
        return transaction.get(self.session_id).head


@dataclass(frozen=True)
class SaveSnapshot:
    session_id: SessionId
    snapshot: Snapshot
    durable: bool = False

    def apply(self, transaction: Transaction) -> None:
        key, current = transaction.get(self.session_id)
        rules.check_snapshot(current, self.snapshot)
        transaction.connection.execute(SAVE_SNAPSHOT, (key, *self.snapshot))


@dataclass(frozen=True)
class Trim:
    """Takes events out of the log; `Sweep` removes them."""

    session_id: SessionId
    upto: int
    durable: bool = False

    def apply(self, transaction: Transaction) -> int:
        key, current = transaction.get(self.session_id)
        first = max(current.first, min(self.upto, current.head) + 1)
        if first > current.first:
            transaction.connection.execute(FORGET, (key, first - 1))
            transaction.changes[self.session_id] = Row(key, current._replace(first=first))
        return first


@dataclass(frozen=True)
class Delete:
    """Takes a session out of the log; `Sweep` removes its events."""

    session_id: SessionId
    durable: bool = True
    """Who deletes a session wants it gone, also after a power cut."""

    def apply(self, transaction: Transaction) -> None:
        key, current = transaction.get(self.session_id)
        transaction.connection.execute(FORGET, (key, current.head))
        transaction.connection.execute(DELETE_SNAPSHOTS, (key,))
        transaction.connection.execute(DELETE_SESSION, (key,))
        transaction.changes[self.session_id] = None


@dataclass(frozen=True)
class Sweep:
    """Removes some forgotten events, so few that the appends of other sessions hardly wait."""

    session_id: SessionId
    durable: bool = False

    def apply(self, transaction: Transaction) -> bool:
        """Whether there may be more."""
        return sweep(transaction.connection)
