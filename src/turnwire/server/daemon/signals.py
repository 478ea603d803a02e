"""What the daemon tells all who wait for it: that it stops, and which sessions have something new."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import anyio

from turnwire.core.events import AnyEvent
from turnwire.ids import SessionId


class StopSignal:
    """The daemon stops. Said once, never taken back.

    It reaches tasks that wait and callbacks, so that a thousand streams need no task each to wait for it.
    """

    def __init__(self) -> None:
        self._said = anyio.Event()
        self._callbacks: set[Callable[[], None]] = set()

    def is_set(self) -> bool:
        return self._said.is_set()

    def set(self) -> None:
        """Say it."""
        if not self._said.is_set():
            self._said.set()
            for callback in list(self._callbacks):
                callback()

    async def wait(self) -> None:
        """Return once it is said."""
        await self._said.wait()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Generator[None]:
        """Meanwhile `callback` is called when it is said; at once if it has been."""
        self._callbacks.add(callback)
        try:
            if self._said.is_set():
                callback()
            yield
        finally:
            self._callbacks.discard(callback)


class News:
    """What one listener has not looked at."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, None] = {}
        self._more = anyio.Event()

    def add(self, session_id: SessionId) -> None:
        if session_id not in self._sessions:
            self._sessions[session_id] = None
            self._more.set()

    async def next(self) -> list[SessionId]:
        """The sessions with something new, longest waiting first. Waits for one. Cancel-safe."""
        while not self._sessions:
            self._more = anyio.Event()
            await self._more.wait()
        sessions, self._sessions = list(self._sessions), {}
        return sessions


class Activity:
    """Which sessions have new events, for streams that show many of them.

    It hears of every batch right after that was published. It holds an id per session and listener at most, no
    event, and waits for no listener.
    """

    def __init__(self) -> None:
        self._listeners: set[News] = set()

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """A session has new events. A node's `watch`."""
        for each in self._listeners:
            each.add(session_id)

    @contextmanager
    def listening(self) -> Generator[News]:
        """Meanwhile every session with new events is told."""
        news = News()
        self._listeners.add(news)
        try:
            yield news
        finally:
            self._listeners.discard(news)
