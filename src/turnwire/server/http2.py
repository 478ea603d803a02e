"""HTTP/2 on one connection: each of its streams is a request to the ASGI application.

The frames are read and written by the library h2; here is what a server adds. Bytes go both ways by flow control: a
body that the application does not read stops at the window, and an answer that the client does not read stops in
`send`. Never handles a WebSocket: clients open those over HTTP/1.1.

Bounds, beside those of h2:

B1. A connection without a request is closed after a while, pings or not.
B2. A head that does not end is cut at the limit for heads.
B3. There are so many requests at a time, also if the client takes each back at once.
B4. Frames that bring no request and no body come at a rate, however small they are.
B5. A client that makes us answer frames and reads none of it is dropped.
B6. An answer of which the client takes nothing is dropped, whatever else the connection does.
B7. What the client may set makes nothing here larger: neither frames nor the table of known headers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol, cast
from urllib.parse import unquote

import anyio
import hpack
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, FrameTooLargeError, ProtocolError
from h2.settings import SettingCodes, Settings
from starlette.types import ASGIApp, Message, Scope

from turnwire.server.bodies import Held
from turnwire.server.endpoint import ABORT, HTTP2_PREFACE

MOST_STREAMS = 1024
"""Requests at a time on one connection. An event stream is one, and a page may hold hundreds."""
WINDOW = 256 * 1024
"""Bytes of a body that may wait for the application."""
CONNECTION_WINDOW = 1024 * 1024
"""The same for all bodies of a connection: the largest one comes at some megabytes a second over a long line."""
UNREAD_BYTES = 1024 * 1024
"""Answers to frames that a client has not read. Bodies are no part of it: they wait for the client."""

AT_ONCE = 64 * 1024
"""Bytes of bodies that are gathered for one write; before that nobody hears that the transport is full."""
MOST_FRAME = 16_384
"""Bytes of a frame: what everybody may send without asking."""
HEADER_TABLE = 4096
"""Bytes of headers that are remembered to write them shorter: what everybody has without asking."""
REMEMBERED_STREAMS = 2048
"""Streams that are over and are still told from those that never were: twice what may be open."""

SMALL_FRAMES = 2048
"""Frames without a request or a body that may come in one go: one for each of the streams, and one more."""
SMALL_FRAME_RATE = 1000
"""The same a second."""
SMALL_DATA = 64
"""Bytes of a body in one frame, below which it costs more than it brings."""
FOR_EACH_SENT = 2
"""Frames that may come for each that is sent with a body: the stream and the connection are given room again."""
MOST_OWED = 16_384
"""Small frames that may come in one go of somebody who was sent thousands and reads them all at last."""

_FRAME_HEAD = 9
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _CONTINUATION = 0x0, 0x1, 0x4, 0x7, 0x9
_END_STREAM, _END_HEADERS = 0x1, 0x4
_NOT_IN_HTTP2 = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_DISCONNECT: Message = {"type": "http.disconnect"}

logger = logging.getLogger(__name__)


class Around(Protocol):
    """What a connection is part of."""

    app: ASGIApp

    @property
    def connections(self) -> set[Any]:
        """All connections of the server, which waits for them when it stops."""
        ...

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Of every answer."""
        ...

    header_bytes: int
    stall_s: float
    """How long an answer may be kept waiting by a client that takes nothing of it."""
    linger_s: float
    """What the rest of a body gets to come that nobody wants."""

    def waits(self, connection: object, drop: Callable[[], None]) -> None:
        """No request is under way on it now."""
        ...

    def works(self, connection: object) -> None:
        """A request is, or it is over."""
        ...

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something beside the connection."""
        ...


class _H2(H2Connection):
    MAX_CLOSED_STREAMS = REMEMBERED_STREAMS


class _Encoder(hpack.Encoder):
    """A client may want fewer headers remembered, not more."""

    @property
    def header_table_size(self) -> int:
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        self.header_table.maxsize = min(value, HEADER_TABLE)
        if self.header_table.resized:
            self.table_size_changes.append(self.header_table.maxsize)


class _Frames:
    """Cuts what comes into whole frames, and counts them: h2 would hold a frame of any length until it is whole."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        """Bytes of a head."""
        self._now = now
        self._has_begun = False
        self._rest = bytearray()
        self._head = 0
        self.is_in_head = False
        """Nothing but more of it may come."""
        self._left = float(SMALL_FRAMES)
        """Small frames that may come."""
        self._counted_at = now()
        self.has_goodbye = False
        """The client has said that it is about to leave."""

    @property
    def held(self) -> int:
        """Bytes of what has not ended: a frame, or a head in many frames."""
        return self._head + len(self._rest)

    def sent(self) -> None:
        """A frame with a body went out; the client answers it with room for more."""
        self._left = min(self._left + FOR_EACH_SENT, MOST_OWED)

    def take(self, data: bytes) -> bytes:
        """The frames for h2 that are whole with `data`. Raises `ProtocolError`."""
        self._rest += data
        if not self._has_begun and len(self._rest) < len(HTTP2_PREFACE):
            return b""
        # h2 looks at the preface.
        end = 0 if self._has_begun else len(HTTP2_PREFACE)
        self._has_begun = True
        now = self._now()
        if self._left < SMALL_FRAMES:
            self._left = min(self._left + (now - self._counted_at) * SMALL_FRAME_RATE, SMALL_FRAMES)
        self._counted_at = now
        while len(self._rest) >= end + _FRAME_HEAD:
            size = int.from_bytes(self._rest[end : end + 3], "big")
            if size > MOST_FRAME:
                raise FrameTooLargeError
            after = end + _FRAME_HEAD + size
            if len(self._rest) < after:
                break
            if self._rest[end + 3] == _GOAWAY and not self.is_in_head:
                # h2 would send nothing any more, though what was asked for is still waited for.
                self.has_goodbye = True
                del self._rest[end:after]
                continue
            self._count(self._rest[end + 3], self._rest[end + 4], size)
            end = after
        whole = bytes(self._rest[:end])
        del self._rest[:end]
        return whole

    def _count(self, kind: int, flags: int, size: int) -> None:
        if kind in (_HEADERS, _CONTINUATION):
            self.is_in_head = not flags & _END_HEADERS
            self._head = self._head + size if self.is_in_head else 0
            if self._head > self._most:
                raise DenialOfServiceError
        elif kind != _DATA or (size < SMALL_DATA and not flags & _END_STREAM):
            # Settings may be about every stream that is open.
            self._left -= 16 if kind == _SETTINGS else 1
            if self._left < 0:
                raise DenialOfServiceError


class Http2Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, around: Around, held: Held, *, first_s: float, idle_s: float) -> None:
        """`held` counts what is not whole. A first request comes within `first_s`, a further one in `idle_s`."""
        self._around = around
        self._held = held
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._frames = _Frames(2 * around.header_bytes, self._loop.time)
        self._streams: dict[int, _Stream] = {}
        self._transport: asyncio.Transport | None = None
        self._is_stopping = False
        self._flushing: asyncio.Handle | None = None
        self._unwritten = 0
        """Bytes of bodies that the transport does not have yet."""
        self._silent: asyncio.TimerHandle | None = self._loop.call_later(first_s, self._close)
        self._has_room = True
        """The transport takes more."""
        self._unsent: dict[_Stream, None] = {}
        """Streams with something to send that wait for the connection only, the longest first."""
        self.h2 = _H2(H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False))
        self.h2.encoder = _Encoder()
        self.h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: around.header_bytes,
            },
        )
        # Above the limit, so that the application refuses what is somewhat too large in its own words.
        self.h2.decoder.max_header_list_size = 2 * around.header_bytes

    # -- the transport -------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection is made before anything comes"
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._around.connections.add(self)
        self._around.waits(self, self.transport.abort)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._around.connections.discard(self)
        self._held.release()
        self._stop_waiting()
        for stream in list(self._streams.values()):
            stream.lose()

    def pause_writing(self) -> None:
        self._has_room = False

    def resume_writing(self) -> None:
        self._has_room = True
        self._fill()

    def data_received(self, data: bytes) -> None:
        try:
            whole = self._frames.take(data)
            if whole and not self._frames.is_in_head:
                # Who goes on with a body is not the one who holds something back for the longest.
                self._held.release()
            for event in self.h2.receive_data(whole):
                self._take(event)
        except ProtocolError as error:
            logger.info("a peer broke HTTP/2: %s", type(error).__name__, extra={"event": "http2_broken"})
            self._close(error.error_code)
            return
        self._held.hold(self._frames.held)
        self._fill()
        self._flush()
        if self._frames.has_goodbye:
            self.shutdown()

    def fill(self, stream: _Stream) -> None:
        """A stream has something to send, and perhaps room for it."""
        self._unsent[stream] = None
        self._fill()

    def _fill(self) -> None:
        """Send what waits, a frame of each stream in turn, as far as there is room."""
        while self._unsent and self._has_room and not self.transport.is_closing():
            if self.h2.outbound_flow_control_window <= 0:
                return
            stream = next(iter(self._unsent))
            del self._unsent[stream]
            if stream.send_frame():
                self._unsent[stream] = None

    def sent(self, size: int) -> None:
        """A frame with so much of a body is to be written."""
        self._frames.sent()
        self._unwritten += size
        if self._unwritten > AT_ONCE:
            self._flush()
        else:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write what h2 has to say, all of this round in one go."""
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._unwritten = 0
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        output = self.h2.data_to_send()
        if output and not self.transport.is_closing():
            self.transport.write(output)
            if self.transport.get_write_buffer_size() > UNREAD_BYTES:
                self.transport.abort()

    # -- its end -------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Take no further request; close after the last one. Called by the server that stops."""
        self._is_stopping = True
        if not self._streams:
            self._close()

    def _close(self, error: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        if self.transport.is_closing():
            return
        # h2 has said so itself if it was the one that found out.
        if self.h2.state_machine.state is not ConnectionState.CLOSED:
            self.h2.close_connection(error)
        self._unsent.clear()
        self._flush()
        self.transport.close()
        for stream in list(self._streams.values()):
            stream.lose()

    def _stop_waiting(self) -> None:
        self._around.works(self)
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def over(self, stream: _Stream) -> None:
        """The application is done with a stream."""
        self._streams.pop(stream.stream_id, None)
        self._unsent.pop(stream, None)
        self.flush_soon()
        if self._streams or self.transport.is_closing():
            return
        if self._is_stopping:
            self._close()
        else:
            self._around.waits(self, self.transport.abort)
            self._silent = self._loop.call_later(self._idle_s, self._close)

    # -- what comes ----------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(stream_id), headers=headers):
                self._begin(stream_id, [(bytes(name), bytes(value)) for name, value in headers or ()])
            case DataReceived(stream_id=int(stream_id), flow_controlled_length=int(size), data=data):
                stream = self._streams.get(stream_id)
                if stream is None:
                    self.acknowledge(stream_id, size)
                else:
                    stream.feed(data or b"", size)
            case StreamEnded(stream_id=int(stream_id)) if stream_id in self._streams:
                self._streams[stream_id].end()
            case StreamReset(stream_id=int(stream_id)) if stream_id in self._streams:
                self._streams[stream_id].lose()
            case WindowUpdated(stream_id=int(stream_id)) if stream_id in self._streams:
                self._unsent[self._streams[stream_id]] = None
            case RemoteSettingsChanged():
                # The windows of all streams may be wider now.
                self._unsent.update(dict.fromkeys(self._streams.values()))
            case _:
                pass  # pings are answered by h2; trailers are no headers, and nobody asks for them

    def _begin(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        # Also those that the client took back, and that are still under way here.
        if self._is_stopping or len(self._streams) >= MOST_STREAMS:
            self.h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._stop_waiting()
        stream = self._streams[stream_id] = _Stream(self, stream_id)
        stream.scope = self._scope(headers) | {"extensions": {ABORT: {"call": stream.abort}}}
        self._around.start(stream.run)

    def _scope(self, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        pseudo = {name: value for name, value in headers if name.startswith(b":")}
        plain = [each for each in headers if not each[0].startswith(b":")]
        authority = pseudo.get(b":authority")
        if authority is not None and (b"host", authority) not in plain:
            # Two names for us that differ are two hosts, which the application refuses.
            plain.insert(0, (b"host", authority))
        raw_path, _, query = pseudo.get(b":path", b"").partition(b"?")
        info = self.transport.get_extra_info
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "server": (info("sockname") or ())[:2] or None,
            "client": (info("peername") or ())[:2] or None,
            "scheme": "https" if info("sslcontext") else "http",
            "method": pseudo[b":method"].decode("latin-1"),
            "root_path": "",
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": plain,
            "state": {},
        }

    # -- for the streams -----------------------------------------------------------------------------------

    @property
    def app(self) -> ASGIApp:
        return self._around.app

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self._around.default_headers

    @property
    def stall_s(self) -> float:
        return self._around.stall_s

    def later(self, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call when the rest of a body that nobody wants has had its time to come."""
        return self._loop.call_later(self._around.linger_s, call)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """So much of a body has been taken: as much again may come."""
        if size and not self.transport.is_closing():
            self.h2.acknowledge_received_data(size, stream_id)
            self.flush_soon()


class _Body(Enum):
    """How far the body of a request is."""

    COMING = auto()
    WHOLE = auto()
    TAKEN = auto()
    """The application knows that it is whole."""


class _Answer(Enum):
    """How far the answer to a request is."""

    OWED = auto()
    BEGUN = auto()
    ENDING = auto()
    """The application has given all of it."""
    WHOLE = auto()


class _Stream:
    """One request and its answer."""

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.stream_id = stream_id
        self.scope: Scope = {}
        self._connection = connection
        self._coming = bytearray()
        self._unacknowledged = 0
        self._body = _Body.COMING
        self._going = bytearray()
        """What the application has written and the client has no room for."""
        self._answer = _Answer.OWED
        self._is_lost = False
        """The client took it back, or is gone, or the application dropped it."""
        self._changed: anyio.Event | None = None
        """What somebody waits for; most requests wait for nothing."""
        self._lingering: asyncio.TimerHandle | None = None
        """The answer is whole, and the rest of the body has a moment to come."""

    async def run(self) -> None:
        """Let the application answer. Raises nothing."""
        try:
            await self._connection.app(self.scope, self.receive, self.send)
            if self._answer is not _Answer.WHOLE and not self._is_lost:
                logger.error("a request was left without a whole answer", extra={"event": "answer_unfinished"})
        except Exception:  # whatever it is, the other streams go on
            logger.exception("the application failed", extra={"event": "application_failed"})
        finally:
            if self._answer is _Answer.WHOLE and self._body is _Body.COMING and not self._is_lost:
                # Some clients forget the answer if they are told at once to send no more of the body.
                self._coming.clear()
                self._connection.acknowledge(self.stream_id, self._taken())
                self._lingering = self._connection.later(self._leave)
            else:
                self._leave()

    def _leave(self) -> None:
        """The stream is over: what is left of its body is not wanted, or its answer cannot be had."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self.abort(ErrorCodes.NO_ERROR if self._answer is _Answer.WHOLE else ErrorCodes.INTERNAL_ERROR)
        self._connection.acknowledge(self.stream_id, self._taken())
        self._connection.over(self)

    # -- from the connection -------------------------------------------------------------------------------

    def feed(self, data: bytes, size: int) -> None:
        """A piece of the body, which takes so much of the window."""
        if self._is_lost or self._answer is _Answer.WHOLE:
            self._connection.acknowledge(self.stream_id, size)
            return
        self._coming += data
        self._unacknowledged += size
        self._wake()

    def end(self) -> None:
        self._body = _Body.WHOLE
        self._wake()
        if self._lingering is not None:
            self._leave()

    def lose(self) -> None:
        """The client is not there any more."""
        self._is_lost = True
        self._coming.clear()
        self._going.clear()
        self._wake()
        if self._lingering is not None:
            self._leave()

    def send_frame(self) -> bool:
        """Send a frame of the answer; false if there is no more of it, or no room until the client gives some."""
        if self._is_lost or not self._going:
            return False
        h2 = self._connection.h2
        size = min(h2.local_flow_control_window(self.stream_id), MOST_FRAME, len(self._going))
        if size <= 0:
            return False
        is_last = self._answer is _Answer.ENDING and size == len(self._going)
        h2.send_data(self.stream_id, bytes(self._going[:size]), end_stream=is_last)
        del self._going[:size]
        if is_last:
            self._answer = _Answer.WHOLE
        self._connection.sent(size)
        self._wake()
        return bool(self._going)

    def abort(self, error: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Drop the answer where it stands, and what is still to come of the request. Nothing if both are whole."""
        is_over = self._answer is _Answer.WHOLE and self._body is not _Body.COMING
        if not self._is_lost and not is_over and not self._connection.transport.is_closing():
            with suppress(ProtocolError):  # nothing is left to reset if h2 has closed it by itself
                self._connection.h2.reset_stream(self.stream_id, error)
            self._connection.flush_soon()
        self.lose()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _change(self) -> None:
        """Return when anything has happened to the stream."""
        self._changed = self._changed or anyio.Event()
        await self._changed.wait()

    def _taken(self) -> int:
        taken, self._unacknowledged = self._unacknowledged, 0
        return taken

    # -- for the application -------------------------------------------------------------------------------

    async def receive(self) -> Message:
        while not self._is_lost and self._answer is not _Answer.WHOLE:
            if self._coming or self._body is _Body.WHOLE:
                body = bytes(self._coming)
                self._coming.clear()
                if self._body is _Body.WHOLE:
                    self._body = _Body.TAKEN
                self._connection.acknowledge(self.stream_id, self._taken())
                return {"type": "http.request", "body": body, "more_body": self._body is _Body.COMING}
            await self._change()
        return _DISCONNECT

    async def send(self, message: Message) -> None:
        """Write a head, or a piece of the body. Returns when the client has room for all that was written.

        What is written goes out whole and in order, also if the caller waits for it no longer.
        """
        if self._is_lost:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
            return
        self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        while self._going:
            with anyio.move_on_after(self._connection.stall_s) as waiting:
                await self._change()
            if waiting.cancelled_caught:
                extra = {"event": "answer_stalled"}
                logger.info("a client took nothing of its answer for too long, and it was dropped", extra=extra)
                self.abort()

    def _begin(self, status: int, headers: Any) -> None:
        assert self._answer is _Answer.OWED, "an answer begins once"
        self._answer = _Answer.BEGUN
        told = [(b":status", str(status).encode()), *self._connection.default_headers]
        told += [(name, value) for name, value in headers if name not in _NOT_IN_HTTP2]
        self._connection.h2.send_headers(self.stream_id, told)
        self._connection.flush_soon()

    def _write(self, body: bytes, *, is_last: bool) -> None:
        assert self._answer is _Answer.BEGUN, "a body comes behind its head, and nothing behind its last piece"
        if self.scope["method"] != "HEAD":
            self._going += body
        if is_last:
            self._answer = _Answer.ENDING
        if self._going:
            self._connection.fill(self)
        elif is_last:
            self._connection.h2.end_stream(self.stream_id)
            self._connection.flush_soon()
            self._answer = _Answer.WHOLE
            self._wake()
