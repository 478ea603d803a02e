"""A writer's pace: it lets others run now and then.

Takes a step with each write; gives way at every few, and sooner if they are long. A server takes frames without a
pause as long as it has room, so without this a client that reads a long history would keep all others, and the news
of its own end, waiting.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

EVERY = 4
"""Writes between two pauses. The loop complains of more to a socket that is lost."""
LONG = 64
"""So many frames in one write are as good as another write: they cost some tenths of a millisecond."""


class Pace:
    """One writer's."""

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, frames: int) -> None:
        """Some frames were written in one go."""
        self._steps += 1 + frames // LONG
        if self._steps >= EVERY:
            self._steps = 0
            await checkpoint()
