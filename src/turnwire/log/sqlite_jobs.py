"""The changes of the log, each as a job inside a transaction that several may share.

A job checks the rules of the contract, then writes; it is refused before it wrote anything. What the sessions will
be if the transaction commits is kept beside it, so that a job sees those before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

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
    segments_of,
    sweep,
)

T_co = TypeVar("T_co", covariant=True)

SMALL_EVENTS, SMALL_BYTES = 1024, 512 * KiB
"""What a disk that is quick takes in a millisecond or two; the event loop hands over more."""


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
    def is_small(self) -> bool:
        """The event loop may do it."""
        ...

    def apply(self, transaction: Transaction) -> T_co:
        """Do it, or raise before anything is written."""
        ...


class Create(NamedTuple):
    session_id: SessionId
    epoch: Epoch
    first: int = 1
    durable: bool = False
    is_small: bool = True

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
    def is_small(self) -> bool:
        return len(self.bodies) <= SMALL_EVENTS and sum(map(len, self.bodies)) <= SMALL_BYTES

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
    is_small: bool = True

    def apply(self, transaction: Transaction) -> SessionHead:
        return transaction.get(self.session_id).head


class SaveSnapshot(NamedTuple):
    session_id: SessionId
    snapshot: Snapshot
    durable: bool = False
    is_small: bool = False

    def apply(self, transaction: Transaction) -> None:
        key, current = transaction.get(self.session_id)
        rules.check_snapshot(current, self.snapshot)
        transaction.connection.execute(SAVE_SNAPSHOT, (key, *self.snapshot))


class Trim(NamedTuple):
    """Takes events out of the log; `Sweep` removes them."""

    session_id: SessionId
    upto: int
    durable: bool = False
    is_small: bool = False

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
    is_small: bool = False

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
    is_small: bool = False

    def apply(self, transaction: Transaction) -> bool:
        """Whether there may be more."""
        return sweep(transaction.connection)
