"""The events of one session, a page at a time, with a wake-up for whoever waits for other things as well.

Takes a place in the log; follows it in a task of its own and holds one page at most. Never drops an event: the task
waits until its page is taken.
"""

from __future__ import annotations

from contextlib import aclosing

import anyio

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.runtime.node import Node
from turnwire.server.acp.wake import Wake


class Feed:
    """A follower of the log that can be looked at without waiting."""

    def __init__(self, node: Node, session_id: SessionId, after: Position, wake: Wake) -> None:
        self._node = node
        self._session_id = session_id
        self._after = after
        self._wake = wake
        self._bodies: list[bytes] = []
        """What is left of the page."""
        self._first = 0
        """The offset of its first event."""
        self._taken = Wake()
        self.scope = anyio.CancelScope()
        """Cancel it to stop following."""
        self.is_over = False
        """There will be no more."""
        self.error: TurnwireError | None = None
        """Why there will be no more, if it is not that the session ended."""

    @property
    def next_offset(self) -> int | None:
        """The offset of the next event; none if there is none yet."""
        return self._first if self._bodies else None

    def take(self, upto: int) -> tuple[int, list[bytes]]:
        """The offset of the next event, and all that are here up to `upto`. Call it if `next_offset` is one."""
        first, taken = self._first, self._bodies
        if upto < first + len(taken) - 1:
            taken, self._bodies = taken[: upto + 1 - first], taken[upto + 1 - first :]
        else:
            self._bodies = []
            self._taken.set()
        self._first += len(taken)
        return first, taken

    async def run(self) -> None:
        """Follow until the scope is cancelled or the session ends."""
        try:
            with self.scope:
                async with aclosing(self._node.follow(self._session_id, self._after)) as pages:
                    async for page in pages:
                        self._bodies, self._first = page.frames, page.offset - len(page.frames) + 1
                        self._wake.set()
                        while self._bodies:
                            await self._taken.wait()
        except TurnwireError as error:
            self.error = error
        finally:
            self.is_over = True
            self._wake.set()
