"""The changes of the log as jobs, and who does them: the event loop itself while the disk is quick, else a thread.

A job checks the rules of the contract, then writes; it is refused before it wrote anything. What the sessions will
be if its transaction commits is kept beside it, so that a job sees those before it. The writer takes jobs on the
event loop and gives each its result, or the error that stopped it. It never reports a job done before its commit
returned, and a durable one not before it is synced; never lets one refused job fail another; never keeps a lone job
waiting for company.

Theory of operation
-------------------
A commit that is not synced is some dozen microseconds of work, less than a trip through a thread. So the loop does
it (`Lane.INLINE`). Whatever could hold the loop up is handed to the thread instead: large appends,
changes that are no appends, the commit after a checkpoint (`sqlite_wal`, W2), one for which the checkpointer or a
foreign program would have to be waited for, and everything for a while after a commit that was slow. The thread
takes all that waits and commits it as one transaction, then syncs it if one of them asks for that.

What the loop committed and must be synced is the thread's to sync as well, while several sessions want it: a sync
covers every commit before it, so those that gather while one runs share the next, and the loop goes on meanwhile.
For one session alone there is nobody to share with and little to go on with, and the trip costs more CPU than the
sync. So the loop syncs by itself (`_may_sync`) what one session wants, if there is little of it, the checkpointer
does not use the disk, and the last sync was quick. One that was not is the thread's until it finds the disk quick
again, and the loop has gone on for many times as long as it was held.

The connection, and what is known of its commits (`_rows`), is used by the loop in `Lane.INLINE` and by the thread
in the other lanes, and changes hands by the queue towards the thread and by the outcome of the last job towards the
loop.

I1  Jobs are done in the order of the calls: while the thread has one, later ones queue behind it.
I2  Who waits is answered in the order of the calls: before the thread commits, it syncs what the loop committed;
    and the loop syncs only when nobody waits.
I3  A head moves when all that is behind it is answered: an append to a session of which another waits for its sync
    waits with it.
I4  The heads change first and the waiting callers wake second, in one step of the loop, so nobody sees an
    acknowledged append without its head.
I5  After a failed sync nothing more is written or synced: a later sync that succeeds would prove nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from anyio import to_thread

from turnwire.errors import LogError, LogUnavailable, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB
from turnwire.log import rules
from turnwire.log.base import SessionHead, Snapshot
from turnwire.log.sqlite_file import (
    ADD_SEGMENT,
    ADD_SESSION,
    DELETE_SESSION,
    DELETE_SNAPSHOTS,
    FORGET,
    MOVE_SESSION,
    SAVE_SNAPSHOT,
    Row,
    SqliteFile,
    is_held,
    log_error,
    may_be_one_jobs_fault,
    segments_of,
    sweep,
)
from turnwire.log.sqlite_wal import Checkpointer, Durability, is_failed_sync

# -- jobs: the changes of the log, each inside a transaction that several may share --------------------------


T_co = TypeVar("T_co", covariant=True)

SMALL_EVENTS, SMALL_BYTES = 1024, 512 * KiB
"""What a disk that is quick takes in a millisecond or two; the event loop hands over more."""

LARGE = SMALL_BYTES + 1
"""The size of what is large, however many bytes it has."""


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
        """Write what the segments do not say of the sessions: once, however many jobs changed it."""
        for session_id, row in self.changes.items():
            if row is None:
                continue
            before = self._committed.get(session_id)
            kept = (1, False)
            if before is not None and before.key == row.key:
                kept = (before.head.first, before.head.unsettled)
            if kept != (row.head.first, row.head.unsettled):
                self.connection.execute(MOVE_SESSION, (row.head.first, row.head.unsettled, row.key))


class Job(Protocol[T_co]):
    """One change."""

    @property
    def session_id(self) -> SessionId: ...
    @property
    def durable(self) -> bool:
        """It asks for a synced commit."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it writes, about. Up to `SMALL_BYTES` the event loop may do it."""
        ...

    def apply(self, transaction: Transaction) -> T_co:
        """Do it, or raise before anything is written."""
        ...


class Create(NamedTuple):
    session_id: SessionId
    epoch: Epoch
    first: int = 1
    durable: bool = False
    size: int = 0

    def apply(self, transaction: Transaction) -> SessionHead:
        if transaction.find(self.session_id) is not None:
            raise rules.exists(self.session_id)
        head = SessionHead(self.session_id, self.epoch, self.first, self.first - 1, unsettled=False)
        key = transaction.connection.execute(ADD_SESSION, (head.session_id, head.epoch, head.first)).lastrowid
        assert key is not None, "an INSERT gives a row id"
        transaction.changes[self.session_id] = Row(key, head)
        return head


class Append(NamedTuple):
    session_id: SessionId
    bodies: Sequence[bytes]
    expected: int
    unsettled: bool
    durable: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies)) if len(self.bodies) <= SMALL_EVENTS else LARGE

    def apply(self, transaction: Transaction) -> int:
        key, current = transaction.get(self.session_id)
        rules.check_append(current, self.expected)
        for segment in segments_of(key, self.expected + 1, self.bodies):
            transaction.connection.execute(ADD_SEGMENT, segment)
        head = self.expected + len(self.bodies)
        moved = SessionHead(self.session_id, current.epoch, current.first, head, self.unsettled)
        transaction.changes[self.session_id] = Row(key, moved)
        return head


class Look(NamedTuple):
    """Nothing but the head, after everything that was asked before."""

    session_id: SessionId
    durable: bool = False
    size: int = 0

    def apply(self, transaction: Transaction) -> SessionHead:
        return transaction.get(self.session_id).head


class SaveSnapshot(NamedTuple):
    session_id: SessionId
    snapshot: Snapshot
    durable: bool = False
    size: int = LARGE

    def apply(self, transaction: Transaction) -> None:
        key, current = transaction.get(self.session_id)
        rules.check_snapshot(current, self.snapshot)
        transaction.connection.execute(SAVE_SNAPSHOT, (key, *self.snapshot))


class Trim(NamedTuple):
    """Takes events out of the log; `Sweep` removes them."""

    session_id: SessionId
    upto: int
    durable: bool = False
    size: int = LARGE

    def apply(self, transaction: Transaction) -> int:
        key, current = transaction.get(self.session_id)
        first = max(current.first, min(self.upto, current.head) + 1)
        if first > current.first:
            transaction.connection.execute(FORGET, (key, first - 1))
            transaction.changes[self.session_id] = Row(key, current._replace(first=first))
        return first


class Delete(NamedTuple):
    """Takes a session out of the log; `Sweep` removes its events."""

    session_id: SessionId
    durable: bool = True
    """Who deletes a session wants it gone, also after a power cut."""
    size: int = LARGE

    def apply(self, transaction: Transaction) -> None:
        key, current = transaction.get(self.session_id)
        transaction.connection.execute(FORGET, (key, current.head))
        transaction.connection.execute(DELETE_SNAPSHOTS, (key,))
        transaction.connection.execute(DELETE_SESSION, (key,))
        transaction.changes[self.session_id] = None


class Sweep(NamedTuple):
    """Removes some forgotten events, so few that the appends of other sessions hardly wait."""

    session_id: SessionId
    durable: bool = False
    size: int = LARGE

    def apply(self, transaction: Transaction) -> bool:
        """Whether there may be more."""
        return sweep(transaction.connection)


# -- who does them -------------------------------------------------------------------------------------------


_T = TypeVar("_T")
_log = logging.getLogger(__name__)

Changes = Mapping[SessionId, Row | None]
"""Sessions that a commit moved; `None` is a deleted one."""

SLOW_S = 0.005
"""A commit on the loop that took longer is the last one there for a while. A hundred times what one takes when
nothing is wrong, and half of what anything may hold the loop."""

REST_S, LONGEST_REST_S = 0.05, 2.0
"""For how long the disk must have been quick before the loop commits again. It doubles when a commit is slow again
within as long as the last rest was. So a machine that was busy for a moment costs a few trips through the thread,
and a disk that stays slow holds the loop every two seconds at most."""

SLOW_SYNC_S = 0.001
"""A sync of the loop that took longer is the last one there for a while. Several times what one takes when nothing
is wrong."""

_REST_FACTOR = 25
"""How many times as long as a slow sync took the loop goes on without one: so slow ones hold it for a twenty-fifth
of the time at most."""

ALONE_S = 0.005
"""A session is alone if no other one wanted a sync for so long, which is several turns of a session by itself."""

LITTLE_BYTES, _COMMIT_BYTES = 256 * KiB, 8 * KiB
"""What a quick disk syncs in well under a millisecond, and what a commit writes beside its events, about."""

_NUDGE_EVERY = 8
"""So many commits of the loop are less than a checkpoint waits for; looking costs a tenth of a commit."""


class Lane(Enum):
    """Whose the connection is."""

    INLINE = "the loop's; the thread at most syncs"
    THREAD = "the thread's, until it has done all that it was given"
    SLOW = "the thread's, until the disk was quick for a while"


class _Sign(Enum):
    GIVEN = "the thread was given a job"
    DONE = "the thread has done all its jobs"
    SLOW = "a commit was slow"
    QUICK = "the thread has no job, and the last slow commit is long ago"


_NEXT = {
    (Lane.INLINE, _Sign.GIVEN): Lane.THREAD,
    (Lane.INLINE, _Sign.SLOW): Lane.SLOW,
    (Lane.THREAD, _Sign.DONE): Lane.INLINE,
    (Lane.THREAD, _Sign.SLOW): Lane.SLOW,
    (Lane.SLOW, _Sign.QUICK): Lane.INLINE,
}
"""What is not here leaves the lane as it is."""


class _Pace:
    """Whether the disk is so quick that the loop may sync. Nobody knows before the first sync, or after a slow one
    until the thread has found out."""

    def __init__(self) -> None:
        self._is_quick = False
        self._rests_until = 0.0

    def note(self, seconds: float, now: float) -> None:
        """A sync has taken so long."""
        self._is_quick = seconds <= SLOW_SYNC_S
        if not self._is_quick:
            self._rests_until = now + _REST_FACTOR * seconds

    def is_quick(self, now: float) -> bool:
        return self._is_quick and now >= self._rests_until


class _Given(NamedTuple):
    """A job that the thread does."""

    job: Job[Any]
    future: asyncio.Future[Any]


class _Unsynced(NamedTuple):
    """A job that the loop has committed and that waits for a sync."""

    number: int
    session_id: SessionId
    future: asyncio.Future[Any]
    result: Any
    changes: Changes


class _Outcome(NamedTuple):
    result: Any
    error: Exception | None


class _Group(NamedTuple):
    """Jobs that the thread has done."""

    futures: Sequence[asyncio.Future[Any]]
    outcomes: Sequence[_Outcome]
    changes: Changes
    is_slow: bool = False
    sync_s: float | None = None
    """How long their sync took, if one asked for it."""


class _Call(Enum):
    """What else the thread is told."""

    SYNC = "there is something to sync"
    END = "nothing more comes"


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
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = file.writes
        self._rows = dict(file.rows)
        self._busy_timeout_s = self._set_timeout_s = file.busy_timeout_s
        self._wal = file.wal
        self._gate = file.gate
        self._checkpointer = checkpointer
        self._is_full = durability is Durability.FULL
        self._queue_limit = queue_limit
        self._on_commit = on_commit
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self.lane = Lane.INLINE
        self._pace = _Pace()
        self._to_sync_bytes = 0
        """What is committed and not synced, about."""
        self._last_waiting: SessionId | None = None
        self._last_waiting_at = 0.0
        """Who wanted a sync last, and when."""
        self._rest_s = 0.0
        self._quick_at = 0.0
        self._queue: SimpleQueue[_Given | _Call] = SimpleQueue()
        self._submitted = self._delivered = 0
        """Jobs that had to wait, and those of them that have an outcome."""
        self._last_given = self._last_unsynced = 0
        """Numbers of such jobs: the last that the thread was given, and the last that the loop committed."""
        self._unsynced: deque[_Unsynced] = deque()
        self._unsynced_sessions: dict[SessionId, int] = {}
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
        if self.lane is Lane.SLOW and self._delivered >= self._last_given and self._timer() >= self._quick_at:
            self._step(_Sign.QUICK)
        if self.lane is Lane.INLINE and (size := job.size) <= SMALL_BYTES and self._enter():
            try:
                outcome, changes = self._commit_inline(job, size)
            finally:
                self._gate.leave()
            if outcome is not None:
                if outcome.error is not None:
                    raise outcome.error
                if self._waits_for_sync(job):
                    if not self._may_sync(job):
                        return await self._synced(job, outcome.result, changes)
                    self._sync_alone()
                self._on_commit(changes)
                return outcome.result
        return await self._given(job)

    def is_unsure(self, session_id: SessionId) -> bool:
        """Whether a job that nobody waits for any more may still change this session."""
        return self._abandoned.get(session_id, 0) > self._delivered

    async def aclose(self) -> None:
        """Finish the jobs that were accepted, then end the thread."""
        self._is_closing = True
        self._queue.put(_Call.END)
        await to_thread.run_sync(self._thread.join)

    def _step(self, sign: _Sign) -> None:
        if sign is _Sign.SLOW:
            now = self._timer()
            again = now < self._quick_at + self._rest_s
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) if again else REST_S
            self._quick_at = now + self._rest_s
        self.lane = _NEXT.get((self.lane, sign), self.lane)

    # -- on the loop ---------------------------------------------------------------------------------------------

    def _enter(self) -> bool:
        """Whether a commit of the loop may begin; if so, the gate is held."""
        if not self._gate.enter():
            return False
        if self._gate.may_restart or self._checkpointer.is_far_behind:
            self._gate.leave()
            return False
        return True

    def _commit_inline(self, job: Job[Any], size: int) -> tuple[_Outcome | None, Changes]:
        """What became of a job; nothing if the file is held by another, then nothing was done."""
        transaction = Transaction(self._connection, self._rows)
        started = self._timer()
        try:
            outcomes, _ = self._transact([job], transaction, timeout_s=0.0)
        except Exception as error:  # noqa: BLE001  Whatever it is, it becomes an error of the log.
            if is_held(error):
                return None, {}
            return _Outcome(None, self._failure(error)), {}
        if self._timer() - started > SLOW_S:
            self._step(_Sign.SLOW)
        if self._gate.commits % _NUDGE_EVERY == 0:
            self._checkpointer.nudge()
        self._to_sync_bytes += size + _COMMIT_BYTES
        return outcomes[0], transaction.changes

    def _waits_for_sync(self, job: Job[Any]) -> bool:
        return job.durable or self._is_full or job.session_id in self._unsynced_sessions

    def _may_sync(self, job: Job[Any]) -> bool:
        """Whether the loop itself syncs what it has committed."""
        now = self._timer()
        is_alone = self._last_waiting in (None, job.session_id) or now >= self._last_waiting_at + ALONE_S
        self._last_waiting, self._last_waiting_at = job.session_id, now
        return (
            is_alone
            and not self._unsynced
            and self.lane is Lane.INLINE
            and self._to_sync_bytes <= LITTLE_BYTES
            and self._checkpointer.is_resting
            and self._pace.is_quick(now)
        )

    def _sync_alone(self) -> None:
        try:
            seconds = self._sync()
        except Exception as error:
            raise self._failure(error) from error
        self._pace.note(seconds, self._timer())
        self._to_sync_bytes = 0

    async def _synced(self, job: Job[_T], result: _T, changes: Changes) -> _T:
        number, future = self._number_and_future()
        # If there were some already, the thread is at it, and `_deliver` wakes it for what came meanwhile.
        is_first = not self._unsynced
        self._unsynced.append(_Unsynced(number, job.session_id, future, result, changes))
        self._unsynced_sessions[job.session_id] = self._last_unsynced = number
        if is_first:
            self._call_for_sync()
        return await self._outcome(job, number, future)

    async def _given(self, job: Job[_T]) -> _T:
        if self.waiting >= self._queue_limit:
            raise LogUnavailable(
                "the disk does not keep up with the event log; try again, or give it a faster disk",
                waiting=self.waiting,
            )
        number, future = self._number_and_future()
        self._last_given = number
        self._to_sync_bytes = 0 if job.durable or self._is_full else LARGE
        self._step(_Sign.GIVEN)
        self._queue.put(_Given(job, future))
        return await self._outcome(job, number, future)

    def _call_for_sync(self) -> None:
        # It covers at least what is committed now.
        self._to_sync_bytes = 0
        self._queue.put(_Call.SYNC)

    def _number_and_future(self) -> tuple[int, asyncio.Future[Any]]:
        self._submitted += 1
        return self._submitted, self._loop.create_future()

    async def _outcome(self, job: Job[_T], number: int, future: asyncio.Future[_T]) -> _T:
        try:
            return await future
        except asyncio.CancelledError:
            # It may still be done, so until then nobody can say from memory where the session's head is.
            self._abandoned[job.session_id] = number
            raise

    def _deliver_synced(self, upto: int, seconds: float, error: LogError | None) -> None:
        """What the loop had committed, up to a number, is on the disk; or it never will be, and all of it
        failed."""
        self._pace.note(seconds, self._timer())
        covered: list[_Unsynced] = []
        while self._unsynced and (error is not None or self._unsynced[0].number <= upto):
            covered.append(self._unsynced.popleft())
        if self._unsynced:
            self._call_for_sync()
        self._delivered += len(covered)
        for each in covered:
            if self._unsynced_sessions[each.session_id] == each.number:
                del self._unsynced_sessions[each.session_id]
        if error is None:
            for each in covered:
                self._on_commit(each.changes)
        for each in covered:
            _answer(each.future, _Outcome(each.result, error))
        self._forget_abandoned()

    def _deliver(self, group: _Group) -> None:
        self._delivered += len(group.futures)
        if group.is_slow:
            self._step(_Sign.SLOW)
        if group.sync_s is not None:
            self._pace.note(group.sync_s, self._timer())
        if self._delivered >= self._last_given:
            self._step(_Sign.DONE)
        self._on_commit(group.changes)
        for future, outcome in zip(group.futures, group.outcomes, strict=True):
            _answer(future, outcome)
        self._forget_abandoned()

    def _forget_abandoned(self) -> None:
        if not self.waiting:
            self._abandoned.clear()

    # -- wherever the connection is used -------------------------------------------------------------------------

    def _transact(
        self, jobs: Sequence[Job[Any]], transaction: Transaction, *, timeout_s: float
    ) -> tuple[list[_Outcome], float]:
        """The outcomes of jobs that are committed together, and how long COMMIT took. Called inside the gate."""
        self._gate.check_syncs()
        connection = self._connection
        if timeout_s != self._set_timeout_s:
            connection.execute(f"PRAGMA busy_timeout = {timeout_s * 1000:.0f}")
            self._set_timeout_s = timeout_s
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_apply(job, transaction) for job in jobs]
            transaction.flush()
            started = self._timer()
            connection.execute("COMMIT")
            seconds = self._timer() - started
        except BaseException:
            # SQLite ends the transaction itself on some errors. If a rollback fails, the next BEGIN says so.
            with suppress(sqlite3.Error):
                connection.rollback()
            raise
        if connection.total_changes != before:
            self._gate.committed()
        for session_id, row in transaction.changes.items():
            if row is None:
                self._rows.pop(session_id, None)
            else:
                self._rows[session_id] = row
        return outcomes, seconds

    def _sync(self) -> float:
        """How long it took."""
        started = self._timer()
        try:
            self._wal.sync()
        except BaseException:
            self._gate.sync_failed = True
            raise
        return self._timer() - started

    def _failure(self, error: Exception) -> LogError:
        """The error for those whose commit or sync failed."""
        if is_failed_sync(error):
            self._gate.sync_failed = True
        _log.error(
            "append failed",
            exc_info=error,
            extra={"event": "append_failed", "sqlite_code": getattr(error, "sqlite_errorcode", None)},
        )
        return log_error(error)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        synced = 0
        is_open = True
        with closing(self._connection):
            while is_open:
                given = [self._queue.get()]
                # Nobody else takes from the queue, so what is counted is there; and it is bounded by `run`.
                given.extend(self._queue.get() for _ in range(self._queue.qsize()))
                is_open = _Call.END not in given
                unsynced = self._last_unsynced
                if unsynced > synced:
                    self._sync_committed(unsynced)
                    synced = unsynced
                group = [each for each in given if isinstance(each, _Given)]
                if group:
                    self._commit(group)

    def _sync_committed(self, upto: int) -> None:
        """Sync what the loop has committed: all of it that was when this begins (I2)."""
        seconds, error = math.inf, None
        try:
            self._gate.check_syncs()
            seconds = self._sync()
        except Exception as failure:  # noqa: BLE001  Nothing may leave the thread: callers must hear of it.
            error = self._failure(failure)
        self._send(self._deliver_synced, upto, seconds, error)

    def _commit(self, group: list[_Given]) -> None:
        transaction = Transaction(self._connection, self._rows)
        jobs = [each.job for each in group]
        try:
            with self._gate.transaction():
                # A header that is synced inside of a commit says nothing about other commits.
                has_header = self._gate.may_restart
                outcomes, seconds = self._transact(jobs, transaction, timeout_s=self._busy_timeout_s)
            sync_s = self._sync() if self._is_full or any(job.durable for job in jobs) else None
        except Exception as error:  # noqa: BLE001  Nothing may leave the thread: callers must hear of it.
            self._fail(group, error)
            return
        # The thread also waits for its turn in the interpreter, which says nothing about the disk.
        is_slow = not has_header and seconds > SLOW_S + sys.getswitchinterval()
        futures = [each.future for each in group]
        self._send(self._deliver, _Group(futures, outcomes, transaction.changes, is_slow, sync_s))
        self._checkpointer.nudge()
        self._checkpointer.wait_if_far_behind()

    def _fail(self, group: list[_Given], error: Exception) -> None:
        if len(group) > 1 and may_be_one_jobs_fault(error) and not self._gate.sync_failed:
            # Whose fault it was shows when each is committed alone, and the others are stored.
            for each in group:
                self._commit([each])
            return
        # A refusal within the group fails with it: what refused it may have been rolled back.
        failed = [_Outcome(None, self._failure(error))] * len(group)
        self._send(self._deliver, _Group([each.future for each in group], failed, {}))

    def _send(self, deliver: Callable[..., None], *what: object) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(deliver, *what)


def _apply(job: Job[Any], transaction: Transaction) -> _Outcome:
    try:
        return _Outcome(job.apply(transaction), None)
    except TurnwireError as refusal:
        return _Outcome(None, refusal)


def _answer(future: asyncio.Future[Any], outcome: _Outcome) -> None:
    if future.done():
        return
    if outcome.error is None:
        future.set_result(outcome.result)
    else:
        future.set_exception(outcome.error)
