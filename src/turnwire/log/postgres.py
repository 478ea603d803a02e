"""The event log in PostgreSQL: for a daemon that may be restarted on any machine.

It follows `turnwire.log.base`. Appends go through the lanes of `postgres_writer`, all other statements through a
few shared connections. The heads of sessions held by this node are cached, and answered from memory even while the
database is away. Nothing here blocks the event loop.

L12 Owned. Only the last claimant of a session appends to it: an append under an older fence is rejected with
`NotOwner`
    and writes nothing, even if its `expected` is right. `head` of a session with an append of unknown outcome moves
    the fence first, so that no earlier append can still be stored after it.

A node that has the log alone owns a session as soon as it appends to it. If nodes share the log, a node has claimed
(`owners`) or created a session before it appends to it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from turnwire.clock import Clock, SystemClock
from turnwire.errors import LogCorrupt, LogError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import postgres_schema as sql
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead, Snapshot, Stored
from turnwire.log.bell import DELETED, Bell, NoBell
from turnwire.log.owners import NodeIdentity, Owners, SoleOwner
from turnwire.log.postgres_bell import PostgresBell
from turnwire.log.postgres_connection import (
    BROKEN,
    NO_PARENT,
    Connection,
    Database,
    hang_up,
    log_error,
    sqlstate,
    start_error,
)
from turnwire.log.postgres_credentials import PostgresCredentials
from turnwire.log.postgres_life import OwnLife, begin_life
from turnwire.log.postgres_owners import PostgresOwners
from turnwire.log.postgres_writer import LANES, Append, Held, Lane, Queue, Standing, head_of

_END = (1 << 63) - 1
_LOCK_PAUSE_S = 0.1
"""Pause between two tries to get a lock that another node has."""


class PostgresEventLog:
    """An `EventLog` in PostgreSQL. Made by `open_postgres_log`."""

    def __init__(
        self, database: Database, life: OwnLife, limits: Limits, epochs: Callable[[], Epoch], bell: Bell
    ) -> None:
        self._database = database
        self._life = life
        self._epochs = epochs
        self.bell = bell
        """Notifications of stored events to and from the other nodes that share the log."""
        self._held: dict[SessionId, Held] = {}
        self._claims = PostgresOwners(database, life, self._held)
        self.owners: Owners = SoleOwner(self) if life.alone else self._claims
        self._queue = Queue(limits.append_queue)
        self._queue.grown = bell.tell
        self._lanes_ended = anyio.Event()
        self._closing = anyio.Lock()
        self._is_closed = self._is_released = False
        self.credentials = PostgresCredentials(database, bell)
        """Credentials of all nodes of this database."""

    async def run(self) -> None:
        """Process appends until the log is closed."""
        async with anyio.create_task_group() as lanes:
            for _ in range(LANES):
                lanes.start_soon(Lane(self._queue, self._database, self._life).run)
        self._lanes_ended.set()

    async def create(self, session_id: SessionId) -> SessionHead:
        """Create an empty log. Raises `SessionExists`. If the database does not answer, it may still be created."""
        return await self.restore(session_id, self._epochs(), 1)

    async def restore(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        """Create a log that continues another one: see `turnwire.log.copying`. Raises `SessionExists`."""
        self._check_open()
        rules.check_session_id(session_id)
        row = await self._row(sql.CREATE, session_id, epoch, first, self._life.number, self._life.identity.place)
        if row is None:
            raise rules.exists(session_id)
        held = self._held[session_id] = Held(session_id)
        held.take(row)
        return held.head

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Return the head of the session's log, after every append of ours that may still be stored (L6, L12)."""
        self._check_known(session_id)
        held = self._held.get(session_id)
        if held is not None:
            while (abandoned := held.abandoned) is not None:
                await asyncio.wait([abandoned])
                if held.abandoned is abandoned:
                    held.abandoned = None
            if held.standing is Standing.UNSURE:
                await self._claims.move_fence(held)
                if held.head.head != DELETED:
                    # Events that were stored without an answer have not been announced yet.
                    self.bell.tell({session_id: held.head.head})
            if held.standing is Standing.HELD and not anew:
                return held.head
        return head_of(session_id, (await self._found(session_id))[1:5])

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        """Store `bodies` after `expected`, in the order of the calls; each is durable. When cancelled, see L6.

        Also raises `NotOwner`.
        """
        self._check_known(session_id)
        held = self._held.get(session_id)
        if held is None or held.standing is Standing.FREE:
            held = await self._claims.hold(session_id)
        # A copy: the caller may change its list before a lane processes it.
        append = Append(held, tuple(bodies), expected, unsettled)
        self._queue.put(append)
        try:
            return await asyncio.shield(append.done)
        except asyncio.CancelledError:
            held.abandoned = append.done
            raise

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        """Return events after a position, up to the head as of this call."""
        self._check_known(session_id)
        upto = _END
        known = self._known(session_id)
        if known is not None:
            rules.check_position(known, after)
            if after.offset == known.head:
                return []
            # The database may hold an append whose caller has no answer yet. Showing that would make a reader hold
            # a position that `head` does not know yet.
            upto = known.head
        row = await self._row(sql.READ, session_id, after.offset, max(max_events, 1), max_bytes, upto)
        if row is None:
            raise rules.not_found(session_id)
        *found, bodies, last = row
        current = head_of(session_id, found)
        current = current._replace(head=min(current.head, upto))
        rules.check_position(current, after)
        if bodies is None and after.offset == current.head:
            return []
        if bodies is None or last != after.offset + len(bodies):
            raise LogCorrupt(
                f"events of session {session_id!r} are missing after offset {after.offset};"
                " stop and restore the database from a backup",
                session=session_id,
            )
        return [Stored(offset, body) for offset, body in enumerate(bodies, after.offset + 1)]

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        """Return sessions in order of their id, a page at a time."""
        self._check_open()
        statement = sql.LIST_UNSETTLED if unsettled_only else sql.LIST
        async with self._database.lend() as connection:
            rows = await connection.fetch(statement, None if after is None else _text(after), limit)
        return [self._known(SessionId(row[0])) or head_of(SessionId(row[0]), row[1:]) for row in rows]

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Save a fold unless a newer one is stored. Losing it loses only time, so it does not wait for the disk."""
        self._check_known(session_id)
        held = self._held.get(session_id)
        key = None if held is None or held.standing is Standing.FREE else held.key
        try:
            row = await self._row(sql.SAVE_SNAPSHOT, session_id, *snapshot, key)
        except LogError as error:
            # It was deleted at this very moment.
            if error.__cause__ is not None and sqlstate(error.__cause__) == NO_PARENT:
                raise rules.not_found(session_id) from None
            raise
        if row is None:
            raise rules.not_found(session_id)
        rules.check_snapshot(head_of(session_id, row[1:]), snapshot)

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        """Return the newest stored snapshot of that name, if any."""
        self._check_known(session_id)
        row = await self._row(sql.FIND_SNAPSHOT, session_id, name)
        if row is None:
            raise rules.not_found(session_id)
        return None if row[0] is None else Snapshot(*row)

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        """Remove a prefix. When cancelled, the next sweep removes the rest."""
        self._check_known(session_id)
        known = self._known(session_id)
        row = await self._row(sql.TRIM, session_id, upto if known is None else min(upto, known.head))
        if row is None:
            raise rules.not_found(session_id)
        key, first = row
        held = self._held.get(session_id)
        if held is not None and held.key == key:
            held.head = held.head._replace(first=first)
        await self._sweep(key, first - 1)
        return first

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session with everything in it. When cancelled, see `trim`."""
        self._check_known(session_id)
        row = await self._row(sql.DELETE, session_id)
        self._held.pop(session_id, None)
        if row is None:
            raise rules.not_found(session_id)
        self.bell.tell({session_id: DELETED})
        await self._sweep(*row)

    async def aclose(self) -> None:
        """Finish all accepted appends, release ownership and admit another node. Idempotent."""
        self._is_closed = True
        self._queue.close()
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._is_released:
                    return
                await self._lanes_ended.wait()
                await self._database.aclose()
                await self._life.aclose()
                self._is_released = True

    async def sweep(self) -> None:
        """Remove events that an earlier run had marked but not removed. If the database is away, the next run does
        it.
        """
        try:
            async with self._database.lend() as connection:
                rows = await connection.fetch(sql.LIST_FORGOTTEN)
            for key, upto in rows:
                await self._sweep(key, upto)
        except LogError:
            return

    # -- locks across nodes --------------------------------------------------------------------------------

    @asynccontextmanager
    async def exclusively(self, name: str) -> AsyncGenerator[None]:
        """Hold a lock on this name across all nodes while the context is open. Raises `LogError`.

        The lock has a separate connection and is lost if that breaks: then another node may get it.
        """
        self._check_open()
        try:
            connection = await self._database.connect("lock")
        except BROKEN as error:
            raise log_error(error) from error
        try:
            while not await self._try_lock(connection, name):
                with anyio.move_on_after(_LOCK_PAUSE_S):
                    await anyio.sleep_forever()
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await hang_up(connection)

    async def _try_lock(self, connection: Connection, name: str) -> bool:
        try:
            with self._database.bounded(connection):
                return bool(await connection.fetchval(sql.LOCK, name))
        except BROKEN as error:
            raise log_error(error) from error

    @asynccontextmanager
    async def once(self, name: str) -> AsyncGenerator[bool]:
        """Yield true if the action of this name was never done on any node. It counts as done if the context exits
        normally.

        Raises `LogError`.
        """
        async with self.exclusively(name):
            row = await self._row(sql.IS_DONE, name)
            yield row is None or not row[0]
            await self._row(sql.DONE, name)

    # -- queries -------------------------------------------------------------------------------------------

    async def _row(self, statement: str, *given: object) -> Sequence[Any] | None:
        async with self._database.lend() as connection:
            return await connection.fetchrow(statement, *given)

    async def _found(self, session_id: SessionId) -> Sequence[Any]:
        row = await self._row(sql.FIND, session_id)
        if row is None:
            self._held.pop(session_id, None)
            raise rules.not_found(session_id)
        return row

    def _known(self, session_id: SessionId) -> SessionHead | None:
        held = self._held.get(session_id)
        return None if held is None or held.standing is Standing.FREE else held.head

    async def _sweep(self, key: int, upto: int) -> None:
        while (row := await self._row(sql.SWEEP, key, upto)) is not None and row[-1]:
            pass
        await self._row(sql.SWEPT, key, upto)

    def _check_known(self, session_id: SessionId) -> None:
        """Raise `SessionNotFound` for an invalid id: no log has it, and the database could not compare it."""
        self._check_open()
        if not rules.is_session_id(session_id):
            raise rules.not_found(session_id)

    def _check_open(self) -> None:
        if self._is_closed:
            raise rules.closed()


def _text(after: SessionId) -> str:
    """Return the equivalent bound for comparing ids: the database's text contains no NUL, and neither does
    an id.
    """
    return after.partition("\0")[0].encode(errors="ignore").decode()


async def inspect_database(dsn: str, limits: Limits) -> tuple[sql.Facts, int]:
    """Return the facts and the format that `open_postgres_log` would find. Changes nothing. Raises the same
    errors.
    """
    database = Database(dsn, limits)
    try:
        connection = await database.connect("doctor")
        try:
            with database.bounded(connection):
                facts, made = await sql.read_facts(connection), await sql.read_format(connection)
        finally:
            await hang_up(connection)
    except BROKEN as error:
        raise start_error(error, database) from None
    facts.check()
    return facts, made


@asynccontextmanager
async def open_postgres_log(
    dsn: str,
    *,
    limits: Limits,
    node: NodeIdentity | None = None,
    alone: bool = True,
    epochs: Callable[[], Epoch] = rules.random_epoch,
    clock: Clock | None = None,
) -> AsyncGenerator[PostgresEventLog]:
    """Open the log in the database at an address such as `postgresql://user@host/name`; create its tables if
    needed.

    `node`: this node's description for the others; by default its name and its place are the machine's name.
    `alone`: no other node may have it open, and sessions of earlier nodes are free. Otherwise nodes share it, and
    each session is appended to by the node that claimed it (`owners` of the log).

    Raises:
        ConfigError: the address, the user or the database is wrong.
        LogUnavailable: the server is away, starting or read-only.
        LogLocked: another node uses it.
        LogVersionMismatch: its tables have another format. They were not touched.
    """
    if not alone:
        limits.check_leases()
    database = Database(dsn, limits)
    try:
        host = socket.gethostname()
        identity = node or NodeIdentity(host, host)
        life = await begin_life(database, limits, identity, clock or SystemClock(), alone=alone)
    except BROKEN as error:
        raise start_error(error, database) from None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        bell = PostgresBell(database) if not alone else NoBell()
        log = PostgresEventLog(database, life, limits, epochs, bell)
        tasks.start_soon(bell.run)
        tasks.start_soon(log.run)
        tasks.start_soon(log.sweep)
        try:
            yield log
        except Exception as error:  # noqa: BLE001  Raised again below, as it is: the group would wrap it.
            failure = error
        finally:
            await log.aclose()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
