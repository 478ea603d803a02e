"""Reads of the file beside its writer: in worker threads, each on a read-only connection of its own.

Takes a session and a position, gives a page. Never blocks the event loop or the writer, and never holds a
transaction between two calls: a reader that stays would keep the write-ahead log from being used again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import Position, SessionHead, Snapshot, Stored
from turnwire.log.sqlite_errors import log_error

_T = TypeVar("_T")

READERS = 4
"""Pages read at the same time. A page is read in well under a millisecond, and Python runs one thread at a
time, so more would only hold more memory."""


class SqliteReader:
    """A small pool of connections."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._limiter = CapacityLimiter(READERS)
        self._idle: list[sqlite3.Connection] = []
        self._is_closed = False

    async def run(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a query on one state of the file. A cancelled call ends when its query has ended."""
        if self._is_closed:
            raise rules.closed()
        return await to_thread.run_sync(self._query, query, limiter=self._limiter)

    async def aclose(self) -> None:
        """Close the connections after the last query."""
        self._is_closed = True
        for _ in range(READERS):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().close()

    def _query(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            # `pop` and `append` of a list are atomic, and the limiter bounds how many are out.
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                connection.execute("BEGIN")
                try:
                    return query(connection)
                finally:
                    connection.rollback()
            finally:
                self._idle.append(connection)
        except sqlite3.Error as error:
            raise log_error(error) from error


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
        rows = connection.execute(sql.PAGE_OF_EVENTS, (key, self.after.offset, self.upto, max(self.max_events, 1)))
        page: list[Stored] = []
        size = 0
        for offset, body in rows:
            size += len(body)
            if page and size > self.max_bytes:
                break
            page.append(Stored(offset, body))
        # Rows come in order and once each: without gaps if the last one is as far on as there are rows.
        if not page or page[-1].offset != self.after.offset + len(page):
            raise LogCorrupt(
                f"events of session {self.session_id!r} are missing after offset {self.after.offset};"
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
        row = connection.execute(sql.FIND_SNAPSHOT, (key, self.name)).fetchone()
        return None if row is None else Snapshot(*row)


def _find(connection: sqlite3.Connection, session_id: SessionId) -> tuple[int, SessionHead]:
    row = connection.execute(sql.FIND_SESSION, (session_id,)).fetchone()
    if row is None:
        raise rules.not_found(session_id)
    key, epoch, first, head, unsettled = row
    return key, SessionHead(session_id, Epoch(epoch), first, head, bool(unsettled))
