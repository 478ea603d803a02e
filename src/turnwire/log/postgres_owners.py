"""The owners of sessions in PostgreSQL, as this incarnation sees and changes them, and the other incarnations.

Implements `Owners` of `turnwire.log.owners`. `PostgresEventLog` appends to the sessions claimed here: both share
the table of held sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwire.errors import LogError, NotOwner
from turnwire.ids import SessionId
from turnwire.log import postgres_schema as sql
from turnwire.log import rules
from turnwire.log.owners import Claim, Life
from turnwire.log.postgres_connection import Database
from turnwire.log.postgres_life import OwnLife
from turnwire.log.postgres_writer import Held, Standing


class PostgresOwners:
    """`Owners` of a log in PostgreSQL that several nodes share."""

    is_sole = False

    def __init__(self, database: Database, life: OwnLife, held: dict[SessionId, Held]) -> None:
        self.life = life.number
        self.place = life.identity.place
        self._life = life
        self._database = database
        self._held = held
        self._beat = 0

    # -- sessions ------------------------------------------------------------------------------------------

    async def claim(self, session_id: SessionId) -> Claim:
        """Claim a session that is free, ours, or owned by a dead incarnation."""
        if not rules.is_session_id(session_id):
            raise rules.not_found(session_id)
        held = self._held.setdefault(session_id, Held(session_id))
        async with held.lock:
            await self._claim(held)
        return Claim(held.head, self.place)

    async def hold(self, session_id: SessionId) -> Held:
        """Return the session for an append; claim it now if this node is alone. Raises `NotOwner` if nodes share
        the log.
        """
        if not self._life.alone:
            owner = await self.owner(session_id)
            raise NotOwner("this node has not claimed the session", session=session_id, owner=owner)
        held = self._held.setdefault(session_id, Held(session_id))
        async with held.lock:
            if held.standing is Standing.FREE:
                await self._claim(held)
        return held

    async def move_fence(self, held: Held) -> None:
        """Settle an append of unknown outcome: after this it is stored, or never will be."""
        async with held.lock:
            if held.standing is not Standing.UNSURE:
                return
            row = await self._row(sql.MOVE_FENCE, held.key, self.life)
            if row is None:
                held.standing = Standing.FREE
            else:
                held.take(row)

    async def release(self, session_id: SessionId) -> None:
        """Release a session. Does nothing if it is not ours. An append that is under way is rejected."""
        held = self._held.get(session_id)
        if held is None:
            return
        async with held.lock:
            # Without an answer another node may own it: `head` then asks the database.
            held.standing = Standing.UNSURE
            await self._row(sql.RELEASE, session_id, self.life)
            held.standing = Standing.FREE
            if not held.lock.statistics().tasks_waiting and self._held.get(session_id) is held:
                del self._held[session_id]

    async def steal(self, life: int, limit: int) -> list[Claim]:
        """Claim some of the unsettled sessions of a dead incarnation."""
        return self._taken(await self._rows(sql.STEAL, *self._own, life, limit))

    async def adopt(self, limit: int) -> list[Claim]:
        """Claim some of the unsettled sessions of our place without an owner."""
        return self._taken(await self._rows(sql.ADOPT, *self._own, limit))

    async def owner(self, session_id: SessionId) -> int | None:
        """Return the live owner of the session, if it has one."""
        owner, _ = await self._standing_of(session_id)
        return owner

    async def is_of_place(self, session_id: SessionId) -> bool:
        """Return true if the session is of our place, or has no place yet."""
        _, place = await self._standing_of(session_id)
        return place in ("", self.place)

    async def gone_with_sessions(self) -> list[int]:
        """Return dead incarnations with sessions that this node may claim."""
        return [row[0] for row in await self._rows(sql.ORPHANED, *self._own)]

    # -- lives ---------------------------------------------------------------------------------------------

    async def living(self, life: int) -> Life | None:
        """Return that incarnation, unless it is dead. Not on the watcher's connection: the watcher must notice its
        loss.
        """
        row = await self._row(sql.FIND_LIFE, life)
        return None if row is None else Life(*row)

    async def lives(self) -> list[Life]:
        """Return every live incarnation, oldest first."""
        async with self._life.watching() as connection:
            return [Life(*row) for row in await connection.fetch(sql.LIVES)]

    async def beat(self) -> int:
        """Record a heartbeat of this incarnation."""
        async with self._life.watching() as connection:
            beat: int | None = await connection.fetchval(sql.BEAT, self.life)
        if beat is None:
            raise self._life.is_over()
        self._beat = beat
        return beat

    async def bury(self, life: int, beat: int) -> bool:
        """Declare an incarnation dead that has not beaten since `beat`."""
        async with self._life.watching() as connection:
            return await connection.fetchval(sql.BURY, life, beat, self.life, self._beat) is not None

    async def succeed(self) -> list[int]:
        """Declare earlier incarnations of this node's name and data folder dead."""
        identity = self._life.identity
        return [row[0] for row in await self._rows(sql.SUCCEED, identity.name, identity.folder, self.life)]

    async def set_draining(self) -> None:
        """Notify the others that this incarnation is about to end."""
        await self._row(sql.SET_DRAINING, self.life)

    # -- queries -------------------------------------------------------------------------------------------

    @property
    def _own(self) -> tuple[int, str]:
        return self.life, self.place

    async def _claim(self, held: Held) -> None:
        await self._life.renew()
        row = await self._row(sql.CLAIM, *self._own, held.session_id, self._life.alone)
        if row is None:
            raise await self._refusal(held.session_id)
        held.take(row)

    async def _refusal(self, session_id: SessionId) -> LogError:
        """Return the reason why a claim was rejected. Raises `SessionNotFound`."""
        owner, place = await self._standing_of(session_id)
        if owner is not None and owner != self.life:
            return NotOwner("another node owns this session", session=session_id, owner=owner)
        if not self._life.alone and place not in ("", self.place):
            return NotOwner("this session is of another place", session=session_id, owner=None, place=place)
        if await self._value(sql.IS_GONE, self.life) is not False:
            return self._life.is_over()
        # The reason for the rejection has disappeared meanwhile.
        return NotOwner("another node owned this session a moment ago", session=session_id, owner=None)

    async def _standing_of(self, session_id: SessionId) -> Sequence[Any]:
        row = await self._row(sql.OWNER, session_id) if rules.is_session_id(session_id) else None
        if row is None:
            self._held.pop(session_id, None)
            raise rules.not_found(session_id)
        return row

    def _taken(self, rows: Sequence[Sequence[Any]]) -> list[Claim]:
        claims: list[Claim] = []
        for name, place, *row in rows:
            held = self._held.setdefault(SessionId(name), Held(SessionId(name)))
            held.take(row)
            claims.append(Claim(held.head, place))
        return claims

    async def _row(self, statement: str, *given: object) -> Sequence[Any] | None:
        async with self._database.lend() as connection:
            return await connection.fetchrow(statement, *given)

    async def _rows(self, statement: str, *given: object) -> list[Any]:
        async with self._database.lend() as connection:
            return await connection.fetch(statement, *given)

    async def _value(self, statement: str, *given: object) -> Any:
        row = await self._row(statement, *given)
        return None if row is None else row[0]
