"""Handler calls that wait for turns, and how they are kept from waiting for each other.

Takes the handler call in which somebody awaits a turn; gives the turn's result. A turn is drained when none of
its handler calls is unfinished, and an unfinished call may itself wait for a turn: turns and calls form a graph.
Whoever would close a circle in it waits for the end of the turn only, and not for the handlers of that turn. So no
two handlers ever wait for each other, and every other `await turn` means drained, inside of a handler too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from turnwire.client.progress import Progress, TurnResult


class Call:
    """One handler call that is not finished."""

    __slots__ = ("_go_on", "_progress", "awaits", "is_over", "is_released")

    def __init__(self, progress: Progress | None, go_on: Callable[[], None]) -> None:
        self._progress = progress
        self._go_on = go_on
        self.awaits: list[Progress] = []
        """Turns that it waits for to be drained."""
        self.is_over = False
        self.is_released = False

    def release(self) -> None:
        """The call waits for a turn: let the walk over the log go on without it."""
        if not self.is_released and not self.is_over:
            self.is_released = True
            if self._progress is not None:
                self._progress.begin_call(self)
            self._go_on()

    def finish(self) -> None:
        self.is_over = True
        if self.is_released and self._progress is not None:
            self._progress.finish_call(self)

    async def result_of(self, progress: Progress) -> TurnResult:
        """The result of a turn, awaited inside of this call."""
        if progress.is_drained:
            return await progress.drained()
        self.release()
        if _leads_to(progress, self):
            return await progress.passed()
        self.awaits.append(progress)
        try:
            return await progress.drained()
        finally:
            self.awaits.remove(progress)


def _leads_to(progress: Progress, call: Call) -> bool:
    """Whether a turn can be drained only after this call has finished."""
    seen: set[int] = set()
    waiting = [progress]
    while waiting:
        turn = waiting.pop()
        if id(turn) in seen:
            continue
        seen.add(id(turn))
        if call in turn.calls:
            return True
        waiting.extend(each for unfinished in turn.calls for each in unfinished.awaits)
    return False


current: ContextVar[Call | None] = ContextVar("turnwire_handler_call", default=None)
"""The handler call that the running code belongs to. Tasks that a handler starts inherit it."""


def current_call() -> Call | None:
    """The handler call in which the caller runs, if it is in one that has not returned."""
    call = current.get()
    return None if call is None or call.is_over else call


def let_go_on() -> None:
    """Whoever calls is about to wait for something that comes later in the log."""
    call = current_call()
    if call is not None:
        call.release()


async def result_of(progress: Progress) -> TurnResult:
    """The result of a turn, drained; see above for calls inside of a handler."""
    call = current_call()
    return await (progress.drained() if call is None else call.result_of(progress))
