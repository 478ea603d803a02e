"""One life of this node in the database: which run of the process it is, and that no other node runs beside it.

The lock is what keeps a second daemon out; the fences are what keeps the log whole, also if the lock is lost with
its connection. A life that takes the lock knows that no other one has it, so it declares all others gone and moves
the fences of what they own: what they sent is then either stored or refused. A life that finds itself declared gone
appends no more.
"""

from __future__ import annotations

import socket
from importlib.metadata import version

import anyio

from turnwire.errors import LogLocked
from turnwire.limits import Limits
from turnwire.log import postgres_schema as sql
from turnwire.log.postgres_connection import BROKEN, Connection, Database, hang_up, log_error, sqlstate

_NOT_IN_TIME = "55P03"


class Life:
    """Made by `begin_life`."""

    def __init__(self, database: Database, number: int, connection: Connection, *, alone: bool) -> None:
        self.number = number
        self._database = database
        self._connection = connection
        self._alone = alone
        self._has_lock = True
        self._renewing = anyio.Lock()

    async def renew(self) -> None:
        """Take the lock again if it was lost. Raises `LogError`: the database is away, or another life is there."""
        if self._has_lock and not self._connection.is_closed():
            return
        async with self._renewing:
            self._has_lock = False
            try:
                if self._connection.is_closed():
                    self._connection = await self._database.connect("node")
                with self._database.bounded(self._connection):
                    # Not having it may be our own doing: the server may not know yet that our connection is gone.
                    self._has_lock = not self._alone or await self._connection.fetchval(sql.TRY_LOCK)
                    is_gone = await self._connection.fetchval(sql.IS_GONE, self.number)
            except BROKEN as error:
                raise log_error(error) from error
            if is_gone is not False:
                raise LogLocked(
                    "another daemon has taken the database over; stop one of them, and restart this one"
                )

    async def aclose(self) -> None:
        """Let the next one in at once. If the database is away, that one finds the lock free all the same."""
        try:
            if not self._connection.is_closed():
                with self._database.bounded(self._connection):
                    await self._connection.execute(sql.RELEASE_ALL, self.number)
                    await self._connection.execute(sql.LEAVE, self.number)
        except BROKEN:
            pass
        await hang_up(self._connection)


async def begin_life(database: Database, limits: Limits, *, alone: bool) -> Life:
    """A life in this database, the only one if it is to be alone. Makes the tables if need be.

    Raises `LogLocked`, `LogTooNew`, one of `BROKEN`.
    """
    connection = await database.connect("node")
    try:
        # The server may need a moment to see that the last one's process has ended.
        with database.bounded(connection, limits.busy_timeout_s):
            await sql.migrate(connection)
            if alone:
                await _take_lock(connection, limits.busy_timeout_s)
            number = await connection.fetchval(sql.JOIN, socket.gethostname(), version("turnwire"))
            if alone:
                await connection.execute(sql.BURY_OTHERS, number)
                await connection.execute(sql.FREE_OF_OTHERS, number)
    except BaseException:
        connection.terminate()
        raise
    return Life(database, number, connection, alone=alone)


async def _take_lock(connection: Connection, patience_s: float) -> None:
    await connection.execute(f"set lock_timeout = {max(1, round(patience_s * 1000))}")
    try:
        await connection.execute(sql.TAKE_LOCK)
    except BROKEN as error:
        if sqlstate(error) != _NOT_IN_TIME:
            raise
        name = await connection.fetchval(sql.WHO_ELSE)
        raise LogLocked(
            f"another daemon uses this database, on {name or 'another machine'}; stop it, or give another database"
        ) from None
    await connection.execute("set lock_timeout = 0")
