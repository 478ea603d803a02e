"""State that all connections of one listener share: the application, running tasks, and bounds over all of them.

Also the interface of detached answers: response bodies that are written without a task. A stream that is open for
days and mostly silent needs no task with its stack of functions: once the head is written, the request may end and
an `OpenAnswer` remains. `scope["extensions"]["turnwire.detach"]["call"]` detaches the answer on our listener. On
another server the request's task writes the body.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
from collections.abc import Callable, Coroutine, Mapping
from email.utils import formatdate
from typing import Any, Protocol

from starlette.types import ASGIApp, Scope

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


# -- detached answers ----------------------------------------------------------------------------------------

DETACH = "turnwire.detach"
"""ASGI extension: `call` returns an `OpenAnswer` or None. Call it after the head of a chunked answer."""
DETACHED = "turnwire.detached"
"""Key of the detached answer in the scope of its request."""


class Holder(Protocol):
    """The writer of a detached answer, with its callbacks."""

    def has_room(self) -> None:
        """Called when the answer was full and accepts more again."""
        ...

    def left(self) -> None:
        """Called once, as the last callback, when the client has disconnected or the connection was dropped."""
        ...


class OpenAnswer(Protocol):
    """The body of one answer, written in chunks (see `chunk`)."""

    holder: Holder | None
    """Receives the callbacks."""

    @property
    def is_full(self) -> bool:
        """True if the client reads more slowly than we write. Further writes are buffered by the server."""
        ...

    def write(self, chunk: bytes) -> None:
        """Write some chunks."""
        ...

    def end(self, chunk: bytes) -> None:
        """Write the last chunks and end the answer. No callback follows, and nothing more may be written."""
        ...

    def drop(self) -> None:
        """Drop the connection with all unsent data."""
        ...


class DetachedAnswer(OpenAnswer, Protocol):
    """An `OpenAnswer` as the server provides it."""

    on_end: Callable[[], None] | None
    """Called once when the answer has ended, for whatever reason."""
    is_over: bool
    """True if it has ended, or its connection is closed."""


def detached(scope: Scope) -> OpenAnswer | None:
    """Detach an answer whose head is written. Return None if the request's task has to write the body."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    answer: DetachedAnswer | None = extensions[DETACH]["call"]() if DETACH in extensions else None
    if answer is not None:
        scope[DETACHED] = answer
    return answer


def chunk(body: bytes) -> bytes:
    """Encode part of a body as an HTTP/1.1 chunk. Readers of the same bytes share one chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


def unchunked(chunk: bytes) -> bytes:
    """Return the body of one chunk."""
    return chunk[chunk.index(b"\n") + 1 : -2] if chunk else b""
