"""One client connection over HTTP/1.1, on the parser of httptools: requests one after the other, each an ASGI call.

A request whose head is complete is an `Exchange`, run by a task. Pipelined requests wait in `_queued` and reading
pauses meanwhile. The response to a stream may be detached from its task (`OpenAnswer`); then `_open` writes
it. A WebSocket upgrade hands the transport over to a `WebSocketConnection`.

Bounds that protect the daemon from strangers:

- A head has a size (`limits.header_bytes`) and a time (`HEAD_S`). Trailers count as head and are dropped: they are
  not headers. Unfinished heads of all connections are bounded together (`Connections.heads`).
- After an early answer the rest of the body has `LINGER_S` to arrive, so that the client reads the answer.
- Up to `MAX_PIPELINED` requests wait. Each costs forty times the memory of its bytes.
- A connection counts as idle until a request is complete, so half-sent ones do not use up the file descriptors.
- A client that accepts nothing is dropped by the kernel after `limits.write_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Message

from turnwire.server.connections import DETACH, Connections, Holder
from turnwire.server.websocket_connection import WebSocketConnection

KEEP_ALIVE_S = 75
"""Idle timeout. Longer than the 60 s of common proxies, so that the proxy closes an idle connection first."""
HEAD_S = 30.0
"""Timeout for the head of a request. Slow lines need a second or two."""
LINGER_S = 2.0
"""Time to receive the rest of a rejected body: many clients read the answer only after sending all of it."""

MAX_PIPELINED = 128
"""Requests that wait for the one before them. With more the connection is closed after the last of these."""

_READ_AHEAD = 65_536
"""Bytes of a body that are buffered before the application asks for them."""
_JOINED = 65_536
"""A body up to this size is copied behind its head; that costs less than a second write."""
_LAST_CHUNK = b"0\r\n\r\n"
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that would end a header value, or start another header."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FAILED = b"the request failed; the daemon's log says why"
_ASGI = {"version": "3.0", "spec_version": "2.3"}

logger = logging.getLogger(__name__)


@cache
def _status_line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


class _Place(Enum):
    """Part of a request that a connection is receiving."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()


class HttpConnection(asyncio.Protocol):
    """One connection. There are thousands of these, so it has slots."""

    __slots__ = (
        "_client",
        "_end_at",
        "_expects_continue",
        "_had_body",
        "_head_bytes",
        "_headers",
        "_held",
        "_is_refused",
        "_open",
        "_parser",
        "_place",
        "_queued",
        "_receiving",
        "_room",
        "_running",
        "_server",
        "_timer",
        "_upgrade",
        "_url",
        "shared",
        "transport",
    )

    def __init__(self, shared: Connections) -> None:
        self.shared = shared
        self.transport = cast("asyncio.Transport", None)
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._place = _Place.HEAD
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._head_bytes = 0
        self._had_body = False
        """True if the last read contained a part of a body."""
        self._is_refused = False
        """True if nothing more is read, because the last input was not a request."""
        self._upgrade: dict[str, Any] | None = None
        """Scope of the WebSocket that the last head requested."""
        self._end_at: float | None = None
        """The time when the connection times out; None without a timeout."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer that checks `_end_at` or earlier. Not rescheduled per request, which would cost more."""
        self._held = shared.heads.holder(self.abort)
        self._running: Exchange | None = None
        self._receiving: Exchange | None = None
        """Request whose body is being received: the running one or the last queued one."""
        self._queued: list[Exchange] = []
        self._open: _OpenAnswer | None = None
        self._room: asyncio.Event | None = None
        """Set when the client reads again; None while it reads."""

    @property
    def is_busy(self) -> bool:
        return self._running is not None or self._open is not None

    @property
    def is_full(self) -> bool:
        """True if the client reads more slowly than we write."""
        return self._room is not None

    # -- the transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self.shared.open.add(self)
        self.shared.idle(self, self.abort)
        self._end_after(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self.resume_writing()
        self._parser = None
        self._queued.clear()
        if self._receiving is not None:
            self._receiving.disconnect()
        if self._running is not None:
            self._running.disconnect()
        if self._open is not None:
            self._open.lost()
            self._open = None
        self.shared.closed(self)

    def pause_writing(self) -> None:
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
        if self._open is not None and self._open.holder is not None and not self.transport.is_closing():
            self._open.holder.has_room()

    async def drained(self) -> None:
        """Wait until the client reads, or has disconnected."""
        while self._room is not None:
            await self._room.wait()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
            # A request after one with `Connection: close` must not make the earlier one fail.
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        before, self._had_body = self._place, False
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            self._end_http(data[end.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not isinstance(error.__context__, httptools.HttpParserError | ValueError | None):
                logger.error("a request could not be started", exc_info=error.__context__)
            self._refuse(_BAD_REQUEST)
            return
        if self._place is _Place.HEAD and self._end_at is None:
            self._end_after(HEAD_S)
        # A head that begins in the same read as the end of a body is counted from the next read on.
        if self._place is not _Place.BETWEEN and before in (self._place, _Place.BETWEEN) and not self._had_body:
            self._count(len(data))

    def abort(self) -> None:
        self.transport.abort()

    def shut_down(self) -> None:
        if self._open is not None:
            self._open.keep_alive = False
        elif self._running is not None:
            self._running.keep_alive = False
        else:
            self.transport.close()

    # -- timeouts --------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Remove the timeout and the idle mark, including the timer's references."""
        self._end_at = None
        if self._held.size:
            self._held.release()
        self.shared.busy(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self) -> None:
        """Mark the connection as idle and start the idle timeout."""
        self.shared.idle(self, self.abort)
        self._end_after(KEEP_ALIVE_S)

    def _end_after(self, seconds: float) -> None:
        """Time the connection out after `seconds`, unless something happens before."""
        self._end_at = self.shared.loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._end_at:
                return
            self._timer.cancel()
        self._timer = self.shared.loop.call_at(self._end_at, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._end_at is None:
            return
        if self.shared.loop.time() < self._end_at:
            self._timer = self.shared.loop.call_at(self._end_at, self._check_time)
        else:
            self.abort()

    # -- the parser ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        # `data_received` starts the timeout if the head is not complete after this read.
        self._place, self._head_bytes, self._end_at = _Place.HEAD, 0, None
        self._url, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._place is _Place.BODY:
            self._count(len(name) + len(value))
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, shared = self._parser, self.shared
        assert parser is not None, "the parser calls this"
        self._place, self._end_at = _Place.BODY, None
        if self._held.size:
            self._held.release()
        if len(self._queued) == MAX_PIPELINED:
            raise httptools.HttpParserError("too many pipelined requests")
        url = httptools.parse_url(self._url)
        if not self._url.startswith(b"/"):
            self._name_host(url)
        path, version = url.path.decode("ascii"), parser.get_http_version()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": shared.scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }
        is_other = parser.should_upgrade()
        if is_other and (b"upgrade", b"websocket") in [(name, value.lower()) for name, value in self._headers]:
            self._upgrade = scope
            return
        scope["extensions"] = {DETACH: {"call": self._detach}}
        # An upgrade to another protocol is declined by answering the request (RFC 9110 §7.8).
        keep_alive = version != "1.0" and parser.should_keep_alive() and not is_other
        exchange = Exchange(self, scope, keep_alive=keep_alive, expects_continue=self._expects_continue)
        self._receiving = exchange
        if self.is_busy:
            self.transport.pause_reading()
            self._queued.append(exchange)
        else:
            self._start(exchange)

    def _name_host(self, url: Any) -> None:
        """Add the host of the request line as a header. The application rejects two different hosts."""
        if url.host:
            named = b"%b:%d" % (url.host, url.port) if url.port else url.host
            if (b"host", named) not in self._headers:
                self._headers.insert(0, (b"host", named))

    def on_body(self, body: bytes) -> None:
        # Reset: of a chunked body only data after the last chunk can be trailers.
        self._had_body, self._head_bytes = True, 0
        if self._receiving is not None:
            self._receiving.add(body)

    def on_message_complete(self) -> None:
        self._place = _Place.BETWEEN
        exchange, self._receiving = self._receiving, None
        if self._is_refused or exchange is None:
            return
        self.shared.busy(self)
        exchange.complete_body()
        if exchange.is_complete and not self.is_busy:
            self._rest()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._place is _Place.HEAD:
            self._held.add(size)
        if self._head_bytes > self.shared.limits.header_bytes and not self._is_refused:
            self._refuse(_TOO_LARGE)

    def _refuse(self, answer: bytes) -> None:
        """Stop reading, because the input is not a request. Earlier requests are answered first."""
        self._is_refused = True
        broken = self._receiving
        if broken is None and self.is_busy:
            last = self._queued[-1] if self._queued else self._open or self._running
            assert last is not None, "it is busy"
            last.keep_alive = False
        elif broken is not None and (broken is not self._running or broken.is_started):
            self.abort()
        elif not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _end_http(self, rest: bytes) -> None:
        """Continue as the head of an upgrade requests. `rest` is the data after it."""
        scope, self._upgrade = self._upgrade, None
        self._parser = None
        if scope is None:
            self._is_refused = True  # the request is answered, and the connection is closed
        elif self.is_busy:
            self._refuse(_BAD_REQUEST)
        else:
            self._leave()
            self.shared.open.discard(self)
            WebSocketConnection(self.shared, self.transport, scope).begin(rest)

    # -- requests --------------------------------------------------------------------------------------------

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        self.shared.start(exchange.run())

    def finished(self) -> None:
        """Start the next request, if there is one, because the response is written."""
        self._running = None
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self._receiving is not None or not self._queued:
            self.shared.idle(self, self.abort)
        if self._queued:
            self._start(self._queued.pop(0))
        elif self._place is _Place.BODY:
            self._end_after(LINGER_S)
        elif self._place is _Place.BETWEEN:
            self._end_after(KEEP_ALIVE_S)

    def _detach(self) -> _OpenAnswer | None:
        """Detach the response from its task, and free the request. Return None if that is not possible."""
        exchange = self._running
        if exchange is None or self._place is not _Place.BETWEEN or self._queued or not exchange.can_detach:
            return None
        self._open = _OpenAnswer(self, exchange.detach(), keep_alive=exchange.keep_alive)
        # Between two requests a parser has no state. It consists of nine objects, and a stream is open for long.
        self._running = self._parser = None
        self._url, self._headers = b"", _NO_HEADERS
        return self._open

    def detached_ended(self) -> None:
        """Continue after the detached answer has ended."""
        self._open = None
        self.finished()


_NO_HEADERS: list[tuple[bytes, bytes]] = []
"""Shared by connections whose request is over."""


def _address(info: Sequence[Any] | str | None) -> tuple[str, int] | None:
    """Return host and port of a TCP socket."""
    return None if info is None or isinstance(info, str) else (str(info[0]), int(info[1]))


class Exchange:
    """One request and its response. Writes the head and the first part of the body in one write, as ASGI asks."""

    __slots__ = (
        "_body",
        "_connection",
        "_expects_continue",
        "_head",
        "_is_chunked",
        "_is_detached",
        "_is_received",
        "_is_whole",
        "_remaining",
        "_scope",
        "_waiter",
        "is_complete",
        "is_disconnected",
        "is_started",
        "keep_alive",
    )

    def __init__(
        self, connection: HttpConnection, scope: dict[str, Any], *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self._connection = connection
        self._scope = scope
        self.keep_alive = keep_alive
        self._expects_continue = expects_continue
        self._body = bytearray()
        self._is_whole = False
        """True once all of the body has arrived."""
        self._is_received = False
        """True once the application has all of the body."""
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        """The head, until the first part of the body is written with it."""
        self._is_chunked: bool | None = None
        self._remaining = 0
        """Bytes of the response still to be written, if it has a length."""
        self._is_detached = False
        self.is_started = False
        self.is_complete = False
        self.is_disconnected = False

    async def run(self) -> None:
        """Call the application. Raises nothing but its cancellation."""
        try:
            await self._connection.shared.app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("a request failed", extra={"event": "request_failed"})
        if self._is_detached or self.is_complete or self.is_disconnected:
            return
        if self.is_started:
            # A client must not mistake a partial answer for the whole.
            self._connection.abort()
        else:
            self.keep_alive = False
            await self.send({"type": "http.response.start", "status": 500, "headers": _length(_FAILED)})
            await self.send({"type": "http.response.body", "body": _FAILED})

    # -- the request -----------------------------------------------------------------------------------------

    def add(self, body: bytes) -> None:
        """Add a part of the body that has arrived."""
        if self.is_complete:
            return
        self._body += body
        if len(self._body) > _READ_AHEAD:
            self._connection.transport.pause_reading()
        self._wake()

    def complete_body(self) -> None:
        """Mark the body as complete."""
        self._is_whole = True
        self._wake()

    def disconnect(self) -> None:
        """Mark the client as disconnected."""
        self.is_disconnected = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Message:
        """Return the next part of the body, at once if it has arrived; after the last one, the disconnection."""
        while not (self.is_disconnected or self.is_complete):
            if self._body or (self._is_whole and not self._is_received):
                body, self._body = bytes(self._body), bytearray()
                self._is_received = self._is_whole
                return {"type": "http.request", "body": body, "more_body": not self._is_whole}
            if self._expects_continue and not self.is_started:
                self._expects_continue = False
                self._connection.transport.write(_CONTINUE)
            if not self._is_whole:
                self._connection.transport.resume_reading()
            self._waiter = self._connection.shared.loop.create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    # -- the response ----------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Write a part of the response. Waits while the client reads too slowly; no-op once it is gone."""
        if self._connection.is_full and not self.is_disconnected:
            await self._connection.drained()
        if self.is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        else:
            self._write_body(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        assert not self.is_started, "an answer begins once"
        lines = [_status_line(status), b"date: ", self._connection.shared.date(), b"\r\n"]
        is_closing = False
        for name, value in headers:
            if _NO_VALUE.search(value):
                raise ValueError("a header has a character that no header may have")
            if name == b"content-length":
                self._is_chunked, self._remaining = False, int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, is_closing = False, True
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not is_closing:
            lines.append(b"connection: close\r\n")
        if self._is_chunked is None and self._scope["method"] != "HEAD" and status not in (204, 304):
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self.is_started = True

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        assert self.is_started, "a body has a head"
        assert not self.is_complete, "an answer ends once"
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + _LAST_CHUNK if is_last else chunk
        else:
            self._remaining -= len(body)
            if self._remaining < 0 or (is_last and self._remaining):
                raise ValueError("a body is as long as its head says")
        connection = self._connection
        head, self._head = self._head, None
        if head is not None and len(body) > _JOINED:
            connection.transport.write(head)
        elif head is not None:
            body = head + body
        if body:
            connection.transport.write(body)
        if is_last:
            self.is_complete = True
            self._wake()
            if not self.keep_alive:
                connection.transport.close()
            connection.finished()

    @property
    def can_detach(self) -> bool:
        return bool(self._is_chunked) and not self.is_disconnected

    def detach(self) -> bytes:
        """Return the unwritten head and leave the response to the caller, which has to write the head."""
        self._is_detached = True
        head, self._head = self._head or b"", None
        return head


def _length(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]


class _OpenAnswer:
    """A detached answer. Implements `DetachedAnswer`."""

    __slots__ = ("_connection", "_head", "holder", "is_over", "keep_alive", "on_end")

    def __init__(self, connection: HttpConnection, head: bytes, *, keep_alive: bool) -> None:
        self._connection = connection
        self._head = head
        """The unwritten head of the answer; empty once it is written."""
        self.holder: Holder | None = None
        self.on_end: Callable[[], None] | None = None
        self.keep_alive = keep_alive
        self.is_over = False

    @property
    def is_full(self) -> bool:
        return self._connection.is_full

    def write(self, chunk: bytes) -> None:
        if self._head:
            chunk, self._head = self._head + chunk, b""
        self._connection.transport.write(chunk)

    def end(self, chunk: bytes) -> None:
        self.write(chunk + _LAST_CHUNK)
        if not self.keep_alive:
            self._connection.transport.close()
        self._ended()
        self._connection.detached_ended()

    def drop(self) -> None:
        self._connection.abort()

    def lost(self) -> None:
        """End the answer, because the connection is closed."""
        self._ended()
        if self.holder is not None:
            self.holder.left()

    def _ended(self) -> None:
        self.is_over = True
        if self.on_end is not None:
            self.on_end()
            self.on_end = None
