"""This incarnation of the node in the database, and the exclusion of conflicting nodes.

A node that runs alone has the lock of nodes exclusively, nodes that share the log have it together; so the two
kinds exclude each other. The lock only decides at the start. The fences protect the log, even if the lock is lost
with its connection: an incarnation with the exclusive lock knows that no other one has it, so it declares all
others dead and moves the fences of their sessions; their earlier appends are then either stored or rejected. An
incarnation that finds itself declared dead appends no more.

The connection that holds the lock is also the one over which a node watches the others (N1 of
`turnwire.runtime.members`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio

from turnwire.clock import Clock
from turnwire.errors import LifeOver, LogError, LogLocked, LogUnavailable
from turnwire.limits import Limits
from turnwire.log import postgres_schema as sql
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres_connection import BROKEN, Connection, Database, hang_up, log_error, sqlstate

_NOT_IN_TIME = "55P03"
_WATCHING_BEATS = 1.5
"""Maximum duration, in beats, of a statement for watching: two must fail before a node stops acting."""

_NAMESAKE_BEATS = 2.5
"""Beats after which a node of the same name has beaten, if it is alive."""


class OwnLife:
    """This node's incarnation, made by `begin_life`."""

    def __init__(
        self,
        database: Database,
        number: int,
        connection: Connection,
        identity: NodeIdentity,
        limits: Limits,
        alone: bool,
    ) -> None:
        self.number = number
        self.identity = identity
        self.alone = alone
        self._database = database
        self._connection = connection
        self._watched_over: Connection | None = connection
        """The connection of the last statement, unless that failed."""
        self._watching_s = min(limits.database_s, _WATCHING_BEATS * limits.beat_s)
        self._has_lock = True
        self._asking = anyio.Lock()

    async def renew(self) -> None:
        """Acquire the lock again if it was lost. Raises `LogError`: the database is away, or this incarnation is
        over.
        """
        if self._has_lock and not self._connection.is_closed():
            return
        async with self._asking:
            await self._renew()

    async def _renew(self) -> None:
        if self._has_lock and not self._connection.is_closed():
            return
        self._has_lock = False
        try:
            if self._connection.is_closed():
                self._connection = await self._database.connect("node", self._watching_s)
            with self._database.bounded(self._connection):
                # The lock may still be held by our own old connection, whose loss the server has not noticed yet.
                self._has_lock = await self._connection.fetchval(sql.TRY_LOCK if self.alone else sql.TRY_SHARE_LOCK)
                is_gone = await self._connection.fetchval(sql.IS_GONE, self.number)
        except Exception as error:
            if not isinstance(error, BROKEN) and not self._connection.is_closed():
                raise
            raise log_error(error) from error
        if is_gone is not False:
            raise self.is_over()

    def is_over(self) -> LogError:
        """Return the error of an incarnation that was declared dead."""
        if self.alone:
            return LogLocked("another daemon has taken the database over; stop one of them, and restart this one")
        return LifeOver("this node was declared gone; it comes back as another life", life=self.number)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[Connection]:
        """Lend the connection for watching, for one short statement. A cancelled caller ends after it.

        Raises `LogError`; `LogUnavailable` once if the connection is a new one.
        """
        with anyio.CancelScope(shield=True):
            async with self._asking:
                before, self._watched_over = self._watched_over, None
                await self._renew()
                connection = self._connection
                if before not in (None, connection):
                    raise LogUnavailable("the connection to the database broke and was made again")
                try:
                    with self._database.bounded(connection, self._watching_s):
                        yield connection
                except Exception as error:
                    if not isinstance(error, BROKEN) and not connection.is_closed():
                        raise
                    # This includes the driver's errors if a connection breaks between two of its own steps.
                    raise log_error(error) from error
                self._watched_over = connection

    async def aclose(self) -> None:
        """Admit the next node at once. If the database is away, that node detects the end anyway."""
        try:
            if not self._connection.is_closed():
                with self._database.bounded(self._connection):
                    if self.alone:
                        await self._connection.execute(sql.RELEASE_ALL, self.number)
                    await self._connection.execute(sql.LEAVE, self.number)
        except BROKEN:
            pass
        await hang_up(self._connection)


async def begin_life(
    database: Database, limits: Limits, identity: NodeIdentity, clock: Clock, *, alone: bool
) -> OwnLife:
    """Register an incarnation in this database, as the only one if `alone`. Creates the tables if needed.

    Raises `LogLocked`, `LogVersionMismatch`, one of `BROKEN`.
    """
    connection = await database.connect("node")
    try:
        # The server may need a moment to notice that the previous process has ended.
        patience_s = database.patience_s + limits.busy_timeout_s + _NAMESAKE_BEATS * limits.beat_s
        with database.bounded(connection, patience_s):
            await sql.create_tables(connection)
            await _take_lock(connection, limits.busy_timeout_s, alone=alone)
            if alone:
                await _check_nobody_shares(connection, identity)
            number: int = await connection.fetchval(
                sql.JOIN, identity.name, version("turnwire"), *identity[1:], alone
            )
            await connection.execute(sql.BURY_OTHERS if alone else sql.BURY_ALONE, number)
            if alone:
                await connection.execute(sql.FREE_OF_OTHERS, number)
            else:
                await _check_name(connection, identity, number, limits.beat_s, clock)
    except BaseException:
        connection.terminate()
        raise
    return OwnLife(database, number, connection, identity, limits, alone)


async def _take_lock(connection: Connection, patience_s: float, *, alone: bool) -> None:
    await connection.execute(f"set lock_timeout = {max(1, round(patience_s * 1000))}")
    try:
        await connection.execute(sql.TAKE_LOCK if alone else sql.SHARE_LOCK)
    except BROKEN as error:
        if sqlstate(error) != _NOT_IN_TIME:
            raise
        where = await connection.fetchval(sql.WHO_ELSE) or "another machine"
        raise LogLocked(
            f"another daemon uses this database, on {where}; stop it, give another database, or start both"
            " with --cluster-listen"
            if alone
            else f"a daemon has this database for itself, on {where}; start that one with --cluster-listen too"
        ) from None
    await connection.execute("set lock_timeout = 0")


async def _check_nobody_shares(connection: Connection, identity: NodeIdentity) -> None:
    """Raise `LogLocked` if nodes share the log: those cut off from the database may act until their lease ends."""
    names = [row[0] for row in await connection.fetch(sql.SHARING, identity.name, identity.folder)]
    if names:
        raise LogLocked(
            f"nodes share this database and have not left it: {', '.join(names)}; start this one with"
            " --cluster-listen, or run `turnwire nodes bury` for those that have ended"
        )


async def _check_name(
    connection: Connection, identity: NodeIdentity, number: int, beat_s: float, clock: Clock
) -> None:
    """Raise `LogLocked` if a live node with another data folder has this name.

    A namesake without a heartbeat during the wait is dead. Of two that start at once, the later one is rejected.
    """
    asked = sql.NAMESAKES, identity.name, identity.folder, number
    before = dict(await connection.fetch(*asked))
    if not before:
        return
    await clock.sleep(_NAMESAKE_BEATS * beat_s)
    after = dict(await connection.fetch(*asked))
    if any(beat != before.get(life, beat) for life, beat in after.items()):
        await connection.execute(sql.LEAVE, number)
        raise LogLocked(
            f"another node is called {identity.name!r}, and has another data folder; give each its own name with"
            " --node, or end that one first"
        )
