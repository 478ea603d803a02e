"""The event log in one SQLite file, as `turnwire.log.base` describes it.

One process owns a file; other programs may read it. Heads are answered from memory, changes are made by one thread
(`sqlite_writer`), reads by a few others (`sqlite_reader`).
"""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead, Snapshot, Stored
from turnwire.log.sqlite_changes import Changes, Transaction
from turnwire.log.sqlite_file import SqliteFile
from turnwire.log.sqlite_reader import SqliteReader, newest_snapshot, read_page
from turnwire.log.sqlite_writer import Durability, SqliteWriter, sync_file


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
        self._reader = SqliteReader(file.connect_reader)
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
            return await self._writer.run(session_id, lambda each: each.head(session_id))
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
        return await self._reader.run(
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
        return await self._reader.run(lambda each: newest_snapshot(each, session_id, name))

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

    async def aclose(self) -> None:
        """Finish all accepted changes, copy the write-ahead log into the file and admit another owner."""
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if not self._is_released:
                    await self._reader.aclose()
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
