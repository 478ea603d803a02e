"""A session's inbox: everything that happens to it, in one order.

Takes inputs of the agent and of clients; gives all that waits as one batch. Bounded twice: the agent's reader
waits for room, so a flood fills the pipe and not our memory; clients have room of their own and are refused
beyond it, so a flood cannot keep a cancel out either. Never drops what it took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from turnwire.core.inputs import AnyInput
from turnwire.errors import LimitExceeded, SessionClosed
from turnwire.limits import Limits

Reply: TypeAlias = asyncio.Future[object]
Entry: TypeAlias = tuple[AnyInput, Reply | None]


class Inbox:
    """Inputs of one session, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: deque[Entry] = deque()
        self._replies = 0
        self._wanted: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, input: AnyInput) -> None:
        """Take an input that nobody waits for: the agent's words, deadlines. The caller then awaits `room`."""
        self._entries.append((input, None))
        self._wake()

    def ask(self, input: AnyInput) -> Reply:
        """Take a client's input; its reply holds the answer or refusal. Raises `LimitExceeded`, `SessionClosed`."""
        if self.is_closed:
            raise SessionClosed("the session is being put away; ask again")
        if self._replies >= self._limits.client_inputs:
            raise LimitExceeded("too many requests wait for this session; try again", limit="client_inputs")
        reply: Reply = asyncio.get_running_loop().create_future()
        self._entries.append((input, reply))
        self._replies += 1
        self._wake()
        return reply

    async def room(self) -> None:
        """Return once the agent's share is below its bound. Cancel-safe."""
        while len(self._entries) - self._replies >= self._limits.agent_inputs and not self.is_closed:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def take(self) -> list[Entry]:
        """All that waits, up to one batch; waits for the first. Cancel-safe."""
        while not self._entries:
            wanted = self._wanted = asyncio.get_running_loop().create_future()
            await wanted
        return self.take_nowait()

    def take_nowait(self) -> list[Entry]:
        """What waits now, up to one batch; may be nothing."""
        entries = self._entries
        if len(entries) <= self._limits.batch_inputs:
            batch = list(entries)
            entries.clear()
        else:
            batch = [entries.popleft() for _ in range(self._limits.batch_inputs)]
        if self._replies:
            self._replies -= sum(1 for _, reply in batch if reply is not None)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return batch

    def close(self) -> None:
        """Take no more from clients, and let nobody wait for room."""
        self.is_closed = True
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake(self) -> None:
        wanted = self._wanted
        if wanted is not None:
            self._wanted = None
            if not wanted.done():
                wanted.set_result(None)
