"""State that all connections of one listener share: the application, running tasks, and bounds over all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any, Protocol

from starlette.types import ASGIApp

from turnwire.limits import Limits
from turnwire.server.bodies import CredentialBytes, HeldBytes

RESERVED_FILES = 256
"""File descriptors kept free for agents, files and the log; at most a quarter of all."""
WARNED_S = 60.0
"""Minimum interval between two warnings that descriptors run out."""

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """A client connection, over any protocol."""

    def shut_down(self) -> None:
        """Close now if nothing is running, or after the response."""
        ...

    def abort(self) -> None:
        """Drop the connection with all unsent data."""
        ...


class Connections:
    """All connections of one listener."""

    def __init__(
        self, app: ASGIApp, limits: Limits, *, socket_bytes: int, scheme: str, make_room: Callable[[], bool]
    ) -> None:
        """`make_room` drops a stream that the application can spare, and returns False if there was none."""
        self.app = app
        self.limits = limits
        self.socket_bytes = socket_bytes
        """Longest WebSocket message."""
        self.scheme = scheme
        """Scheme of request URLs; WebSockets derive theirs from it."""
        self.heads = HeldBytes(limits.stranger_bytes)
        """Unfinished heads."""
        self.messages = CredentialBytes(limits.credential_body_bytes)
        """Unfinished WebSocket messages."""
        self.loop = asyncio.get_running_loop()
        self.open: set[Connection] = set()
        self.handshakes = 0
        """Accepted sockets without a connection, usually in the TLS handshake."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._make_room = make_room
        self._idle: dict[object, Callable[[], object]] = {}
        """Idle connections, longest idle first, with the function that drops each."""
        self._max_files = _max_files()
        self._warned_at = -math.inf
        self._date_until = 0.0
        self._date = b""
        self._changed: asyncio.Future[None] | None = None
        """Completes when a connection closes or a task ends, if `closed` waits for that."""

    # -- requests --------------------------------------------------------------------------------------------

    def start(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a request, or a handshake, as a task. It must raise nothing but its cancellation."""
        task = self.loop.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def date(self) -> bytes:
        """Return the value of the Date header, formatted once a second."""
        now = self.loop.time()
        if now >= self._date_until:
            self._date_until, self._date = now + 1, formatdate(usegmt=True).encode()
        return self._date

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._notify()

    # -- the end ---------------------------------------------------------------------------------------------

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.open.discard(connection)
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def shut_down(self) -> None:
        """Ask all connections to close after their current request."""
        for each in list(self.open):
            each.shut_down()

    async def until_closed(self) -> None:
        """Wait until no connection is open and no request is running."""
        while self.open or self._tasks:
            self._changed = self.loop.create_future()
            await self._changed

    def cut(self) -> None:
        """Cancel all requests and drop all connections. Does nothing after an orderly end."""
        for task in list(self._tasks):
            task.cancel()
        for each in list(self.open):
            each.abort()

    # -- descriptors -----------------------------------------------------------------------------------------

    def idle(self, connection: object, drop: Callable[[], object]) -> None:
        """Mark a connection as idle: no request is running on it."""
        self._idle.setdefault(connection, drop)

    def busy(self, connection: object) -> None:
        """Mark a connection as not idle: a request is running, or the connection is closed."""
        self._idle.pop(connection, None)

    def admit(self, number: int, drop: Callable[[], object]) -> None:
        """Make room if a new socket's descriptor is one of those reserved for agents and files.

        The longest idle connection is dropped first: an honest client sends a request, or reconnects with one. Next
        is a stream of the credential that has most; the new connection is dropped (`drop`) if there is neither.
        """
        # Low descriptors are reused while many higher ones are open, so connections are counted as well.
        if max(number, len(self.open) + self.handshakes) >= self._max_files and not self.make_room():
            drop()

    def make_room(self) -> bool:
        """Drop an idle connection or a stream. Return False if there is neither."""
        now = self.loop.time()
        if now - self._warned_at > WARNED_S:
            self._warned_at = now
            logger.warning(
                "file descriptors run out, so connections are dropped; let the process have more (ulimit -n)",
                extra={"event": "descriptors_run_out", "connections": len(self.open)},
            )
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return self._make_room()
        self._idle.pop(oldest)()
        return True


def _max_files() -> int:
    """Return the first reserved descriptor. The kernel always hands out the lowest free one."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most - min(RESERVED_FILES, most // 4)
