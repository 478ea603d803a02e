"""Messages that came, in order, and the wait for one of them. Every wait is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import anyio

from turnwire_testing.patience import WAIT_S

Json: TypeAlias = dict[str, Any]


class Heard:
    """The received frames of one side of a connection, in `frames`."""

    def __init__(self) -> None:
        self.frames: list[Json] = []
        self.is_ended = False
        """Nothing more comes."""
        self._more = anyio.Event()

    def hear(self, frame: Json) -> None:
        """Handle a received message."""
        self.frames.append(frame)
        self._wake()

    def hear_end(self) -> None:
        """No more will come."""
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()

    async def until(self, fits: Callable[[Json], Any], after: int = 0) -> Json:
        """The first message from `after` on that fits, waited for."""
        with anyio.fail_after(WAIT_S):
            while True:
                more = self._more
                found = next((each for each in self.frames[after:] if fits(each)), None)
                if found is not None:
                    return found
                assert not self.is_ended, "the connection ended before it came"
                await more.wait()
