"""The word that the daemon stops, for all who must hear it.

Takes the word once; gives it to tasks that wait and to callbacks, so that a thousand streams need no task each to
wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio


class Stopping:
    """Said once, never taken back."""

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
