"""The bell: how nodes that share a log hear that a session has grown, or that something else is not as it was.

Takes heads after their commit, and words; the other nodes hear them soon, in a notice. A notice may be lost: its
node dies in that instant, or a listener's connection breaks. So it is a reason to look and nothing more. Who may
have missed one is told, and what somebody follows is looked at every `SWEEP_S` anyway: a lost notice costs time,
never an event.

A node does not hear itself.
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
"""How long a lost notice may go unnoticed by those who follow the session."""
DELETED: Final = 0
"""The head in a notice about a session that is no more."""
NODES: Final = "nodes"
"""The word that says that a node is gone. It may have stored something and not rung."""


class HeadListener(Protocol):
    """Hears what grows. Must not wait and must not raise."""

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """The logs of these sessions are at least so far, or `DELETED`."""
        ...

    def missed(self) -> None:
        """Something may have grown unheard."""
        ...


class HeadFollower(HeadListener, Protocol):
    """Besides, wants to be sure of some sessions: the sweep looks where they are."""

    def followed(self) -> Collection[SessionId]:
        """Those."""
        ...

    def found(self, heads: Mapping[SessionId, SessionHead | None]) -> None:
        """Where they are; none for one that is no more."""
        ...


class Bell(Protocol):
    """What a node rings and hears."""

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is there, ever."""
        ...

    @property
    def is_deaf(self) -> bool:
        """Whether nothing can be heard now."""
        ...

    async def run(self) -> None:
        """Ring and listen until cancelled."""
        ...

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        """Tell the others where sessions are now, without waiting. For the log."""
        ...

    def ring(self, word: str) -> None:
        """Tell the others a word, without waiting."""
        ...

    async def heard(self, word: str) -> None:
        """Return when it was rung since this last returned, or when that may have been missed. For one to wait."""
        ...

    def add_listener(self, listener: HeadListener) -> None:
        """From now on it hears what grows elsewhere."""
        ...

    def set_follower(self, follower: HeadFollower | None) -> None:
        """The same for the one that follows; none when it has ended."""
        ...

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """Let somebody know how many seconds each notice took."""
        ...


@runtime_checkable
class SharedLog(EventLog, Protocol):
    """A log that several nodes may have open at once."""

    @property
    def bell(self) -> Bell: ...

    @property
    def owners(self) -> Owners: ...

    def exclusively(self, name: str) -> AbstractAsyncContextManager[None]:
        """Meanwhile nobody else is in here under the same name, on any node. Raises `LogError`."""
        ...

    def once(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Whether what has this name was never done, on any node; it is, when this ends well. Raises `LogError`."""
        ...


class Subscribers:
    """Whom a bell tells what, for every kind of bell. What it is told it hands on at once."""

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
    """For a node that has its log alone: there is nobody to tell."""

    is_alone = True
    is_deaf = False

    async def run(self) -> None:
        """There is nothing to do."""

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        """Nobody hears it."""

    def ring(self, word: str) -> None:
        """Nobody hears it."""

    async def heard(self, word: str) -> None:
        await anyio.sleep_forever()

    def add_listener(self, listener: HeadListener) -> None:
        """It will hear nothing."""

    def set_follower(self, follower: HeadFollower | None) -> None:
        """It will hear nothing."""

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """There is nothing to measure."""
