"""Nodes that share a log, in memory: owners, fences and lives as the engine in PostgreSQL has them.

`Cluster` is the database. Each node gets a life of it, which is an `Owners`, and a log, which is an `EventLog` that
refuses to append under any fence but the newest that this life was promised (L12). No method waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnwire.errors import LifeOver, NotOwner
from turnwire.ids import SessionId
from turnwire.log import MemoryEventLog
from turnwire.log.base import SessionHead
from turnwire.log.owners import Claim, Life


@dataclass
class _Life:
    name: str
    place: str
    beat: int = 0
    draining: bool = False
    gone: bool = False


@dataclass
class _Row:
    place: str
    owner: int | None
    fence: int = 1


class Cluster:
    """State that all nodes share."""

    def __init__(self) -> None:
        self.log = MemoryEventLog()
        self.lives: dict[int, _Life] = {}
        self.rows: dict[SessionId, _Row] = {}

    def join(self, name: str, place: str | None = None) -> MemoryOwners:
        """Start a new incarnation of the named node; its zone is its name, unless another is given."""
        number = len(self.lives) + 1
        self.lives[number] = _Life(name, name if place is None else place)
        return MemoryOwners(self, number)

    def lose(self, owners: MemoryOwners) -> None:
        """The others have declared it gone."""
        self.lives[owners.life].gone = True

    def owner_of(self, session_id: str) -> int | None:
        return self.rows[SessionId(session_id)].owner


class MemoryOwners:
    """One incarnation's view of a cluster."""

    is_sole = False

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.life = number
        self.place = cluster.lives[number].place
        self.fences: dict[SessionId, int] = {}
        """The fencing tokens of this incarnation."""
        self.log = FencedLog(self)

    def _check(self) -> _Life:
        life = self.cluster.lives[self.life]
        if life.gone:
            raise LifeOver("this life was declared gone")
        return life

    def _take(self, session_id: SessionId, row: _Row, head: SessionHead) -> Claim:
        row.owner = self.life
        row.fence += 1
        self.fences[session_id] = row.fence
        return Claim(head, row.place)

    async def claim(self, session_id: SessionId) -> Claim:
        self._check()
        head = await self.cluster.log.head(session_id)
        row = self.cluster.rows[session_id]
        if row.owner not in (None, self.life) and not self.cluster.lives[row.owner].gone:
            raise NotOwner("another node owns this session", session=session_id, owner=row.owner)
        if row.place != self.place:
            raise NotOwner("no node of its place is there", session=session_id)
        return self._take(session_id, row, head)

    async def release(self, session_id: SessionId) -> None:
        row = self.cluster.rows.get(session_id)
        if row is not None and row.owner == self.life:
            row.owner = None
            row.fence += 1
        self.fences.pop(session_id, None)

    async def _take_all(self, rows: Iterator[SessionId], limit: int) -> list[Claim]:
        taken: list[Claim] = []
        for session_id in rows:
            head = await self.cluster.log.head(session_id)
            if head.unsettled and len(taken) < limit:
                taken.append(self._take(session_id, self.cluster.rows[session_id], head))
        return taken

    async def steal(self, life: int, limit: int) -> list[Claim]:
        self._check()
        assert self.cluster.lives[life].gone, "nobody steals from who lives"
        return await self._take_all((name for name, row in self.cluster.rows.items() if row.owner == life), limit)

    async def adopt(self, limit: int) -> list[Claim]:
        self._check()
        free = (n for n, row in self.cluster.rows.items() if row.owner is None and row.place == self.place)
        return await self._take_all(free, limit)

    async def owner(self, session_id: SessionId) -> int | None:
        await self.cluster.log.head(session_id)
        owner = self.cluster.rows[session_id].owner
        return None if owner is None or self.cluster.lives[owner].gone else owner

    async def is_of_place(self, session_id: SessionId) -> bool:
        await self.cluster.log.head(session_id)
        return self.cluster.rows[session_id].place == self.place

    async def living(self, life: int) -> Life | None:
        return next((each for each in await self.lives() if each.number == life), None)

    async def lives(self) -> list[Life]:
        return [
            Life(number, each.name, each.place, "", "", "", each.beat, each.draining)
            for number, each in self.cluster.lives.items()
            if not each.gone
        ]

    async def gone_with_sessions(self) -> list[int]:
        owners = {row.owner for name, row in self.cluster.rows.items() if await self._is_unsettled(name)}
        return [number for number, each in self.cluster.lives.items() if each.gone and number in owners]

    async def _is_unsettled(self, session_id: SessionId) -> bool:
        return (await self.cluster.log.head(session_id)).unsettled

    async def beat(self) -> int:
        life = self._check()
        life.beat += 1
        return life.beat

    async def bury(self, life: int, beat: int) -> bool:
        self._check()
        other = self.cluster.lives[life]
        other.gone = other.gone or other.beat == beat
        return other.gone

    async def succeed(self) -> list[int]:
        name = self._check().name
        earlier = [n for n, each in self.cluster.lives.items() if n != self.life and each.name == name]
        for number in (mine := [n for n in earlier if not self.cluster.lives[n].gone]):
            self.cluster.lives[number].gone = True
        return mine

    async def set_draining(self) -> None:
        self._check().draining = True


class FencedLog(MemoryEventLog):
    """The log of a cluster as one incarnation writes it. Reads are not restricted."""

    def __init__(self, owners: MemoryOwners) -> None:
        super().__init__()
        self._owners = owners
        self._sessions = owners.cluster.log._sessions

    async def create(self, session_id: SessionId) -> SessionHead:
        head = await super().create(session_id)
        self._owners.cluster.rows[session_id] = _Row(self._owners.place, self._owners.life)
        self._owners.fences[session_id] = 1
        return head

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        row = self._owners.cluster.rows.get(session_id)
        if row is not None and row.fence != self._owners.fences.get(session_id):
            raise NotOwner("another node owns this session now", session=session_id)
        return await super().append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)

    async def delete(self, session_id: SessionId) -> None:
        await super().delete(session_id)
        self._owners.cluster.rows.pop(session_id, None)

    async def aclose(self) -> None:
        """Leave the cluster: any node can claim our sessions."""
        await super().aclose()
        for row in self._owners.cluster.rows.values():
            if row.owner == self._owners.life:
                row.owner = None
                row.fence += 1
        self._owners.cluster.lives[self._owners.life].gone = True
