"""The event log in one SQLite file, as `turnwire.log.base` describes it.

One process owns a file; other programs may read it. Heads are answered from memory, changes are made by one thread
(`sqlite_writer`), reads by a few others with a read-only connection each.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

import anyio
from anyio import to_thread

from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import Position, SessionHead, Snapshot, Stored
from turnwire.log.sqlite_file import SqliteFile, log_error
from turnwire.log.sqlite_writer import Changes, Durability, SqliteWriter, Transaction, sync_file

T = TypeVar("T")

READERS = 4
"""Pages read at the same time. One needs well under a millisecond, and Python runs one thread at a time."""


class SqliteEventLog:
    """An `EventLog` in a SQLite file. Opened by `open`, closed by `aclose` or as an async context.

    A cancelled change may still be made (L6); a cancelled read has no effect.
    """

    def __init__(
        self,
        file: SqliteFile,
        limits: Limits,
        durability: Durability,
        epochs: Callable[[], Epoch],
        sync: Callable[[int], None],
    ) -> None:
        self._file = file
        self._epochs = epochs
        self._heads = {session_id: row.head for session_id, row in file.rows.items()}
        self._order = sorted(self._heads)
        self._readers = ThreadPoolExecutor(READERS, "turnwire-log-reader")
        self._idle: list[sqlite3.Connection] = []
        self._writer = SqliteWriter(file, limits, durability, self._moved, sync)
        self._closing = anyio.Lock()
        self._is_closed = self._is_released = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        limits: Limits,
        durability: Durability,
        epochs: Callable[[], Epoch] = rules.random_epoch,
        sync: Callable[[int], None] = sync_file,
    ) -> Self:
        """Open and own the file at `path`; create it and its directories if they are missing.

        `sync` syncs the descriptor of the write-ahead log. Raises `ConfigError`, `LogLocked`, `LogVersionMismatch`,
        `LogCorrupt`; then the file is untouched.
        """
        file = await to_thread.run_sync(SqliteFile.open, Path(path), limits)
        return cls(file, limits, durability, epochs, sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def create(self, session_id: SessionId) -> SessionHead:
        return await self.restore(session_id, self._epochs(), 1)

    async def restore(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        """Create a log that continues another one: see `turnwire.log.copying`. Raises `SessionExists`."""
        self._check_open()
        rules.check_session_id(session_id)
        return await self._writer.run(session_id, lambda each: each.create(session_id, epoch, first))

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Return the head, after every change whose caller was cancelled. No other process writes."""
        self._check_open()
        if self._writer.is_unsure(session_id):
            return await self._writer.run(session_id, lambda each: each.get(session_id).head)
        return self._find(session_id)

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        self._check_open()
        copied = tuple(bodies)  # The caller may change its list before the writer reads it.
        return await self._writer.run(
            session_id, lambda each: each.append(session_id, copied, expected, unsettled), durable=durable
        )

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        self._check_open()
        current = self._find(session_id)
        rules.check_position(current, after)
        if after.offset == current.head:
            return []
        # Up to the head as of this call: the file may contain events that are not yet acknowledged (W4).
        return await self._read(
            lambda each: read_page(each, session_id, after, current.head, max_events, max_bytes)
        )

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        self._check_open()
        start = 0 if after is None else bisect_right(self._order, after)
        heads = (self._heads[session_id] for session_id in islice(self._order, start, None))
        return list(islice((head for head in heads if head.unsettled or not unsettled_only), limit))

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        self._check_open()
        await self._writer.run(session_id, lambda each: each.save_snapshot(session_id, snapshot))

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        self._check_open()
        self._find(session_id)
        return await self._read(lambda each: newest_snapshot(each, session_id, name))

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Remove a prefix. The file does not shrink: its space is used again."""
        self._check_open()
        first = await self._writer.run(session_id, lambda each: each.trim(session_id, upto))
        await self._sweep(session_id)
        return first

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it, synced at every level."""
        self._check_open()
        await self._writer.run(session_id, lambda each: each.delete(session_id), durable=True)
        await self._sweep(session_id)

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in a thread. It sees one state of the file."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run_query, query)

    def _run_query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            # `pop` and `append` of a list are atomic, and there are no more threads than connections.
            connection = self._idle.pop() if self._idle else self._file.connect_reader()
            try:
                connection.execute("BEGIN")
                return query(connection)
            finally:
                # An open transaction would prevent the write-ahead log from starting again.
                connection.rollback()
                self._idle.append(connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise log_error(error) from error

    async def aclose(self) -> None:
        """Finish all accepted changes, copy the write-ahead log into the file and admit another owner."""
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if not self._is_released:
                    await to_thread.run_sync(self._readers.shutdown)
                    while self._idle:
                        self._idle.pop().close()
                    # Its connection is the last one and may write, so SQLite removes the write-ahead log.
                    await self._writer.aclose()
                    self._file.release()
                    self._is_released = True

    async def _sweep(self, session_id: SessionId) -> None:
        # When this is cancelled, the rest is removed by the next sweep, or when the file is opened again.
        while await self._writer.run(session_id, Transaction.sweep):
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


def read_page(
    connection: sqlite3.Connection,
    session_id: SessionId,
    after: Position,
    upto: int,
    max_events: int,
    max_bytes: int,
) -> list[Stored]:
    """Return events after a position, up to and including an offset."""
    key, current = _find(connection, session_id)
    # Again: the session may have been trimmed or deleted since the caller looked.
    rules.check_position(current, after)
    base = key << sql.OFFSET_BITS
    page: list[Stored] = []
    size, offset = 0, after.offset
    for row in connection.execute(sql.SEGMENTS, (base | offset, base | upto)):
        first, bodies = sql.bodies_in(sql.Segment(*row), offset)
        if first > offset + 1:
            break
        for body in bodies:
            size += len(body)
            if page and (size > max_bytes or len(page) >= max_events):
                return page
            offset += 1
            page.append(Stored(offset, body))
    if offset != upto:
        raise LogCorrupt(
            f"events of session {session_id!r} are missing after offset {offset}; restore the file from a backup",
            session=session_id,
        )
    return page


def newest_snapshot(connection: sqlite3.Connection, session_id: SessionId, name: str) -> Snapshot | None:
    key, _ = _find(connection, session_id)
    row = connection.execute(sql.FIND_SNAPSHOT, (key, name)).fetchone()
    # A snapshot is a cache: a damaged one is made again.
    return None if row is None or row[-1] != sql.checksum(*row[:-1]) else Snapshot(*row[1:-1])


def _find(connection: sqlite3.Connection, session_id: SessionId) -> sql.Row:
    row = connection.execute(sql.FIND_SESSION, (session_id,)).fetchone()
    if row is None:
        raise rules.not_found(session_id)
    return sql.row_of(row)
