"""The event loop of a blocking client, on a thread of its own.

Takes asynchronous calls from other threads; gives their results there. Functions of the program are called in
worker threads, where they may wait for the client without holding it up. Never knows what is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from inspect import iscoroutine, iscoroutinefunction
from math import inf
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from turnwire.errors import ClientClosed, LocalProtocolError

_Any = TypeVar("_Any")
_Given = TypeVar("_Given")

NOT_PLAIN = "there is no event loop here to run an `async` function; give a plain one, or use `turnwire.connect`"


class Thread:
    """The event loop of the client, on its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._workers = CapacityLimiter(inf)
        """No bound: a function may wait for a turn that ends only after another function was called."""
        self.is_over = False

    def start(self, function: Callable[..., Awaitable[_Any]], *given: object) -> Future[_Any]:
        if self.is_over:
            raise ClientClosed("the client is closed; use it inside `with`")
        return self._portal.start_task_soon(function, *given)

    def call(self, function: Callable[..., Awaitable[_Any]], *given: object) -> _Any:
        return self.start(function, *given).result()

    def in_worker(
        self, function: Callable[[_Given], _Any], *, abandon: bool = False
    ) -> Callable[[_Given], Awaitable[_Any]]:
        """The function, called in a worker thread: there it may wait for the client without holding it up.

        Raises `LocalProtocolError` for an `async` function, which would never run.
        """
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            raise LocalProtocolError(NOT_PLAIN)

        async def call(given: _Given) -> _Any:
            outcome = await to_thread.run_sync(function, given, abandon_on_cancel=abandon, limiter=self._workers)
            if iscoroutine(outcome):
                # Not to be seen before the call, as of a lambda.
                outcome.close()
                raise LocalProtocolError(NOT_PLAIN)
            return outcome

        return call


@contextmanager
def running_thread(opening: AbstractAsyncContextManager[_Any]) -> Generator[tuple[Thread, _Any]]:
    """A thread in which `opening` is entered, and what that gave."""
    with start_blocking_portal(name="turnwire") as portal, portal.wrap_async_context_manager(opening) as opened:
        thread = Thread(portal)
        try:
            yield thread, opened
        finally:
            thread.is_over = True


async def plainly(function: Callable[..., _Any], *given: object) -> _Any:
    """A plain call on the client's thread. Not awaited there: what it gives may be a turn."""
    return function(*given)
