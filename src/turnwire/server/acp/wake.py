"""A wake-up for one waiter.

Takes any number of calls from anywhere; gives one return of `wait` for all of them. The waiter looks at everything
that it waits for before it waits again, so nothing is missed and nothing is counted.
"""

from __future__ import annotations

import asyncio


class Wake:
    """Set by many, waited for by one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """There is something to look at."""
        self._event.set()

    async def wait(self) -> None:
        """Return once `set` was called since the last return. Cancel-safe."""
        await self._event.wait()
        self._event.clear()
