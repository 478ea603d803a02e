"""One open SSE response: a sink that never blocks, with heartbeats and one way to end for each cause.

`serve_stream` answers a request with an `EventStream`. Where the server detaches answers, the request ends with
that, and the stream is an object without a task. Elsewhere the request's task sends the body. Subclasses fill the
stream: `SessionStream` and `ManyStream` from the fan-outs of sessions, `PumpedStream` from a coroutine.

Theory of operation
-------------------
Nothing is queued here. The owner of a stream checks `is_full` before it writes; when the client accepts no more, it
calls `wait_for_room`, and `on_room` is called once there is room. A timer shared by all streams writes a heartbeat
after a quiet time, and drops a stream that has waited for room for `write_timeout_s`. Owner and timer write whole
frames, so the order between a heartbeat and a frame does not matter.

    W1  Frames are written whole, in the owner's order. Only the network can cut a client between two bytes; its
        cursor is the last id that it has received.
    W2  A stalled stream holds only the server's buffer, whatever is published meanwhile.
    W3  The response ends with its terminator, unless the client has disconnected or accepts nothing.
    W4  A stream ends once, whatever the cause (its source, its client, its credential, the daemon): `on_end` is
        called once, and nothing is written afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from starlette.types import Send

from turnwire.errors import SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.projections.envelope import stream_frame
from turnwire.server.connections import Holder, OpenAnswer, chunk, detached, unchunked
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call
from turnwire.server.readers.fanout import Fanout, Lost, Reader, SharedPage, note_early_end
from turnwire.wire.sse import encode_comment

HEARTBEAT: Final = encode_comment("heartbeat")
RETRY: Final = b"retry: 3000\n\n"
STOPPING: Final = b"retry: 1000\n: the daemon is about to stop\n\n"
REVOKED: Final = encode_comment("the credential is not valid any more")
FAREWELL_S: Final = 0.5
"""Timeout of the last write. A client that reads gets it at once; one that stalls must not delay the shutdown."""

_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_HEARTBEAT_CHUNK: Final = chunk(HEARTBEAT)

logger = logging.getLogger(__name__)


class EventStream:
    """The body of an SSE response. There are thousands, so each is small.

    Implements `connections.Holder`, `deadlines.Timed` and `tokens.Running`.
    """

    __slots__ = ("__weakref__", "_answer", "_full_since", "_last_words", "_written_at", "daemon", "path", "who")

    def __init__(self, call: Call, answer: OpenAnswer) -> None:
        self.daemon: Daemon = call.daemon
        self.who = call.who
        self.path = call.endpoint.path
        self._answer: OpenAnswer | None = answer
        """None once the response is over."""
        self._last_words: bytes | None = None
        """Set once the stream ends."""
        self._full_since: float | None = None
        """The time since when the owner waits for room; None if it does not wait."""
        self._written_at = 0.0

    # -- for subclasses ------------------------------------------------------------------------------------

    def on_room(self) -> None:
        """Called once there is room, if `wait_for_room` was called."""

    def on_end(self) -> None:
        """Called once. Nothing can be written any more."""

    # -- writing -------------------------------------------------------------------------------------------

    def open(self, opening: bytes) -> None:
        """Write the first frames and mark the stream as open. It may end at once."""
        daemon = self.daemon
        assert self._answer is not None, "a stream opens once"
        self._answer.holder = self
        self._written_at = _now()
        if opening:
            self.write(opening)
        daemon.deadlines.add(self, self._written_at + daemon.limits.heartbeat_s)
        daemon.tokens.enter(self.who, self)
        if self.is_open:
            daemon.stopping.add(self._stop)

    @property
    def is_open(self) -> bool:
        """True if frames can be written."""
        return self._answer is not None and self._last_words is None

    @property
    def is_full(self) -> bool:
        """True if the client reads more slowly than we write."""
        return self._answer is not None and self._answer.is_full

    def write(self, frames: bytes, chunked: bytes | None = None) -> None:
        """Write whole frames. `chunked`: the same frames as an HTTP chunk, if several streams share it."""
        assert self._answer is not None, "an open stream has an answer"
        self._answer.write(chunk(frames) if chunked is None else chunked)
        self._written_at = _now()

    def wait_for_room(self) -> None:
        """Request `on_room` when the client accepts more. The stream is dropped if it does not in time."""
        if self._full_since is None:
            self._full_since = _now()

    def end(self, last_words: bytes = b"") -> None:
        """End the response. A client that accepts nothing has a moment to accept the last frames."""
        if not self.is_open:
            return
        self._last_words = last_words
        if self.is_full:
            asyncio.get_running_loop().call_later(FAREWELL_S, self.drop)
        else:
            self._say_last_words()
        self.on_end()

    def drop(self) -> None:
        """Drop the connection with all unsent data."""
        if self._answer is not None:
            self._answer.drop()
            self._close()

    # -- callbacks -----------------------------------------------------------------------------------------

    def has_room(self) -> None:
        self._full_since = None
        if self._last_words is not None:
            self._say_last_words()
        else:
            self.on_room()

    def left(self) -> None:
        self._close()

    def cancel(self) -> None:
        """End the stream, because the credential has ended."""
        self.end(REVOKED)

    def _stop(self) -> None:
        self.end(STOPPING)

    def tick(self, now: float) -> float | None:
        """Write a heartbeat if one is due, or drop a stalled stream."""
        answer = self._answer
        if answer is None or self._last_words is not None:
            return None
        limits = self.daemon.limits
        if self._full_since is None and now >= self._written_at + limits.heartbeat_s:
            if answer.is_full:
                self._full_since = now
            else:
                self.write(HEARTBEAT, _HEARTBEAT_CHUNK)
        if self._full_since is None:
            # Not later: a wait for room that begins right now must not last too long.
            return min(self._written_at + limits.heartbeat_s, now + limits.write_timeout_s)
        if now < self._full_since + limits.write_timeout_s:
            return self._full_since + limits.write_timeout_s
        self.daemon.metrics.subscriber_stalled()
        extra = {"event": "reader_stalled", "route": self.path}
        logger.info("a reader accepted nothing for too long and was dropped", extra=extra)
        self.drop()
        return None

    def _say_last_words(self) -> None:
        if self._answer is not None:
            self._answer.end(chunk(self._last_words or b""))
            self._close()

    def _close(self) -> None:
        if self._answer is None:
            return
        is_ended = self._last_words is not None
        # Its next deadline still refers to it, and must not keep the connection alive.
        self._answer.holder = self._answer = None
        self.daemon.tokens.leave(self.who, self)
        self.daemon.stopping.discard(self._stop)
        if not is_ended:
            self.on_end()


def _now() -> float:
    return asyncio.get_running_loop().time()


# -- answering a request -------------------------------------------------------------------------------------


async def serve_stream(
    call: Call, send: Send, headers: Mapping[str, str], start: Callable[[OpenAnswer], object]
) -> None:
    """Answer with an event stream. `start` opens it on the answer once the head is written."""
    await send_head(send, headers)
    if call.request.method == "HEAD":
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    answer = detached(call.request.scope)
    if answer is not None:
        start(answer)
        return
    sent = _SentAnswer(call, send)
    start(sent)
    await sent.run()


async def send_head(send: Send, headers: Mapping[str, str]) -> None:
    """Send the head of the response."""
    raw = [*_HEADERS, *((name.lower().encode(), value.encode()) for name, value in headers.items())]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


class _SentAnswer:
    """An answer that the server cannot detach and that the request's task sends. Implements `OpenAnswer`."""

    def __init__(self, call: Call, send: Send) -> None:
        self.holder: Holder | None = None
        self._call = call
        self._send = send
        self._unsent = b""
        self._is_sending = False
        self._is_ended = False
        self._changed = asyncio.Event()
        self._scope = anyio.CancelScope()

    @property
    def is_full(self) -> bool:
        return self._is_sending or bool(self._unsent)

    def write(self, chunk: bytes) -> None:
        self._unsent += unchunked(chunk)
        self._changed.set()

    def end(self, chunk: bytes) -> None:
        self.write(chunk)
        self._is_ended = True

    def drop(self) -> None:
        self._scope.cancel()

    async def run(self) -> None:
        """Send written data until the end, or until the client disconnects.

        A dropped stream is not ended: the request returns, and the server drops the connection.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_client)
            try:
                with self._scope:
                    await self._send_all()
            except anyio.get_cancelled_exc_class():
                # If the credential has ended, the stream has last frames to write.
                self._make_room()
                if self._is_ended:
                    with anyio.move_on_after(FAREWELL_S, shield=True):
                        await self._finish()
                raise
            finally:
                self._leave()
            tasks.cancel_scope.cancel()

    async def _watch_client(self) -> None:
        await self._call.left()
        self._leave()
        self._scope.cancel()

    def _leave(self) -> None:
        if self.holder is not None:
            self.holder.left()

    def _make_room(self) -> None:
        self._is_sending = False
        if self.holder is not None:
            self.holder.has_room()

    async def _send_all(self) -> None:
        while not self._is_ended:
            await self._changed.wait()
            self._changed.clear()
            if not self._is_ended:
                body, self._unsent, self._is_sending = self._unsent, b"", True
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
                self._make_room()
        await self._finish()

    async def _finish(self) -> None:
        body, self._unsent = self._unsent, b""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


# -- a stream that a coroutine fills -------------------------------------------------------------------------


class PumpedStream(EventStream):
    """A stream that a coroutine writes to."""

    __slots__ = ("_room", "scope")

    def __init__(self, call: Call, answer: OpenAnswer) -> None:
        super().__init__(call, answer)
        self.scope = anyio.CancelScope()
        """Cancelled when the stream ends."""
        self._room = asyncio.Event()

    async def send(self, frames: bytes) -> None:
        """Write whole frames, then wait until the client accepts more. Lets other tasks run."""
        self.write(frames)
        while self.is_full:
            self._room.clear()
            self.wait_for_room()
            await self._room.wait()
        await checkpoint()

    def on_room(self) -> None:
        self._room.set()

    def on_end(self) -> None:
        self.scope.cancel()


Pump: TypeAlias = Callable[[PumpedStream], Awaitable[None]]


async def run_stream(call: Call, send: Send, headers: Mapping[str, str], pump: Pump) -> None:
    """Answer with an event stream that `pump` fills in a task of the daemon, until one of the two ends."""

    def start(answer: OpenAnswer) -> None:
        stream = PumpedStream(call, answer)
        stream.open(b"")
        call.daemon.tasks.start_soon(_fill, stream, pump)

    await serve_stream(call, send, headers, start)


async def fill_stream(call: Call, send: Send, pump: Pump) -> None:
    """Fill an event stream whose head is sent, within the request."""
    answer = _SentAnswer(call, send)
    stream = PumpedStream(call, answer)
    stream.open(b"")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_fill, stream, pump)
        await answer.run()


async def _fill(stream: PumpedStream, pump: Pump) -> None:
    try:
        with stream.scope:
            await pump(stream)
    except* SessionNotFound:
        pass  # deleted during the read
    except* TurnwireError as errors:
        note_early_end(",".join(each.code for each in errors.exceptions if isinstance(each, TurnwireError)))
    except* Exception:  # other streams must continue
        logger.exception("an event stream failed", extra={"event": "stream_failed"})
        stream.drop()
    finally:
        stream.end()


# -- the stream of one session -------------------------------------------------------------------------------


class SessionStream(EventStream):
    """The events of one session, with `replay_complete` after those that were stored when the client connected.

    Implements `fanout.Sink` and `metrics.OpenStream`.
    """

    __slots__ = ("_client_id", "_reader", "_replay_to", "_replayed")

    def __init__(
        self, call: Call, answer: OpenAnswer, fanout: Fanout, after: Position, *, replay_to: int | None
    ) -> None:
        """`replay_to`: the offset at which the replay is complete; None if the client has no cursor."""
        super().__init__(call, answer)
        self._client_id = call.client_id
        self._reader = Reader(fanout, self, after)
        self._replay_to = replay_to
        self._replayed = 0

    def begin(self, opening: Sequence[bytes]) -> None:
        """Write the frames before the first event, and follow the session."""
        reader = self._reader
        self.daemon.clients.stream_opened(self.session_id, self.who, self._client_id)
        # An id alone is no event, but a client that is disconnected before the first event resumes with it.
        marker = self._replay_end(reader.offset)
        self.daemon.metrics.subscribers.add(self)
        reader.enter()
        self.open(b"".join([RETRY, *opening, b"id: %d\n\n" % reader.offset, *marker]))

    @property
    def session_id(self) -> SessionId:
        return self._reader.fanout.session_id

    @property
    def offset(self) -> int:
        return self._reader.offset

    def on_room(self) -> None:
        self._reader.has_room()

    def on_end(self) -> None:
        self._reader.leave()
        self.daemon.metrics.subscribers.discard(self)
        self.daemon.clients.stream_ended(self.session_id, self.who, self._client_id)

    def await_room(self, reader: Reader) -> None:
        self.wait_for_room()

    def write_page(self, reader: Reader, page: SharedPage) -> int:
        if self._replay_to is None:
            self.write(b"", page.chunked)
            return len(page.chunked)
        place = max(len(page.frames) - max(page.offset - self._replay_to, 0), 0)
        self._replayed += place
        frames = b"".join([*page.frames[:place], *self._replay_end(page.offset), *page.frames[place:]])
        self.write(frames)
        return len(frames)

    def write_lost(self, reader: Reader, lost: Lost, after: Position) -> None:
        self.write(b"".join([lost.frame(self.session_id), *self._replay_end(after.offset)]))

    def reader_ended(self, reader: Reader, error: TurnwireError | None) -> None:
        self.end()

    def _replay_end(self, reached: int) -> list[bytes]:
        """Return `replay_complete` if the reader has now reached the log's head at the time of connecting."""
        last = self._replay_to
        if last is None or reached < last:
            return []
        self._replay_to = None
        data: dict[str, Any] = {"sessionId": self.session_id, "replayedCount": self._replayed}
        if self._replayed:
            data["lastReplayedEventId"] = last
        return [stream_frame("replay_complete", data)]
