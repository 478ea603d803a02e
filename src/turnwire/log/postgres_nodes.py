"""The nodes of a shared log in PostgreSQL, for an operator who runs none of them. Joins nothing, and owns
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.log import postgres_schema as sql
from turnwire.log.postgres_connection import BROKEN, Connection, Database, hang_up, start_error


class NodeRow(NamedTuple):
    """One live incarnation."""

    life: int
    name: str
    place: str
    url: str
    version: str
    beat: int
    draining: bool
    alone: bool
    """True if it has the log for itself, and records no beat."""
    started_ms: int
    sessions: int
    """Number of sessions it owns."""
    unsettled: int
    """Number of those with a running turn or queued prompts."""


class Nodes:
    """Queries and operations on nodes. Made by `open_nodes`."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    async def list(self) -> list[NodeRow]:
        """Return the live incarnations, oldest first."""
        with self._database.bounded(self._connection):
            return [NodeRow(*row) for row in await self._connection.fetch(sql.NODES)]

    async def drain(self, node: NodeRow) -> None:
        """Request a graceful shutdown of a node."""
        with self._database.bounded(self._connection):
            await self._connection.execute(sql.SET_DRAINING, node.life)

    async def bury(self, node: NodeRow) -> bool:
        """Declare a node dead unless it has beaten since it was listed. Return true if it is dead now.

        For a node whose machine is off: this cannot stop a node that still runs.
        """
        with self._database.bounded(self._connection):
            return await self._connection.fetchval(sql.BURY_BY_HAND, node.life, node.beat) is not None

    async def move(self, old: str, new: str) -> int:
        """Assign the sessions of a place to another one and return their number; `None` while a node has the old
        place.
        """
        with self._database.bounded(self._connection):
            return await self._connection.fetchval(sql.MOVE_PLACE, old, new)


@asynccontextmanager
async def open_nodes(dsn: str, limits: Limits) -> AsyncGenerator[Nodes]:
    """Open the nodes of the log at an address. Raises `ConfigError`, `LogError`."""
    database = Database(dsn, limits)
    try:
        connection = await database.connect("operator")
        try:
            with database.bounded(connection):
                made = await sql.read_format(connection)
            if not made:
                raise ConfigError("no node has used this database yet; start one, then try again")
            yield Nodes(database, connection)
        finally:
            await hang_up(connection)
    except BROKEN as error:
        raise start_error(error, database) from None
