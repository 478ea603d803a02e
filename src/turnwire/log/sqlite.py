"""The event log in one SQLite file: the engine for everything that must outlive the process.

Takes and gives what `turnwire.log.base` says. One process owns a file; others may read it with any SQLite
tool. Heads are answered from memory; small appends are committed on the event loop while the disk is quick, and
synced there for one session alone; every other change, sync and checkpoint is done in threads of their own
(`sqlite_writer`), reads in worker threads.

Each read has a read-only connection of its own, and no transaction between two calls: a reader that stays would
keep the write-ahead log from being used again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead, Snapshot, Stored
from turnwire.log.sqlite_file import (
    FIND_SESSION,
    FIND_SNAPSHOT,
    OFFSET_BITS,
    SEGMENTS,
    Segment,
    SqliteFile,
    bodies_in,
    head_of,
    log_error,
)
from turnwire.log.sqlite_wal import Checkpointer, Durability, sync_file
from turnwire.log.sqlite_writer import (
    Append,
    Changes,
    Create,
    Delete,
    Lane,
    Look,
    SaveSnapshot,
    SqliteWriter,
    Sweep,
    Trim,
)

_T = TypeVar("_T")
_Query: TypeAlias = Callable[[sqlite3.Connection], Any]
_Answer: TypeAlias = tuple[Any, Exception | None]

READERS = 4
"""Pages read at the same time. A page is read in well under a millisecond, and Python runs one thread at a
time, so more would only hold more memory."""
READ_TOGETHER = 16
"""Queries that a thread takes at once, if so many wait."""


class LogStatistics(NamedTuple):
    """What the log is doing."""

    sessions: int
    commits: int
    """Transactions that changed the file since it was opened."""
    waiting: int
    """Changes that are not yet committed, or not yet synced though they must be."""
    lane: Lane
    """Who commits."""
    is_checkpointing: bool
    """Whether the checkpointer keeps the disk busy."""


class SqliteEventLog:
    """An `EventLog` in a SQLite file. Made by `open`, ended by `aclose` or as an async context."""

    def __init__(
        self,
        file: SqliteFile,
        limits: Limits,
        durability: Durability,
        epochs: Callable[[], Epoch],
        timer: Callable[[], float],
    ) -> None:
        self._file = file
        self._epochs = epochs
        self._heads = {session_id: row.head for session_id, row in file.rows.items()}
        self._order = sorted(self._heads)
        self._reader = SqliteReader(file.connect_reader)
        self._checkpointer = Checkpointer(file.checkpoints, file.wal, file.gate, limits.checkpoint_bytes)
        self._writer = SqliteWriter(
            file,
            self._checkpointer,
            durability=durability,
            queue_limit=limits.append_queue,
            on_commit=self._moved,
            timer=timer,
        )
        self._closing = anyio.Lock()
        self._is_closed = False
        self._is_released = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        limits: Limits,
        durability: Durability,
        epochs: Callable[[], Epoch] = rules.random_epoch,
        sync: Callable[[int], None] = sync_file,
        timer: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Own the file at `path`; it and its directories are made if they are not there.

        `sync` is how the descriptor of the write-ahead log is synced, `timer` tells how long a commit took.

        Raises:
            ConfigError: no file can be there.
            LogLocked: another process owns it.
            LogTooNew: a newer turnwire wrote it. It was not touched.
            LogCorrupt: it is damaged or something else. It was not touched.
        """
        file = await to_thread.run_sync(SqliteFile.open, Path(path), limits, sync)
        return cls(file, limits, durability, epochs, timer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def create(self, session_id: SessionId) -> SessionHead:
        """Begin an empty log. Raises `SessionExists`. When cancelled, it may still be created."""
        return await self.restore(session_id, self._epochs(), 1)

    async def restore(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        """Begin a log that goes on another one: see `turnwire.log.copying`. Raises `SessionExists`."""
        self._check_open()
        rules.check_session_id(session_id)
        return await self._writer.run(Create(session_id, epoch, first))

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Where the session's log stands, after every change whose caller was cancelled (L6).

        Nobody else writes, so nothing is newer than what is known.
        """
        self._check_open()
        if self._writer.is_unsure(session_id):
            return await self._writer.run(Look(session_id))
        return self._find(session_id)

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """Store `bodies` after `expected`, in the order of the calls. When cancelled, see L6."""
        self._check_open()
        # A copy: the caller may go on with its list while the writer has not come to this job.
        job = Append(session_id, tuple(bodies), expected, unsettled, durable)
        return await self._writer.run(job)

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        """Events after a position, up to the head as of this call. Cancel-safe."""
        self._check_open()
        current = self._find(session_id)
        rules.check_position(current, after)
        if after.offset == current.head:
            return []
        # The file may hold a commit of which the loop has not heard. Showing it would make a reader hold a
        # position that `head` does not know yet.
        return await self._reader.run(Page(session_id, after, current.head, max_events, max_bytes))

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        """Sessions in order of their id, a page at a time."""
        self._check_open()
        start = 0 if after is None else bisect_right(self._order, after)
        heads = (self._heads[session_id] for session_id in islice(self._order, start, None))
        return list(islice((head for head in heads if head.unsettled or not unsettled_only), limit))

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Keep a fold unless a newer one is kept. When cancelled, it may still be kept."""
        self._check_open()
        await self._writer.run(SaveSnapshot(session_id, snapshot))

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        """The newest kept snapshot of that name, if any. Cancel-safe."""
        self._check_open()
        self._find(session_id)
        return await self._reader.run(NewestSnapshot(session_id, name))

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Forget a prefix. The file does not shrink: its room is used again. When cancelled, see L6."""
        self._check_open()
        first = await self._writer.run(Trim(session_id, upto))
        await self._sweep(session_id)
        return first

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it, synced at every level. When cancelled, see L6."""
        self._check_open()
        await self._writer.run(Delete(session_id))
        await self._sweep(session_id)

    async def aclose(self) -> None:
        """Finish what was accepted, fold the write-ahead log into the file and let another owner in."""
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._is_released:
                    return
                await self._reader.aclose()
                await self._writer.aclose()
                # The last connection to close, and one that may write: it removes the write-ahead log.
                await to_thread.run_sync(self._checkpointer.close)
                self._file.release()
                self._is_released = True

    def statistics(self) -> LogStatistics:
        """For metrics and tests."""
        return LogStatistics(
            len(self._heads),
            self._file.gate.commits,
            self._writer.waiting,
            self._writer.lane,
            not self._checkpointer.is_resting,
        )

    async def _sweep(self, session_id: SessionId) -> None:
        # What is left when this is cancelled goes with the next sweep or when the file is opened again.
        while await self._writer.run(Sweep(session_id)):
            pass

    def _moved(self, changes: Changes) -> None:
        for session_id, row in changes.items():
            if row is None:
                if self._heads.pop(session_id, None) is not None:
                    del self._order[bisect_right(self._order, session_id) - 1]
                continue
            if session_id not in self._heads:
                insort(self._order, session_id)
            self._heads[session_id] = row.head

    def _check_open(self) -> None:
        if self._is_closed:
            raise rules.closed()

    def _find(self, session_id: SessionId) -> SessionHead:
        head = self._heads.get(session_id)
        if head is None:
            raise rules.not_found(session_id)
        return head


# -- reading beside the writer ---------------------------------------------------------------------------------


class SqliteReader:
    """A small pool of threads with a connection each.

    A query goes to a thread that is free. While none is, queries gather, and the next thread takes several of them:
    going to a thread and back takes longer than a short query does.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(READERS, "log-reader")
        self._busy = 0
        self._waiting: deque[tuple[_Query, asyncio.Future[Any]]] = deque()
        self._idle: list[sqlite3.Connection] = []
        self._closing: asyncio.Future[None] | None = None

    async def run(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a query on one state of the file. Cancel-safe."""
        if self._closing is not None:
            raise rules.closed()
        answer: asyncio.Future[_T] = self._loop.create_future()
        self._waiting.append((query, answer))
        self._go_on()
        return await answer

    async def aclose(self) -> None:
        """Close the connections after the last query."""
        if self._closing is None:
            self._closing = self._loop.create_future()
        if self._busy:
            await asyncio.shield(self._closing)
        self._threads.shutdown()
        while self._idle:
            self._idle.pop().close()

    def _go_on(self) -> None:
        while self._waiting and self._busy < READERS:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), READ_TOGETHER))]
            if wanted := [each for each in taken if not each[1].done()]:
                self._busy += 1
                answered = self._loop.run_in_executor(self._threads, self._answer, [each for each, _ in wanted])
                answered.add_done_callback(partial(self._tell, [each for _, each in wanted]))

    def _tell(self, asked: list[asyncio.Future[Any]], answered: asyncio.Future[list[_Answer]]) -> None:
        self._busy -= 1
        self._go_on()
        for future, (found, error) in zip(asked, answered.result(), strict=True):
            if future.done():
                continue  # cancelled
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)
        if self._closing is not None and not self._busy and not self._closing.done():
            self._closing.set_result(None)

    def _answer(self, queries: list[_Query]) -> list[_Answer]:
        """In a thread. Raises nothing: what a query raises is its answer."""
        try:
            # `pop` and `append` of a list are atomic, and there are no more threads than connections.
            connection = self._idle.pop() if self._idle else self._connect()
        except Exception as error:  # noqa: BLE001 -- whoever asked raises it
            return [(None, _read_error(error)) for _ in queries]
        try:
            return [_ask(connection, each) for each in queries]
        finally:
            self._idle.append(connection)


def _ask(connection: sqlite3.Connection, query: _Query) -> _Answer:
    try:
        connection.execute("BEGIN")
        try:
            return query(connection), None
        finally:
            connection.rollback()
    except Exception as error:  # noqa: BLE001 -- whoever asked raises it
        return None, _read_error(error)


def _read_error(error: Exception) -> Exception:
    return log_error(error) if isinstance(error, sqlite3.Error) else error


class Page(NamedTuple):
    """The query for events after a position, up to and including an offset."""

    session_id: SessionId
    after: Position
    upto: int
    max_events: int
    max_bytes: int

    def __call__(self, connection: sqlite3.Connection) -> list[Stored]:
        key, current = _find(connection, self.session_id)
        # Once more: the session may have been trimmed or deleted since the caller looked.
        rules.check_position(current, self.after)
        base = key << OFFSET_BITS
        page: list[Stored] = []
        size, offset = 0, self.after.offset
        for row in connection.execute(SEGMENTS, (base | offset, base | self.upto)):
            first, bodies = bodies_in(Segment(*row), offset)
            if first > offset + 1:
                break
            for body in bodies:
                size += len(body)
                if page and (size > self.max_bytes or len(page) >= self.max_events):
                    return page
                offset += 1
                page.append(Stored(offset, body))
        if offset != self.upto:
            raise LogCorrupt(
                f"events of session {self.session_id!r} are missing after offset {offset};"
                " stop and restore the file from a backup",
                session=self.session_id,
            )
        return page


class NewestSnapshot(NamedTuple):
    """The query for a session's snapshot of a name."""

    session_id: SessionId
    name: str

    def __call__(self, connection: sqlite3.Connection) -> Snapshot | None:
        key, _ = _find(connection, self.session_id)
        row = connection.execute(FIND_SNAPSHOT, (key, self.name)).fetchone()
        return None if row is None else Snapshot(*row)


def _find(connection: sqlite3.Connection, session_id: SessionId) -> tuple[int, SessionHead]:
    row = connection.execute(FIND_SESSION, (session_id,)).fetchone()
    if row is None:
        raise rules.not_found(session_id)
    key, epoch, first, unsettled, newest = row
    return key, head_of(session_id, key, epoch, first, unsettled, newest)
