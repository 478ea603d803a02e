"""One client as its sessions see it: frames to it, requests to it, its task group, its capabilities.

Frames are sent in the order in which they were put, as fast as the client reads. Only `room` waits for a slow
client; `check_room` stops a speaker that never waits. No frame of a connected client is dropped.
`turnwire.agent.connection` reads from the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Raw

from turnwire.agent.definition import AgentDefinition
from turnwire.errors import LimitExceeded, LinkBroken, LinkError
from turnwire.hosting.base import FrameLink
from turnwire.ids import RequestId
from turnwire.projections.translate.handshake import ClientProfile
from turnwire.session.connection_stage import Admission
from turnwire.session.correlation import Correlation
from turnwire.wire.jsonrpc import ErrorObject, Failure, Frame, Result, encode, encode_failure, raw

HARD = 4
"""Answers and turn ends are always queued. At this multiple of the bound the client is no longer read from: it
sends requests and never reads.
"""


class ConnectedClient:
    """A connected client."""

    def __init__(self, definition: AgentDefinition, link: FrameLink, tasks: TaskGroup) -> None:
        self.definition = definition
        self.link = link
        self.tasks = tasks
        self.outbox = Outbox(link, definition.options.max_unsent)
        self.calls = OpenRequests()
        self.admission = Admission()
        """The stage of the connection, which decides the methods it may call."""
        self.profile = ClientProfile(version=1)
        """The client's `initialize` params."""
        self.says_ready = False
        """It has sent `session/ready`."""
        self.was_late = False
        """The client has never sent `session/ready` and let the time for it pass; it is not waited for again."""

    def put(self, frame: Frame) -> None:
        self.outbox.put(encode(frame))

    def respond(self, request_id: RequestId, result: object) -> None:
        self.put(Result(request_id, raw(result)))

    def refuse(self, request_id: RequestId | None, error: ErrorObject) -> None:
        self.put(Failure(request_id, error))

    def fail(self, request_id: RequestId, error: Raw) -> None:
        """Refuse with an error object as it is."""
        self.outbox.put(encode_failure(request_id, error))

    async def drop(self) -> None:
        """It does not read: end its connection, so that it cannot hold up others."""
        await self.link.aclose()


class Outbox:
    """The frames queued for one client. `run` runs in parallel with the reader."""

    def __init__(self, link: FrameLink, max_bytes: int) -> None:
        self._link = link
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self.is_broken = False
        """The client reads no more; further frames are dropped."""

    def put(self, frame: bytes) -> None:
        """Send this after everything that was put before."""
        if self.is_broken:
            return
        if not self._frames:
            try:
                self._link.send_nowait(frame)
            except LimitExceeded:
                pass
            except LinkError:
                self.end()
                return
            else:
                return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()

    def check_room(self) -> None:
        """Raise `LimitExceeded` if too much waits already."""
        if self._bytes >= self._max_bytes:
            raise LimitExceeded(
                "the client does not read what it was told; await what you say, so that it waits for the client",
                limit="max_unsent",
                value=self._max_bytes,
            )

    async def room(self) -> None:
        """Wait until the link has accepted all frames. Yields to other tasks even if it already has."""
        await checkpoint()
        while self._frames and not self.is_broken:
            await self._emptied.wait()

    async def bearable(self) -> None:
        """Return unless far too much waits: the place where reading from the client stops."""
        while self._bytes >= HARD * self._max_bytes and not self.is_broken:
            await self._emptied.wait()

    async def run(self) -> None:
        """Write until the client reads no more."""
        try:
            while not self.is_broken:
                while self._frames:
                    await self._link.send(self._frames[0])
                    self._bytes -= len(self._frames.popleft())
                self._emptied.set()
                self._emptied, self._filled = anyio.Event(), anyio.Event()
                await self._filled.wait()
        except LinkError:
            self.end()

    def end(self) -> None:
        """Stop sending and wake all waiters."""
        self.is_broken = True
        self._frames.clear()
        self._bytes = 0
        self._emptied.set()
        self._filled.set()


class Sent:
    """A sent update. `await` it to wait until the client accepts more."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox

    def __await__(self) -> Generator[Any, Any, None]:
        return (checkpoint() if self._outbox is None else self._outbox.room()).__await__()


class OpenRequests:
    """The open requests of one connection, in both directions."""

    def __init__(self) -> None:
        self._open: Correlation[PendingAnswer, None] = Correlation()

    def begin(self) -> BegunRequest:
        """Register a new request that is about to be sent."""
        answer = PendingAnswer()
        return BegunRequest(self._open.open(answer), answer)

    def settle(self, frame: Result | Failure) -> None:
        """Resolve the request with its answer. An unexpected answer is ignored."""
        answer = self._open.close(frame.id)
        if answer is not None:
            answer.give(frame)

    def withdraw(self, request_id: RequestId) -> bool:
        """Forget a request whose caller stopped waiting. Return whether it was open."""
        return self._open.close(request_id) is not None

    def end(self) -> None:
        """The client is gone."""
        for answer in self._open.end():
            answer.give(None)


class BegunRequest(NamedTuple):
    """A request with its id."""

    id: RequestId
    answer: PendingAnswer


class PendingAnswer:
    """The pending answer of a request."""

    def __init__(self) -> None:
        self._frame: Result | Failure | None = None
        self._came = anyio.Event()

    def give(self, frame: Result | Failure | None) -> None:
        self._frame = frame
        self._came.set()

    async def wait(self) -> Result | Failure:
        """Wait for the answer. Raises `LinkBroken` if the client disconnects first."""
        await self._came.wait()
        if self._frame is None:
            raise LinkBroken("the client left before it answered")
        return self._frame
