"""Ownership of sessions if several nodes share one log, and membership of the nodes.

A *life* is one incarnation of a node: one run of its process. It has a number that is never used again; once it is
*gone* it never returns. A session has at most one owner, a life, and only its owner appends (L12 of the engine). A
node claims a session before it decides anything for it and releases it when it unloads it. Reading needs no claim.

A session has a *place*, the name that nodes with the same files, homes and agents share. Only a node of its place
hosts its agent. Any node may take an unsettled session over from a dead incarnation, to record its debt.

`turnwire.runtime.members` decides which nodes watch which, and when an incarnation may be declared dead.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead

SOLE = 1
"""The life of a node that has its log alone."""


class Life(NamedTuple):
    """One run of a node's process, as in the shared table."""

    number: int
    name: str
    """Name of the node: the same in each of its incarnations."""
    place: str
    url: str
    """The URL for other nodes; empty if they cannot reach it."""
    digest: str
    """Proof that a holder of the cluster's key wrote the name and the address (`server.access.node_key`)."""
    version: str
    beat: int
    """Heartbeat counter; grows while the node lives."""
    draining: bool


class NodeIdentity(NamedTuple):
    """The description of a node that joins a shared log."""

    name: str
    place: str
    url: str = ""
    digest: str = ""
    folder: str = ""
    """Identity of its data folder. Of two incarnations with the same name and folder the earlier one has ended."""


class Claim(NamedTuple):
    """A session that this node owns now."""

    head: SessionHead
    place: str


class Owners(Protocol):
    """The owners of the sessions of a log, for one incarnation. Any method may raise `LogError`."""

    @property
    def life(self) -> int:
        """The number of this incarnation."""
        ...

    @property
    def place(self) -> str: ...

    @property
    def is_sole(self) -> bool:
        """True if no other node uses this log: this node owns all sessions, and no method below waits."""
        ...

    async def claim(self, session_id: SessionId) -> Claim:
        """Claim a session that is free, ours, or owned by a dead incarnation.

        Raises `SessionNotFound`; `NotOwner`, whose context has the live `owner` (its life), or `None` if the
        session is of another place; `LifeOver`.
        """
        ...

    async def release(self, session_id: SessionId) -> None:
        """Release a session, so that any node may claim it. Does nothing if it is not ours."""
        ...

    async def steal(self, life: int, limit: int) -> list[Claim]:
        """Claim some of the unsettled sessions of a dead incarnation; the list is empty if it has no more.

        Includes sessions of our place, and of places without any node that could host them: those are only settled
        here.
        """
        ...

    async def adopt(self, limit: int) -> list[Claim]:
        """Claim some of the unsettled sessions of our place without an owner; the list is empty if there are no
        more.
        """
        ...

    async def owner(self, session_id: SessionId) -> int | None:
        """Return the live owner of the session, if it has one. Raises `SessionNotFound`."""
        ...

    async def is_of_place(self, session_id: SessionId) -> bool:
        """Return true if the session is of our place, or has no place yet. Raises `SessionNotFound`."""
        ...

    async def living(self, life: int) -> Life | None:
        """Return that incarnation, unless it is dead or never existed."""
        ...

    async def lives(self) -> list[Life]:
        """Return every live incarnation including this one, oldest first.

        This, `beat` and `bury` use one connection. The first of them after it broke raises `LogUnavailable`, even
        if another connection exists by then: earlier observations are void (N1).
        """
        ...

    async def gone_with_sessions(self) -> list[int]:
        """Return dead incarnations that still own a session which `steal` would claim."""
        ...

    async def beat(self) -> int:
        """Record a heartbeat of this incarnation; return its new beat. Raises `LifeOver` once it was
        declared dead.
        """
        ...

    async def bury(self, life: int, beat: int) -> bool:
        """Declare an incarnation dead if it has not beaten since `beat` and this one has not beaten since its last
        request.

        Return true if it is dead now. See N1 and N5 of `turnwire.runtime.members`.
        """
        ...

    async def succeed(self) -> list[int]:
        """Declare earlier incarnations of this node's name and data folder dead. For a node that holds the folder's
        lock.
        """
        ...

    async def set_draining(self) -> None:
        """Notify the others that this incarnation is about to end and claims no more sessions."""
        ...


class SoleOwner:
    """The owners of an unshared log: the node itself owns every session."""

    life = SOLE
    place = ""
    is_sole = True

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def claim(self, session_id: SessionId) -> Claim:
        return Claim(await self._log.head(session_id), self.place)

    async def release(self, session_id: SessionId) -> None:
        """Do nothing: there is no other node."""

    async def steal(self, life: int, limit: int) -> list[Claim]:
        return []

    async def adopt(self, limit: int) -> list[Claim]:
        return []

    async def owner(self, session_id: SessionId) -> int | None:
        await self._log.head(session_id)
        return self.life

    async def is_of_place(self, session_id: SessionId) -> bool:
        await self._log.head(session_id)
        return True

    async def living(self, life: int) -> Life | None:
        return None

    async def lives(self) -> list[Life]:
        return []

    async def gone_with_sessions(self) -> list[int]:
        return []

    async def beat(self) -> int:
        return 0

    async def bury(self, life: int, beat: int) -> bool:
        return False

    async def succeed(self) -> list[int]:
        return []

    async def set_draining(self) -> None:
        """Do nothing: there is no other node."""
