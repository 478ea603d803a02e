"""Which sessions have something new, for streams that show many of them.

Takes every batch of events right after it was published, as a node's `watch`; gives each listener the sessions that
it has not looked at since. Holds an id per session and listener at most. Never holds an event, never waits for a
listener.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import anyio

from turnwire.core.events import AnyEvent
from turnwire.ids import SessionId


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
    """Who wants to hear of new events."""

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
