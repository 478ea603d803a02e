"""Reading the log in threads, each with a read-only connection.

A query sees one state of the file. No transaction stays open between two queries: a long one would prevent the
write-ahead log from starting again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anyio import to_thread

from turnwire.errors import LogCorrupt
from turnwire.ids import SessionId
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import Position, Snapshot, Stored
from turnwire.log.sqlite_errors import log_error

T = TypeVar("T")

READERS = 4
"""Pages read at the same time. One needs well under a millisecond, and Python runs one thread at a time."""


class SqliteReader:
    """A pool of threads with a connection each."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._threads = ThreadPoolExecutor(READERS, "turnwire-log-reader")
        self._idle: list[sqlite3.Connection] = []
        self._is_closing = False

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query. Cancel-safe. Raises `LogError`."""
        if self._is_closing:
            raise rules.closed()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, query)

    async def aclose(self) -> None:
        """Wait for the running queries, then close the connections."""
        self._is_closing = True
        await to_thread.run_sync(self._threads.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            # `pop` and `append` of a list are atomic, and there are no more threads than connections.
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                connection.execute("BEGIN")
                return query(connection)
            finally:
                connection.rollback()
                self._idle.append(connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise log_error(error) from error


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
