"""Who appends to which session, where several nodes share one log; and which nodes there are.

A *life* is one run of a node's process. It is a number that is never used again; once it is *gone* it never comes
back. A session has at most one owner, a life, and only its owner appends (L12 of the engine). A node claims a
session before it decides anything for it and releases it when it puts it away. Reading claims nothing.

A session has a *place*, the name that nodes with the same files, homes and agents share. Only a node of its place
hosts its agent. Any node may take an unsettled session over from a life that is gone, to record what is owed.

Who watches whom, and when a life may be declared gone, is decided in `turnwire.runtime.members`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead

SOLE = 1
"""The life of a node that has its log alone."""


class Life(NamedTuple):
    """One run of a node's process, as the shared table has it."""

    number: int
    name: str
    """Of the node: the same in each of its lives."""
    place: str
    url: str
    """Where other nodes reach it; empty if they cannot."""
    secret: str
    """What a node that dials it must show."""
    version: str
    beat: int
    """Grows while it lives."""
    draining: bool


class NodeIdentity(NamedTuple):
    """What a node says of itself when it joins those that share a log."""

    name: str
    place: str
    url: str = ""
    secret: str = ""
    folder: str = ""
    """Which data folder it has. Of two lives with the same name and folder the earlier one has ended."""


class Claim(NamedTuple):
    """A session that is ours now."""

    head: SessionHead
    place: str


class Owners(Protocol):
    """The owners of the sessions of a log, as one life sees and changes them. Any method may raise `LogError`."""

    @property
    def life(self) -> int:
        """The number of this run."""
        ...

    @property
    def place(self) -> str: ...

    @property
    def secret(self) -> str:
        """What a node that dials this one must show; empty if none can."""
        ...

    @property
    def is_sole(self) -> bool:
        """Whether no other node uses this log: everything in it is ours, and nothing below ever waits."""
        ...

    async def claim(self, session_id: SessionId) -> Claim:
        """Own a session that is free, ours, or of a life that is gone.

        Raises `SessionNotFound`; `NotOwner`, whose context has the `owner` that lives (its life), or none if the
        session is of another place; `LogTooNew` if a newer turnwire has owned it; `LifeOver`.
        """
        ...

    async def release(self, session_id: SessionId) -> None:
        """Let anybody own it. Does nothing if it is not ours."""
        ...

    async def steal(self, life: int, limit: int) -> list[Claim]:
        """Own some of the unsettled sessions of a life that is gone; none if there are none.

        Of our place, or of one that has no node any more which could host them: those are to be settled here only.
        """
        ...

    async def adopt(self, limit: int) -> list[Claim]:
        """Own some of the unsettled sessions of our place that nobody has; none if there are none."""
        ...

    async def owner(self, session_id: SessionId) -> int | None:
        """The life that has the session, if one does that is not gone. Raises `SessionNotFound`."""
        ...

    async def is_of_place(self, session_id: SessionId) -> bool:
        """Whether the session is of our place, or of none yet. Raises `SessionNotFound`."""
        ...

    async def living(self, life: int) -> Life | None:
        """That one, unless it is gone or never was."""
        ...

    async def lives(self) -> list[Life]:
        """Every life that is not gone, this one too, oldest first.

        This, `beat` and `bury` go over one connection. The first of them after it broke raises `LogUnavailable`,
        also if another one was made by then: what was seen before that counts no more (N1).
        """
        ...

    async def gone_with_sessions(self) -> list[int]:
        """Lives that are gone and still named as owner of a session that `steal` would give us."""
        ...

    async def beat(self) -> int:
        """Show that this life goes on; gives its new beat. Raises `LifeOver` once it was declared gone."""
        ...

    async def bury(self, life: int, beat: int) -> bool:
        """Declare a life gone that has not beaten since `beat`, unless this one has beaten since it last asked.

        Whether it is gone now. See N1 and N5 of `turnwire.runtime.members`.
        """
        ...

    async def succeed(self) -> list[int]:
        """Declare the earlier lives of this node's name and data folder gone. For a node that holds its lock."""
        ...

    async def set_draining(self) -> None:
        """Tell the others that this life is about to end and takes nothing new."""
        ...


class SoleOwner:
    """The owners of a log that one node has for itself: that node."""

    life = SOLE
    place = ""
    secret = ""
    is_sole = True

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def claim(self, session_id: SessionId) -> Claim:
        return Claim(await self._log.head(session_id), self.place)

    async def release(self, session_id: SessionId) -> None:
        """There is nobody else."""

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
        """There is nobody to tell."""
