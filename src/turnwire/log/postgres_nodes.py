"""The nodes of a shared log in PostgreSQL, for an operator who is none of them. Joins nothing, and owns nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.log import postgres_schema as sql
from turnwire.log.postgres_connection import BROKEN, Connection, Database, hang_up, start_error


class NodeRow(NamedTuple):
    """One life that is not gone."""

    life: int
    name: str
    place: str
    url: str
    version: str
    beat: int
    draining: bool
    alone: bool
    """It has the log for itself, and shows no beat."""
    started_ms: int
    sessions: int
    """Those that it owns."""
    unsettled: int
    """Those of them in which a turn runs or prompts wait."""


class Nodes:
    """What may be asked of and done to nodes. Made by `open_nodes`."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    async def list(self) -> list[NodeRow]:
        """Those that are not gone, oldest first."""
        with self._database.bounded(self._connection):
            return [NodeRow(*row) for row in await self._connection.fetch(sql.NODES)]

    async def drain(self, node: NodeRow) -> None:
        """Ask it to end in good order."""
        with self._database.bounded(self._connection):
            await self._connection.execute(sql.SET_DRAINING, node.life)

    async def bury(self, node: NodeRow) -> bool:
        """Declare it gone unless it has beaten since it was listed; whether it is gone now.

        For one whose machine is off: what it still does, nothing here can stop.
        """
        with self._database.bounded(self._connection):
            return await self._connection.fetchval(sql.BURY_BY_HAND, node.life, node.beat) is not None

    async def move(self, old: str, new: str) -> int:
        """Let the sessions of a place be of another one; how many they are. None while a node has the old place."""
        with self._database.bounded(self._connection):
            return await self._connection.fetchval(sql.MOVE_PLACE, old, new)


@asynccontextmanager
async def open_nodes(dsn: str, limits: Limits) -> AsyncGenerator[Nodes]:
    """The nodes of the log at an address. Raises `ConfigError`, `LogError`."""
    database = Database(dsn, limits)
    try:
        connection = await database.connect("operator")
        try:
            with database.bounded(connection):
                made = await sql.read_format(connection)
            made.check()
            if made.version < sql.VERSION:
                raise ConfigError("no node of this release has used this database yet; start one, and ask again")
            yield Nodes(database, connection)
        finally:
            await hang_up(connection)
    except BROKEN as error:
        raise start_error(error, database) from None
