"""What the writer can be asked to do: each change of the log as one job inside a transaction.

Takes an open transaction; checks the rules of the contract against it, then writes. A job that is refused has
written nothing. Never begins or ends a transaction: several jobs share one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log import sqlite_schema as sql
from turnwire.log.base import SessionHead, Snapshot

T_co = TypeVar("T_co", covariant=True)

_SWEEP_EVENTS = 1000
"""Some milliseconds of work; a whole long session would stop every other one for seconds."""


class Row(NamedTuple):
    """A session and the number that the file's tables know it by."""

    key: int
    head: SessionHead


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
        self.connection.executemany(sql.MOVE_SESSION, moved)


class Job(Protocol[T_co]):
    """One change. `durable` asks for a synced commit."""

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
    durable: bool = False

    def apply(self, transaction: Transaction) -> SessionHead:
        if transaction.find(self.session_id) is not None:
            raise rules.exists(self.session_id)
        key = transaction.connection.execute(sql.ADD_SESSION, (self.session_id, self.epoch)).lastrowid
        assert key is not None, "an INSERT gives a row id"
        head = SessionHead(self.session_id, self.epoch, first=1, head=0, unsettled=False)
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
        whole = len(bodies) - len(bodies) % sql.EVENTS_AT_ONCE
        for start in range(0, whole, sql.EVENTS_AT_ONCE):
            first = self.expected + 1 + start
            connection.execute(sql.ADD_EVENTS, (key, first, *bodies[start : start + sql.EVENTS_AT_ONCE]))
        rest = [(key, offset, body) for offset, body in enumerate(bodies[whole:], self.expected + 1 + whole)]
        connection.executemany(sql.ADD_EVENT, rest)
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
        transaction.connection.execute(sql.SAVE_SNAPSHOT, (key, *self.snapshot))


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
            transaction.connection.execute(sql.FORGET, (key, first - 1))
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
        transaction.connection.execute(sql.FORGET, (key, current.head))
        transaction.connection.execute(sql.DELETE_SNAPSHOTS, (key,))
        transaction.connection.execute(sql.DELETE_SESSION, (key,))
        transaction.changes[self.session_id] = None


@dataclass(frozen=True)
class Sweep:
    """Removes some forgotten events, so few that the appends of other sessions hardly wait."""

    session_id: SessionId
    durable: bool = False

    def apply(self, transaction: Transaction) -> bool:
        """Whether there may be more."""
        return sweep(transaction.connection)


def sweep(connection: sqlite3.Connection) -> bool:
    """Remove up to `_SWEEP_EVENTS` forgotten events of any session; whether there may be more."""
    row = connection.execute(sql.NEXT_FORGOTTEN).fetchone()
    if row is None:
        return False
    key, upto, oldest = row
    last = upto if oldest is None else min(upto, oldest + _SWEEP_EVENTS - 1)
    connection.execute(sql.DELETE_EVENTS, (key, last))
    if last == upto:
        connection.execute(sql.FORGOTTEN_IS_GONE, (key,))
    return True
