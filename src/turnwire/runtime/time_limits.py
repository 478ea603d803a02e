"""The deadlines that prompts of one session came with.

Takes a prompt and the seconds it has left; tells when they have passed and its turn is still open. Keeps one timer
and the deadlines of open turns, however many prompts with one there were. Never ends a turn: that is decided by the
session.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from turnwire.ids import PromptId
from turnwire.runtime.clock import Clock


class TimeLimits:
    """One session's deadlines."""

    def __init__(
        self,
        clock: Clock,
        tasks: TaskGroup,
        *,
        is_open: Callable[[PromptId], bool],
        passed: Callable[[PromptId], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._is_open = is_open
        self._passed = passed
        self._due: dict[PromptId, float] = {}
        self._timer = anyio.CancelScope()

    def arm(self, prompt_id: PromptId, after_s: float) -> None:
        """Tell `passed` of this prompt after so many seconds, if its turn is open then."""
        self._due = {each: due for each, due in self._due.items() if self._is_open(each)}
        self._due[prompt_id] = self._clock.monotonic() + after_s
        self._timer.cancel()
        self._timer = anyio.CancelScope()
        self._tasks.start_soon(self._wait, self._timer)

    def drop_all(self) -> None:
        """Nobody wants to hear of them any more."""
        self._due.clear()
        self._timer.cancel()

    async def _wait(self, timer: anyio.CancelScope) -> None:
        with timer:
            # A cancelled timer may wake once more before it hears of it.
            while self._due and not timer.cancel_called:
                prompt_id = min(self._due, key=self._due.__getitem__)
                left = self._due[prompt_id] - self._clock.monotonic()
                if left > 0:
                    await self._clock.sleep(left)
                    continue
                del self._due[prompt_id]
                if self._is_open(prompt_id):
                    self._passed(prompt_id)
