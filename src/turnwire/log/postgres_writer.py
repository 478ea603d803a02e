"""The writer: lanes that append to the database. Each lane dequeues all waiting appends and stores them with one
statement.

Its input is appends of sessions that this node holds; each gets its new head, or the error that stopped it. A lane
is one connection. All lanes read from one queue, and an append waits while another one of its session is under way,
which preserves their order. No append waits for others to join: it goes with the next free lane, and a group
consists of the appends that were queued while no lane was free. Lanes commit in parallel, and PostgreSQL syncs them
together.

An append whose statement was not answered may be stored, or may yet be. Its session is unsure from then on: further
appends are rejected until its fence was moved, which waits for a running statement and stops one that has not
begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import anyio

from turnwire.errors import LogError, LogUnavailable, NotOwner, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log.base import SessionHead
from turnwire.log.postgres_connection import (
    BROKEN,
    Connection,
    Database,
    Message,
    hang_up,
    is_refusal,
    log_error,
    may_be_one_events_fault,
    sqlstate,
)
from turnwire.log.postgres_life import OwnLife
from turnwire.log.postgres_schema import APPEND, FIND_MANY

LANES = 2
"""One commits while the other gathers; measurements show no gain from more."""
MOST_EVENTS, MOST_BYTES = 8192, 8 << 20
"""Bounds of a group: large enough to make the commit cheap, small enough not to delay a lone append."""

_log = logging.getLogger(__name__)


class Standing(Enum):
    """The relation of a session to this node."""

    FREE = auto()
    """Not ours, as far as we know."""
    HELD = auto()
    """Ours: no other node appends, so our cached head is correct."""
    UNSURE = auto()
    """Ours, and an append may or may not be stored."""


@dataclass(eq=False, slots=True)
class Held:
    """A session that this node appends to."""

    session_id: SessionId
    standing: Standing = Standing.FREE
    key: int = 0
    fence: int = 0
    head: SessionHead = field(init=False)
    """The last acknowledged head."""
    abandoned: asyncio.Future[int] | None = None
    """The last append whose caller was cancelled."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the standing is changed by a statement."""

    def __post_init__(self) -> None:
        self.head = SessionHead(self.session_id, Epoch(""), 1, 0, False)

    def take(self, row: Sequence[object]) -> None:
        """Record that this node has the session, according to a row of `_HELD`."""
        key, epoch, first, head, unsettled, fence = row
        assert isinstance(key, int)
        assert isinstance(fence, int)
        if self.standing is Standing.HELD and key == self.key and fence < self.fence:
            # A later answer has overtaken this one.
            return
        self.key, self.fence, self.standing = key, fence, Standing.HELD
        self.head = head_of(self.session_id, (epoch, first, head, unsettled))


def head_of(session_id: SessionId, row: Sequence[object]) -> SessionHead:
    """Return the head of a row `epoch, first, head, unsettled`."""
    epoch, first, head, unsettled = row
    assert isinstance(first, int)
    assert isinstance(head, int)
    return SessionHead(session_id, Epoch(str(epoch)), first, head, bool(unsettled))


@dataclass(eq=False, slots=True)
class Append:
    """One append, and the future of its caller."""

    held: Held
    bodies: Sequence[bytes]
    expected: int
    unsettled: bool
    done: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def check(self) -> None:
        """Reject an append that does not follow the head. Raises `AppendConflict`, `LogUnavailable`."""
        if self.held.standing is Standing.UNSURE:
            raise LogUnavailable("an append before this one has an unknown end; read the head first")
        rules.check_append(self.held.head, self.expected)

    def stored(self) -> None:
        held, head = self.held, self.expected + len(self.bodies)
        held.head = held.head._replace(head=head, unsettled=self.unsettled)
        if not self.done.done():
            self.done.set_result(head)

    def refuse(self, error: TurnwireError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # If its caller was cancelled, the error is never retrieved otherwise.
            self.done.exception()


def _nobody(heads: Mapping[SessionId, int]) -> None:
    """Do nothing: no listener is set."""


class Queue:
    """The appends to be stored, for all lanes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Append] = deque()
        self._under_way: set[Held] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self.is_closing = False
        self.grown: Callable[[Mapping[SessionId, int]], None] = _nobody
        """Receives the new heads after a commit. Must not wait and must not raise."""

    def put(self, append: Append) -> None:
        """Enqueue an append. Raises `LogUnavailable`."""
        if self.is_closing:
            raise rules.closed()
        if len(self._waiting) >= self._limit:
            raise LogUnavailable("the database does not keep up; try again", waiting=len(self._waiting))
        self._waiting.append(append)
        if append.held not in self._under_way:
            self._wake()

    async def take(self) -> list[Append]:
        """Dequeue some appends, one of each session; wait for the first. Returns none once it is closed and
        empty.
        """
        while not (group := self._gather()):
            if self.is_closing and not self._waiting:
                self._wake()
                return []
            lane: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(lane)
            await lane
        return group

    def done(self, group: Sequence[Append]) -> None:
        """Mark appends as finished, so that the next ones of their sessions can start."""
        self._under_way.difference_update(each.held for each in group)
        if self._waiting or self.is_closing:
            self._wake()

    def close(self) -> None:
        """Accept no more appends; queued ones are still dequeued."""
        self.is_closing = True
        self._wake()

    def _gather(self) -> list[Append]:
        group: list[Append] = []
        later: deque[Append] = deque()
        events = size = 0
        while self._waiting and events < MOST_EVENTS and size < MOST_BYTES:
            each = self._waiting.popleft()
            if each.held in self._under_way:
                later.append(each)
                continue
            try:
                each.check()
            except TurnwireError as refusal:
                each.refuse(refusal)
                continue
            self._under_way.add(each.held)
            group.append(each)
            events += len(each.bodies)
            size += sum(map(len, each.bodies))
        later.extend(self._waiting)
        self._waiting = later
        return group

    def _wake(self) -> None:
        while self._idle:
            lane = self._idle.popleft()
            if not lane.done():
                lane.set_result(None)
                return


class Lane:
    """One connection that appends. `run` is its only task."""

    def __init__(self, queue: Queue, database: Database, life: OwnLife) -> None:
        self._queue = queue
        self._database = database
        self._life = life
        self._connection: Connection | None = None
        self._was_warned = False

    async def run(self) -> None:
        """Store appends until the queue is closed and empty. Not cancelled: accepted appends are finished."""
        with anyio.CancelScope(shield=True):
            while group := await self._queue.take():
                await self._store(group)
                self._queue.done(group)
            if self._connection is not None:
                await hang_up(self._connection)

    async def _store(self, group: Sequence[Append]) -> None:
        try:
            await self._life.renew()
            connection = await self._connected()
        except (LogError, *BROKEN) as error:
            # Nothing was sent, so nothing is stored.
            self._refuse(group, error)
            return
        try:
            stored = await self._commit(connection, group)
        except Exception as error:  # noqa: BLE001  Whatever it is, callers must hear of it, and the lane goes on.
            await self._fail(connection, group, error)
            return
        for each in group:
            if each.held.key in stored:
                each.stored()
        self._queue.grown({each.held.session_id: each.held.head.head for each in group if each.held.key in stored})
        if len(stored) < len(group):
            await self._explain(connection, [each for each in group if each.held.key not in stored])

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect("append")
            self._connection.add_log_listener(self._hear)
        return self._connection

    def _hear(self, _: Connection, message: Message) -> None:
        # A cancelled wait for the standby ends with a warning, and otherwise looks like a success.
        self._was_warned |= message.severity_en == "WARNING"

    async def _commit(self, connection: Connection, group: Sequence[Append]) -> set[int]:
        sessions: list[int] = []
        offsets: list[int] = []
        bodies: list[bytes] = []
        for each in group:
            sessions += [each.held.key] * len(each.bodies)
            offsets += range(each.expected + 1, each.expected + 1 + len(each.bodies))
            bodies += each.bodies
        self._was_warned = False
        with self._database.bounded(connection):
            found: list[int] = await connection.fetchval(
                APPEND,
                [each.held.key for each in group],
                [each.held.fence for each in group],
                [each.expected for each in group],
                [len(each.bodies) for each in group],
                [each.unsettled for each in group],
                sessions,
                offsets,
                bodies,
            )
        if self._was_warned:
            raise LogUnavailable("the database stopped waiting for its standby; it is tried again")
        return set(found)

    async def _fail(self, connection: Connection, group: Sequence[Append], error: Exception) -> None:
        if may_be_one_events_fault(error) and len(group) > 1:
            # Storing each append alone shows which one was at fault.
            for each in group:
                await self._store([each])
            return
        _log.error(
            "append failed", extra={"event": "append_failed", "sqlstate": sqlstate(error) or type(error).__name__}
        )
        if not is_refusal(error):
            connection.terminate()
            for each in group:
                each.held.standing = Standing.UNSURE
        self._refuse(group, error)

    async def _explain(self, connection: Connection, group: Sequence[Append]) -> None:
        """Reject appends that seemed valid here but that the database rejected, with the reason."""
        try:
            with self._database.bounded(connection):
                rows = await connection.fetch(FIND_MANY, [each.held.key for each in group])
        except BROKEN as error:
            self._refuse(group, error)
            return
        found = {row[0]: row for row in rows}
        for each in group:
            held, row = each.held, found.get(each.held.key)
            held.standing = Standing.FREE
            if row is None:
                each.refuse(rules.not_found(held.session_id))
            elif row[-1] != held.fence:
                each.refuse(NotOwner("another node owns this session now", session=held.session_id))
            else:
                each.refuse(_gone_back(head_of(held.session_id, row[1:5]), each.expected))

    def _refuse(self, group: Sequence[Append], error: BaseException) -> None:
        for each in group:
            each.refuse(log_error(error))


def _gone_back(current: SessionHead, expected: int) -> TurnwireError:
    """Return the error for a held session with another head: the database was restored to an earlier state."""
    try:
        rules.check_append(current, expected)
    except LogError as error:
        return error
    return NotOwner("the session was claimed and given back meanwhile", session=current.session_id)
