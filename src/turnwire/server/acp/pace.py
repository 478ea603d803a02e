"""A writer's pace: it lets others run now and then.

Takes a step with each frame; gives way at every few. A server takes frames without a pause as long as it has room,
so without this a client that reads a long history would keep all others, and the news of its own end, waiting.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

EVERY = 4
"""Frames between two pauses. The loop complains of more writes to a socket that is lost."""


class Pace:
    """One writer's."""

    def __init__(self) -> None:
        self._steps = 0

    async def step(self) -> None:
        """A frame was written."""
        self._steps += 1
        if self._steps % EVERY == 0:
            await checkpoint()
