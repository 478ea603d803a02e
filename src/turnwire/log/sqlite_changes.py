"""The changes of a log, as methods of a transaction that several may share.

A change checks the rules of the contract before it writes, so a rejected one has written nothing. The transaction
holds the sessions as they will be after its commit, so a change sees those before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import SessionHead, Snapshot

Changes = Mapping[SessionId, sql.Row | None]
"""Sessions that a commit has changed; `None` for a deleted one."""


class Transaction:
    """The sessions as they will be if this transaction commits."""

    def __init__(self, connection: sqlite3.Connection, committed: Mapping[SessionId, sql.Row]) -> None:
        self._execute = connection.execute
        self._committed = committed
        self.changes: dict[SessionId, sql.Row | None] = {}
        self.written_bytes = 0
        """Approximate size of the written data."""

    def _find(self, session_id: SessionId) -> sql.Row | None:
        return self.changes[session_id] if session_id in self.changes else self._committed.get(session_id)

    def _get(self, session_id: SessionId) -> sql.Row:
        row = self._find(session_id)
        if row is None:
            raise rules.not_found(session_id)
        return row

    def head(self, session_id: SessionId) -> SessionHead:
        """Return the head after all earlier changes."""
        return self._get(session_id).head

    def create(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        if self._find(session_id) is not None:
            raise rules.exists(session_id)
        key = self._execute(sql.ADD_SESSION, (session_id, epoch, first)).lastrowid
        assert key is not None, "an INSERT returns a row id"
        head = SessionHead(session_id, epoch, first, first - 1, unsettled=False)
        self.changes[session_id] = sql.Row(key, head)
        return head

    def append(self, session_id: SessionId, bodies: Sequence[bytes], expected: int, unsettled: bool) -> int:
        key, current = self._get(session_id)
        rules.check_append(current, expected)
        for segment in sql.segments_of(key, expected + 1, bodies):
            self._execute(sql.ADD_SEGMENT, segment)
            self.written_bytes += len(segment.bodies)
        head = expected + len(bodies)
        self.changes[session_id] = sql.Row(key, current._replace(head=head, unsettled=unsettled))
        return head

    def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        key, current = self._get(session_id)
        rules.check_snapshot(current, snapshot)
        self._execute(sql.SAVE_SNAPSHOT, (key, *snapshot, sql.checksum(key, *snapshot)))
        self.written_bytes += len(snapshot.body)

    def trim(self, session_id: SessionId, upto: int) -> int:
        """Remove events from the log's visible range; `sweep` deletes them."""
        key, current = self._get(session_id)
        first = max(current.first, min(upto, current.head) + 1)
        if first > current.first:
            self._execute(sql.FORGET, (key, first - 1))
            self.changes[session_id] = sql.Row(key, current._replace(first=first))
        return first

    def delete(self, session_id: SessionId) -> None:
        """Remove a session from the log; `sweep` deletes its events."""
        key, current = self._get(session_id)
        self._execute(sql.FORGET, (key, current.head))
        self._execute(sql.DELETE_SNAPSHOTS, (key,))
        self._execute(sql.DELETE_SESSION, (key,))
        self.changes[session_id] = None

    def sweep(self) -> bool:
        """Remove some forgotten segments, so few that others hardly wait; return whether there may be more."""
        row = self._execute(sql.NEXT_FORGOTTEN).fetchone()
        if row is None:
            return False
        session, upto = row
        base, limit = session << sql.OFFSET_BITS, sql.SWEEP_SEGMENTS
        self.written_bytes += limit << 12
        if self._execute(sql.DELETE_SEGMENTS, (base, base | upto, limit)).rowcount < limit:
            self._execute(sql.FORGOTTEN_IS_GONE, (session,))
        return True

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
