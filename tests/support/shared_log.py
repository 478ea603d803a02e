"""One log in memory for several nodes of a test, and bells between them that can be made to lose notices.

Each node has a separate end: `SharedEnd`, whose appends ring the bells of the others, and its `Bell`. A test
triggers the actions that a database performs by itself: `Belfry.sweep` is the periodic check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turnwire.errors import SessionNotFound
from turnwire.ids import SessionId
from turnwire.log import MemoryEventLog
from turnwire.log.base import SessionHead
from turnwire.log.bell import DELETED, HeadFollower, HeadListener, Subscribers


class Belfry:
    """The bells of all nodes that share a log."""

    def __init__(self) -> None:
        self.log = MemoryEventLog()
        self.bells: list[LocalBell] = []
        self.loses = False
        """True while all notices are lost."""

    def end(self) -> SharedEnd:
        """For one more node."""
        return SharedEnd(self.log, LocalBell(self))

    async def sweep(self) -> None:
        """Notify each node of the heads of the sessions that it follows."""
        for bell in self.bells:
            heads: dict[SessionId, SessionHead | None] = dict.fromkeys(bell.subscribers.followed())
            for session_id in heads:
                try:
                    heads[session_id] = await self.log.head(session_id)
                except SessionNotFound:
                    continue
            bell.subscribers.found(heads)

    def mend(self) -> None:
        """Deliver notices from now on; nodes that missed some are notified of the gap."""
        self.loses = False
        for bell in self.bells:
            bell.subscribers.missed()


class LocalBell:
    """A `Bell` of one node."""

    is_alone = False
    is_deaf = False

    def __init__(self, belfry: Belfry) -> None:
        self._belfry = belfry
        self.subscribers = Subscribers()
        belfry.bells.append(self)

    async def run(self) -> None:
        """It rings by itself."""

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        for each in self._others():
            each.subscribers.grown(heads)

    def ring(self, word: str) -> None:
        for each in self._others():
            each.subscribers.said([word])

    async def heard(self, word: str) -> None:
        await self.subscribers.heard(word)

    def add_listener(self, listener: HeadListener) -> None:
        self.subscribers.add(listener)

    def set_follower(self, follower: HeadFollower | None) -> None:
        self.subscribers.follower = follower

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """Do nothing: an append needs no time."""

    def _others(self) -> list[LocalBell]:
        return [] if self._belfry.loses else [each for each in self._belfry.bells if each is not self]


class SharedEnd(MemoryEventLog):
    """The log as one node has it."""

    def __init__(self, log: MemoryEventLog, bell: LocalBell) -> None:
        super().__init__()
        self._sessions = log._sessions
        self.bell = bell
        self.reads = 0
        """Number of reads of events."""

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        head = await super().append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)
        self.bell.tell({session_id: head})
        return head

    async def delete(self, session_id: SessionId) -> None:
        await super().delete(session_id)
        self.bell.tell({session_id: DELETED})
