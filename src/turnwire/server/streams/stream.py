"""One open SSE response: bytes out, heartbeats between, and an end for each way in which it can end.

A pump writes whole frames; a reader that takes nothing for `write_timeout_s` is given up. The response ends by
itself when the daemon stops, when the credential has ended, and when the client is gone. Nothing is queued: a
pump that writes faster than its reader reads waits here, and waiting costs it one page.

Theory of operation
-------------------
The pump writes. A task listens to `receive`, because no server tells in another way that a client has left, and one
waits for the daemon to stop. A timer keeps time: it starts a heartbeat when nothing was written for a while, and
ends a write that does not come to its end. A heartbeat may be written while the pump writes: both write whole
frames, so the order between them does not matter. There are thousands of these, so each is made of little.

    W1  What is written is whole frames, in the pump's order. A reader is cut between any two bytes by the network
        only, never by us; its cursor is the last id it has seen.
    W2  A stalled reader holds what is in one write and in the server's own buffer, whatever is published meanwhile.
    W3  The response ends with its terminator, unless the client is gone or takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from starlette.types import Send

from turnwire.errors import SessionNotFound, TurnwireError
from turnwire.limits import Limits
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call, hang_up
from turnwire.wire.sse import encode_comment

HEARTBEAT = encode_comment("heartbeat")
RETRY = b"retry: 3000\n\n"
STOPPING = b"retry: 1000\n: the daemon is about to stop\n\n"
REVOKED = encode_comment("the credential is not valid any more")
FAREWELL_S = 0.5
"""What the last write may take. A reader with room takes it at once; without, it would hold up the shutdown."""

_PAUSE_EVERY = 4
"""Writes between two pauses. The loop complains of more to a socket that is lost."""
_LONG_WRITE = 64
"""So many frames in one write are as good as another write: they cost some tenths of a millisecond."""

_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

logger = logging.getLogger(__name__)


class End(Enum):
    """Why a stream is over."""

    DONE = auto()
    """There will be no more events, or the log cannot give them now."""
    LEFT = auto()
    STALLED = auto()
    STOPPING = auto()


class Writer:
    """The body of a response, as its pump sees it."""

    def __init__(self, send: Send, limits: Limits) -> None:
        self._send = send
        self._limits = limits
        self._now = asyncio.get_running_loop().time
        self._written_at = self._now()
        self._writing_since: float | None = None

    async def write(self, frames: bytes) -> None:
        """Write whole frames. Waits while the reader has no room."""
        self._writing_since = self._now()
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._written_at = self._now()
        self._writing_since = None

    async def beat(self) -> None:
        """Write a heartbeat."""
        await self.write(HEARTBEAT)

    @property
    def is_writing(self) -> bool:
        return self._writing_since is not None

    def remaining_s(self) -> float:
        """Until a heartbeat is due, or until the write that is under way has taken too long."""
        if self._writing_since is None:
            return self._written_at + self._limits.heartbeat_s - self._now()
        return self._writing_since + self._limits.write_timeout_s - self._now()


Pump: TypeAlias = Callable[[Writer], Awaitable[None]]


async def send_head(send: Send, headers: Mapping[str, str]) -> None:
    """Begin to answer with an event stream."""
    raw = [*_HEADERS, *((name.lower().encode(), value.encode()) for name, value in headers.items())]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def run_stream(call: Call, send: Send, headers: Mapping[str, str], pump: Pump) -> None:
    """Answer with an event stream that `pump` fills, until one of the two has an end."""
    await send_head(send, headers)
    await fill_stream(call, send, pump)


async def fill_stream(call: Call, send: Send, pump: Pump) -> None:
    """The same for an answer that has begun."""
    if call.request.method == "HEAD":
        await _finish(send, b"")
        return
    try:
        end = await _Watch(call, Writer(send, call.daemon.limits)).run(pump)
    except anyio.get_cancelled_exc_class():
        if call.credential.cancel_called:
            with anyio.CancelScope(shield=True):
                await _finish(send, REVOKED)
        raise
    if end is End.LEFT:
        return
    if end is End.STALLED:
        note_stalled(call.daemon, call.endpoint.path)
    elif await _finish(send, STOPPING if end is End.STOPPING else b""):
        return
    await hang_up(call.request)


class _Watch:
    """What can end a stream besides its pump."""

    def __init__(self, call: Call, writer: Writer) -> None:
        self.end = End.DONE
        self._call = call
        self._writer = writer
        self._limits = call.daemon.limits
        self._loop = asyncio.get_running_loop()
        self._tasks = anyio.create_task_group()
        self._timer: asyncio.Handle | None = None

    async def run(self, pump: Pump) -> End:
        """Let the pump write until one of the two has an end."""
        async with self._tasks as tasks:
            tasks.start_soon(self._listen)
            self._timer = self._loop.call_soon(self._tick)
            try:
                with self._call.daemon.stopping.calling(self._stop):
                    await _fill(pump, self._writer)
                tasks.cancel_scope.cancel()
            finally:
                self._timer.cancel()
        return self.end

    def _over(self, end: End) -> None:
        if not self._tasks.cancel_scope.cancel_called:
            self.end = end
            self._tasks.cancel_scope.cancel()

    async def _listen(self) -> None:
        await self._call.left()
        self._over(End.LEFT)

    def _stop(self) -> None:
        self._over(End.STOPPING)

    def _tick(self) -> None:
        wait_s = self._writer.remaining_s()
        if wait_s <= 0:
            if self._writer.is_writing:
                self._over(End.STALLED)
                return
            self._tasks.start_soon(self._writer.beat)
            wait_s = self._limits.heartbeat_s
        # Not later, because a write that begins right now is too late then.
        wait_s = min(wait_s, self._limits.write_timeout_s)
        self._timer = self._loop.call_later(wait_s, self._tick)


async def _fill(pump: Pump, writer: Writer) -> None:
    try:
        await pump(writer)
    except* SessionNotFound:
        pass  # deleted while it was read: there is nothing more to tell
    except* TurnwireError as errors:
        # The client comes back from its cursor; there is no other way to tell it than to end.
        codes = [each.code for each in errors.exceptions if isinstance(each, TurnwireError)]
        note_early_end(",".join(codes))


def note_stalled(daemon: Daemon, route: str) -> None:
    """A reader is given up."""
    daemon.metrics.subscriber_stalled()
    extra = {"event": "reader_stalled", "route": route}
    logger.info("a reader took nothing for too long and was let go", extra=extra)


def note_early_end(code: str) -> None:
    """A stream ends because the log cannot go on."""
    logger.warning("a stream ended early", extra={"event": "stream_ended_early", "code": code})


async def _finish(send: Send, last: bytes) -> bool:
    """End the response; false if the reader has no room for it."""
    with anyio.move_on_after(FAREWELL_S):
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return True
    return False


class Pace:
    """A writer's pace: it lets others run at every few writes, and sooner if they are long.

    A server takes frames without a pause as long as it has room, so without this a client that reads a long history
    would keep all others, and the news of its own end, waiting.
    """

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, frames: int) -> None:
        """Some frames were written in one go."""
        self._steps += 1 + frames // _LONG_WRITE
        if self._steps >= _PAUSE_EVERY:
            self._steps = 0
            await checkpoint()
