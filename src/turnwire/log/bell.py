"""The bell: notifications between the nodes that share a log, that a session has grown or that something else
changed.

A node rings with the heads of sessions after their commit, or with a word; the other nodes receive a notice soon. A
notice may be lost, if its node dies at that moment or a listener's connection breaks. So a notice is only a reason
to read the log. Listeners that may have missed one are notified, and followed sessions are checked every `SWEEP_S`
anyway: a lost notice costs time, never an event.

A node does not receive its own notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

import anyio

from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead
from turnwire.log.owners import Owners

SWEEP_S: Final = 2.0
"""Maximum delay for followers of a session after a lost notice."""
DELETED: Final = 0
"""The head in a notice about a deleted session."""
NODES: Final = "nodes"
"""The word for a dead node, which may have stored events without ringing."""


class HeadListener(Protocol):
    """A listener for new heads. Its methods must not wait and must not raise."""

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """The heads of these sessions are at least these, or `DELETED`."""
        ...

    def missed(self) -> None:
        """A notice may have been missed."""
        ...


class HeadFollower(HeadListener, Protocol):
    """A listener that follows some sessions: the sweep reads their heads."""

    def followed(self) -> Collection[SessionId]:
        """Return the sessions to check."""
        ...

    def found(self, heads: Mapping[SessionId, SessionHead | None]) -> None:
        """Receive their heads; `None` for a session that was deleted."""
        ...


class Bell(Protocol):
    """The notifications that a node sends and receives."""

    @property
    def is_alone(self) -> bool:
        """True if there can be no other node."""
        ...

    @property
    def is_deaf(self) -> bool:
        """True if no notice can be received now."""
        ...

    async def run(self) -> None:
        """Send and receive notices until cancelled."""
        ...

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        """Notify the other nodes of new heads, without waiting. For the log."""
        ...

    def ring(self, word: str) -> None:
        """Send a word to the other nodes, without waiting."""
        ...

    async def heard(self, word: str) -> None:
        """Return when the word was rung since the last return, or when it may have been missed. For one waiting
        task.
        """
        ...

    def add_listener(self, listener: HeadListener) -> None:
        """Notify a listener of new heads from other nodes from now on."""
        ...

    def set_follower(self, follower: HeadFollower | None) -> None:
        """Set the follower; `None` when it has ended."""
        ...

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """Report the delay of each notice, in seconds, to a function."""
        ...


@runtime_checkable
class SharedLog(EventLog, Protocol):
    """A log that several nodes may have open at once."""

    @property
    def bell(self) -> Bell: ...

    @property
    def owners(self) -> Owners: ...

    def exclusively(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock on this name across all nodes while the context is open. Raises `LogError`."""
        ...

    def once(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Yield true if the action of this name was never done on any node. It counts as done if the context exits
        normally.

        Raises `LogError`.
        """
        ...


class Subscribers:
    """The subscribers of a bell, of every kind. It passes notices on at once."""

    def __init__(self) -> None:
        self.follower: HeadFollower | None = None
        self._listeners: list[HeadListener] = []
        self._words: dict[str, asyncio.Event] = {}

    def add(self, listener: HeadListener) -> None:
        self._listeners.append(listener)

    async def heard(self, word: str) -> None:
        await self._words.setdefault(word, asyncio.Event()).wait()
        self._words[word] = asyncio.Event()

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        for each in self._all():
            each.grown(heads)

    def said(self, words: Sequence[str]) -> None:
        for each in words:
            self._words.setdefault(each, asyncio.Event()).set()
        if NODES in words:
            self._look()

    def missed(self) -> None:
        self._look()
        for event in self._words.values():
            event.set()

    def _look(self) -> None:
        for each in self._all():
            each.missed()

    def followed(self) -> Collection[SessionId]:
        return () if self.follower is None else self.follower.followed()

    def found(self, heads: Mapping[SessionId, SessionHead | None]) -> None:
        if self.follower is not None:
            self.follower.found(heads)

    def _all(self) -> list[HeadListener]:
        return self._listeners if self.follower is None else [self.follower, *self._listeners]


class NoBell:
    """The bell of a node that has its log alone: it has no other node to notify."""

    is_alone = True
    is_deaf = False

    async def run(self) -> None:
        """Do nothing."""

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        """Do nothing: there is no other node."""

    def ring(self, word: str) -> None:
        """Do nothing: there is no other node."""

    async def heard(self, word: str) -> None:
        await anyio.sleep_forever()

    def add_listener(self, listener: HeadListener) -> None:
        """Do nothing: there will be no notice."""

    def set_follower(self, follower: HeadFollower | None) -> None:
        """Do nothing: there will be no notice."""

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """Do nothing: there is nothing to measure."""
