"""The listener: an ASGI application served on a socket, inside the loop that is running already.

uvicorn serves HTTP/1.1 and WebSockets, and learns by pings that a client is gone. `server.http2` takes a connection
over that begins as HTTP/2: by ALPN over TLS, or in the clear on the same port. Never handles a signal and ends no
stream: streams end themselves when the daemon stops, and `stop` is set after that. To stop at once, cancel it.

What the servers can do beside ASGI is offered to the application as extensions, named in `server.endpoint` and
`server.open_answer`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import re
import resource
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote

import anyio
import httptools
import uvicorn
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.protocol import State

from turnwire.errors import ConfigError, TurnwireError
from turnwire.limits import Limits
from turnwire.runtime.asyncio_mark import mark_asyncio
from turnwire.server.bodies import HeldBytes
from turnwire.server.endpoint import ABORT, HTTP2_PREFACE, REACHED, SEND_ALL, WHOLE_BODY
from turnwire.server.open_answer import DETACH, Holder
from turnwire.server.reached import Reached, reached

Result = TypeVar("Result")

ALPN = "h2"
"""What a client says over TLS that speaks HTTP/2."""
KEEP_ALIVE_S = 75
"""Longer than the 60 s of common proxies, so that it is they who close a connection that rests."""
STOP_S = 5
"""What requests get that are under way when the server stops."""
OTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""What OpenSSL says of a key and a certificate that are sound and do not belong together."""
MISSED_PINGS = 2
"""A client that answers none of so many is gone. One may be lost to a machine that sleeps for a moment."""

_TEXT, _SIZE_IN_2, _SIZE_IN_8, _MOST_IN_2 = 0x81, 126, 127, 65_536
"""Of a frame of a WebSocket (RFC 6455, 5.2): a whole text; the marks that its size follows; what 2 bytes hold."""
BACKLOG = 2048
"""Connections that may wait to be accepted: a page of tabs that all come back after a restart."""

HEAD_S = 30.0
"""What a client gets to send the head of a request; slow lines need a second or two."""
HANDSHAKE_S = 10.0
"""What a client gets to agree on TLS: some round trips."""
LINGER_S = 2.0
"""What the rest of a body gets to come that nobody wants: its sender reads the answer when it has sent all."""
RESERVED_FILES = 256
"""Descriptors that no connection gets, or a quarter of all: agents, files and the log need them."""
ACCEPTED_AT_ONCE = 16
"""Connections that are taken before those that are open have their turn, and those that were dropped are gone."""
PAUSE_S = 0.1
"""What passes until connections are taken again when there was no descriptor for one."""
TOLD_S = 60.0
"""Between two lines of the log that say the same."""

logger = logging.getLogger(__name__)

_LAST_CHUNK = b"0\r\n\r\n"
_JOINED = 65_536
"""A body up to this size is copied to be behind its head; that costs less than another buffer for the kernel."""
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What would end a header, or make it another one."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Tls(NamedTuple):
    """A certificate chain and its key, as PEM files."""

    cert: Path
    key: Path


async def listen(  # noqa: PLR0913  all but the address have a default, or are what it tells and is told
    app: ASGIApp,
    *,
    host: str,
    port: int,
    tls: Tls | None = None,
    http2: bool = False,
    ready: Callable[[str], None],
    stop: anyio.Event,
    limits: Limits | None = None,
    socket_bytes: int | None = None,
) -> None:
    """Serve until `stop` is set. `ready` hears the address once connections are taken. Raises `ConfigError`.

    `http2`: in the clear too; over TLS it is always offered. `socket_bytes`: what a message over a WebSocket may
    have; as much as a body, if it is not given.
    """
    mark_asyncio()
    limits = limits or Limits()
    context = None if tls is None else check_tls(tls)
    if http2 or tls is not None:
        # It takes a moment, which the first client is not to wait for. Without it a daemon starts sooner.
        import_module("turnwire.server.http2")
    with open_listener(host, port, limits) as listener:
        url = url_of(listener, host, is_tls=tls is not None)
        most = socket_bytes or limits.body_bytes
        await _serve(app, listener, context, limits, lambda: ready(url), stop, http2=http2, socket_bytes=most)
    if not stop.is_set():
        raise TurnwireError("the HTTP server ended by itself; the log says why")


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run a program on the fast loop."""
    return anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})


# -- the socket ----------------------------------------------------------------------------------------------


def open_listener(host: str, port: int, limits: Limits) -> socket.socket:
    """A listening socket. Raises `ConfigError` if there is no such address or the port is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(f"the host {host!r} has no address; give a name or an address of this machine") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        _prepare(listener, limits)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_why(error, host, port), host=host, port=port) from None
    return listener


def _prepare(listener: socket.socket, limits: Limits) -> None:
    listener.setblocking(False)
    # A port whose last user is gone may be taken at once; one that is listened on may not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # An event is shown when it is stored, not when more of them have gathered.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel drops a peer that takes nothing for this long. A server that has ended a response cannot: it
        # waits for what it has written to be taken.
        limit_ms = max(int(limits.write_timeout_s * 1000), 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def _why(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use; stop what listens there or choose another (0 is any free one)"
        case errno.EACCES:
            return f"port {port} needs rights that this user does not have; choose one from 1024 on"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine"
        case _:
            return f"cannot listen on {host} port {port} ({errno.errorcode.get(error.errno or 0, 'unknown error')})"


def url_of(listener: socket.socket, host: str, *, is_tls: bool) -> str:
    """The address by which a client on this machine reaches the listener, with the port that it really has."""
    address, port = listener.getsockname()[:2]
    shown = ipaddress.ip_address(address)
    if shown.is_unspecified:
        name = "127.0.0.1" if shown.version == 4 else "[::1]"
    elif host == str(shown) or not host:
        name = f"[{shown}]" if shown.version == 6 else str(shown)
    else:
        name = host
    return f"{'https' if is_tls else 'http'}://{name}:{port}"


# -- TLS -----------------------------------------------------------------------------------------------------


def check_tls(tls: Tls) -> ssl.SSLContext:
    """What a server needs for TLS. Never asks a terminal for a passphrase. Raises `ConfigError`."""
    for path in tls:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}; TLS needs the certificate and its key")
    is_locked = False

    def passphrase() -> str:
        nonlocal is_locked
        is_locked = True
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN, "http/1.1"])
    try:
        context.load_cert_chain(tls.cert, tls.key, passphrase)
    except (OSError, ValueError) as error:  # of which `SSLError` is one
        raise ConfigError(_why_no_tls(tls, error, is_locked=is_locked)) from error
    return context


def _why_no_tls(tls: Tls, error: Exception, *, is_locked: bool) -> str:
    if is_locked:
        return f"the key {tls.key} has a passphrase, and nobody is there to type it; write the key without one"
    if isinstance(error, ssl.SSLError):
        if error.reason in OTHER_KEY:
            return f"{tls.key} is not the key of the certificate {tls.cert}; give two that belong together"
        if b"CERTIFICATE-----" not in tls.cert.read_bytes():
            return f"{tls.cert} holds no certificate as PEM; is it the key, or in another format?"
        if b"PRIVATE KEY-----" not in tls.key.read_bytes():
            return f"{tls.key} holds no private key as PEM; is it the certificate, or in another format?"
        return f"the certificate {tls.cert} or its key {tls.key} is damaged or too weak for TLS; make them again"
    if isinstance(error, OSError):
        return f"the certificate {tls.cert} or its key {tls.key} cannot be read: {error.strerror}"
    return f"the certificate {tls.cert} or its key {tls.key} cannot be used; make them again"


# -- connections -----------------------------------------------------------------------------------------------


_sockets = logging.getLogger("uvicorn.error.sockets")
# Below warnings it writes the address of each socket, and what a client has put there is not for a log.
_sockets.setLevel(logging.WARNING)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """uvicorn calls every refused upgrade an error of ours. One that nobody answered says so in `_Socket`."""
    return record.msg != "ASGI callable returned without completing handshake."


_sockets.addFilter(_is_no_refusal)

NOT_ENDED = "Cancel %s running task(s), timeout graceful shutdown exceeded"


def _is_no_error(record: logging.LogRecord) -> bool:
    """uvicorn calls it an error of ours that a peer has not hung up within `STOP_S`, and each request that is cut
    with it, too. Whoever asked comes again."""
    is_cut = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    if record.msg == NOT_ENDED or is_cut:
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.exc_info = None
    return True


logging.getLogger("uvicorn.error").addFilter(_is_no_error)


class _Shared:
    """What the connections of one server have in common. Implements `http2.Around`."""

    def __init__(self, app: ASGIApp, limits: Limits, tasks: TaskGroup, *, http2: bool) -> None:
        self.app = app
        self.http2 = http2
        """Spoken in the clear as well."""
        self.header_bytes = limits.header_bytes
        # Later than whoever writes a stream, and who counts the readers that it gives up.
        self.stall_s = 2 * limits.write_timeout_s
        self.linger_s = LINGER_S
        self.heads = HeldBytes(limits.stranger_bytes)
        self.state = ServerState()
        self._tasks = tasks
        self._waiting: dict[object, Callable[[], None]] = {}
        """Connections on which no request is under way, the longest first, and how to drop each."""
        self.beginning = 0
        """Connections on which TLS is being agreed."""
        self._most_files = _most_files()
        self._told_at = -math.inf

    @property
    def connections(self) -> set[Any]:
        return self.state.connections

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self.state.default_headers

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.start_soon(run)

    def waits(self, connection: object, drop: Callable[[], None]) -> None:
        """No request is under way on it now."""
        self._waiting.setdefault(connection, drop)

    def works(self, connection: object) -> None:
        """A request is, or it is over."""
        self._waiting.pop(connection, None)

    def admit(self, number: int, drop: Callable[[], None]) -> None:
        """See that some descriptors are left for agents and files when there is a connection with this one.

        Who waits for the longest goes first: an honest client comes with a request, or comes back with one.
        """
        # A low number may be free again while many higher ones are taken, so connections are counted as well.
        if max(number, len(self.connections) + self.beginning) >= self._most_files:
            self.make_room(drop)

    def make_room(self, drop: Callable[[], None] | None = None) -> None:
        """Descriptors run out: drop who waits for the longest, or, if nobody does, whoever is named."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at > TOLD_S:
            self._told_at = now
            logger.warning(
                "file descriptors run out, so connections are dropped; let the process have more (ulimit -n)",
                extra={"event": "descriptors_run_out", "connections": len(self.connections)},
            )
        oldest = next(iter(self._waiting), None)
        drop = drop if oldest is None else self._waiting.pop(oldest)
        if drop is not None:
            drop()


def _most_files() -> int:
    """The number from which on a descriptor is one of the last: the kernel gives the lowest that is free."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most - min(RESERVED_FILES, most // 4)


class _Place(Enum):
    """Where in a request a connection is."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()


class _Nobody:
    """Where uvicorn tells a request that something has come, for an answer that has none."""

    def set(self) -> None:
        pass


class _Exchange(RequestResponseCycle):
    """uvicorn's request with its answer: the head is written with what comes first of the body, in one write.

    ASGI wants it so: a head alone tells a client nothing. A whole answer is one piece for the kernel and the peer.
    """

    _head: bytes | None = None
    """What the next piece of the body is written behind."""

    def whole_body(self) -> bytes | None:
        """All of the body if it has come; then `receive` gives none of it any more."""
        if self.more_body or self.disconnected:
            return None
        self.waiting_for_100_continue = False
        body, self.body = bytes(self.body), bytearray()
        return body

    def unwritten_head(self) -> bytes:
        """The head, if it waits for the first of the body: whoever asks writes it."""
        head, self._head = self._head or b"", None
        return head

    def reached(self) -> Reached:
        """How far the answer has come. Nobody waits for one whose client is gone."""
        if self.disconnected or self.transport.is_closing():
            return Reached.PROGRAM
        if not self.response_complete or self.transport.get_write_buffer_size():
            return Reached.WAY
        return reached(self.transport.get_extra_info("socket"))

    async def send(self, message: Message) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        else:
            self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        assert not self.response_started, "an answer begins once"
        lines = [STATUS_LINE[status]]
        says_close = False
        for name, value in (*self.default_headers, *headers):
            if _NO_VALUE.search(value):
                raise ValueError("a header has a character that no header may have")
            if name == b"content-length":
                self.chunked_encoding, self.expected_content_length = False, int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, says_close = False, True
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if self.chunked_encoding is None and has_body:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self.response_started, self.waiting_for_100_continue = True, False

    def _go_on(self, body: bytes, *, is_last: bool) -> None:
        assert self.response_started, "a body has a head"
        assert not self.response_complete, "an answer ends once"
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = piece + _LAST_CHUNK if is_last else piece
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (is_last and self.expected_content_length):
                raise ValueError("a body is as long as its head says")
        self._write(body)
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _write(self, body: bytes) -> None:
        head, self._head = self._head, None
        if head is not None and len(body) > _JOINED:
            self.transport.write(head)
        elif head is not None:
            body = head + body
        if body:
            self.transport.write(body)


class _Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with the bounds that it lacks; gives a connection to HTTP/2 that begins so.

    A head has a length and a time. What is behind it and no body counts as head: trailers, which are dropped. They
    are no headers, also for a request that waits for its turn. The rest of a body that is not wanted any more has a
    moment to come, so that its sender reads the answer. A host in the request line is one like that in the headers.
    """

    # What uvicorn puts on it has a place here as well: its dictionary of names would take a kilobyte more.
    __slots__ = (
        "_begun",
        "_end_at",
        "_had_body",
        "_head_bytes",
        "_held",
        "_is_refused",
        "_open",
        "_place",
        "_shared",
        "_timer",
        "access_log",
        "access_logger",
        "app",
        "app_state",
        "asgi_version",
        "client",
        "config",
        "connections",
        "cycle",
        "expect_100_continue",
        "flow",
        "headers",
        "limit_concurrency",
        "logger",
        "loop",
        "parser",
        "pipeline",
        "root_path",
        "scheme",
        "scope",
        "server",
        "server_state",
        "tasks",
        "timeout_keep_alive",
        "timeout_keep_alive_task",
        "transport",
        "url",
        "ws_protocol_class",
    )

    def __init__(self, shared: _Shared, **options: Any) -> None:
        super().__init__(**options)
        self._shared = shared
        self._place = _Place.HEAD
        self._head_bytes = 0
        self._had_body = False
        self._is_refused = False
        self._end_at: float | None = None
        """When it ends unless something happens before; none if it does not."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks at `_end_at`, no later than that. It is not moved with every request."""
        self._held = shared.heads.holder(self._abort)
        self._open: _OpenAnswer | None = None
        """The answer that is written without a task, if one is."""
        self._begun: bytes | None = b""
        """What came, while it may become the preface of HTTP/2; none once it cannot."""

    # -- the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._shared.waits(self, self._abort)
        self._end_after(HEAD_S)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == ALPN:
            self._hand_over(b"")
        elif tls is not None or not self._shared.http2:
            self._begun = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)
        if self._open is not None:
            # A request that came behind it has taken its place.
            self._open.disconnected = True
            if self._open.holder is not None:
                self._open.holder.left()
            self._open = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._open is not None and self._open.holder is not None:
            self._open.holder.has_room()

    def data_received(self, data: bytes) -> None:
        if self._begun is not None:
            self._begun += data
            if self._begun.startswith(HTTP2_PREFACE):
                self._hand_over(self._begun)
            if HTTP2_PREFACE.startswith(self._begun[: len(HTTP2_PREFACE)]):
                return
            data, self._begun = self._begun, None
        if self._is_refused:
            return
        if self.parser is None:
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        before, self._had_body = self._place, False
        super().data_received(data)
        if self.parser is None:
            return  # a socket has it now
        if self._place is _Place.HEAD and self._end_at is None:
            self._end_after(HEAD_S)
        # A head that begins behind a body in one piece is counted from its second piece on.
        if self._place is not _Place.BETWEEN and before in (self._place, _Place.BETWEEN) and not self._had_body:
            self._count(len(data))

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        # A socket is open for long: neither a timer nor a circle of references is to keep what was here before it.
        self._leave()
        self.scope = self.headers = self.parser = self._held = cast("Any", None)

    def _hand_over(self, data: bytes) -> None:
        """HTTP/2 goes on with the connection."""
        self._leave()
        self.connections.discard(self)
        held = self._shared.heads.holder(self._abort)
        from turnwire.server.http2 import Http2Connection

        following = Http2Connection(self._shared, held, first_s=HEAD_S, idle_s=KEEP_ALIVE_S)
        following.connection_made(self.transport)
        self.transport.set_protocol(following)
        if data:
            following.data_received(data)

    def _let_go(self) -> None:
        """It may take as long as it likes, and nobody takes it for one that only waits."""
        self._end_at = None
        if self._held.size:
            self._held.release()
        self._shared.works(self)

    def _leave(self) -> None:
        self._let_go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        self.transport.abort()

    def _end_after(self, seconds: float) -> None:
        """End it then, unless something happens before."""
        self._end_at = self.loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._end_at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(self._end_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._end_at is None:
            return
        if self.loop.time() < self._end_at:
            self._timer = self.loop.call_at(self._end_at, self._look)
        else:
            self._abort()

    # -- the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # A head that is not whole with the piece that it begins in has its time from there.
        self._place, self._head_bytes, self._end_at = _Place.HEAD, 0, None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._place is _Place.HEAD:
            super().on_header(name, value)
        else:
            self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._place = _Place.BODY
        self._let_go()
        if not self.url.startswith(b"/"):
            self._name_host()
        assert self.parser is not None, "it is what calls this"
        if self.parser.should_upgrade():
            self.scope["extensions"] = {ABORT: {"call": self._abort}}
            super().on_headers_complete()
        else:
            self._ask(self.parser)

    def _ask(self, parser: httptools.HttpRequestParser) -> None:
        """Let the application have the request, behind those that came before it."""
        scope, app = self.scope, cast("Any", self._shared.app)
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        http_version = parser.get_http_version()
        before = self.cycle
        self.cycle = exchange = _Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = http_version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        scope["extensions"] = {
            ABORT: {"call": self._abort},
            WHOLE_BODY: {"call": exchange.whole_body},
            REACHED: {"call": exchange.reached},
            DETACH: {"call": self._detach},
        }
        if not before or before.response_complete:
            self._start_asgi_task(exchange, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, app))

    def on_body(self, body: bytes) -> None:
        self._had_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._place = _Place.BETWEEN
        if self._is_refused:
            return
        super().on_message_complete()
        # There is none if the first request is an upgrade.
        if self.cycle and self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        # Another request may have come behind this one, and is under way now.
        if not self.cycle.response_complete:
            return
        if self._place is _Place.BODY:
            self._end_after(LINGER_S)
        elif self._place is _Place.BETWEEN:
            self._rest()

    def _detach(self) -> _OpenAnswer | None:
        """Let the answer go on without its request, whose head and cycle are forgotten."""
        cycle = cast("_Exchange", self.cycle)
        if self._place is not _Place.BETWEEN or self.pipeline or cycle.disconnected or not cycle.chunked_encoding:
            return None
        # The request's task ends without having ended the answer, and uvicorn takes that for a fault unless so.
        cycle.disconnected = True
        self._open = _OpenAnswer(self, cycle.unwritten_head(), keep_alive=cycle.keep_alive)
        self.cycle = cast("Any", self._open)
        # Between two requests a parser has nothing to remember. It has nine objects, and a stream is open for long.
        self.scope = self.headers = self.parser = cast("Any", None)
        return self._open

    def answered(self) -> None:
        """The answer that is written without a task has ended."""
        self._open = None
        self.on_response_complete()

    def _rest(self) -> None:
        """Nothing is under way."""
        self._shared.waits(self, self._abort)
        self._end_after(KEEP_ALIVE_S)

    def _name_host(self) -> None:
        """Two hosts that differ are two headers, which the application refuses."""
        with suppress(httptools.HttpParserInvalidURLError):
            url = httptools.parse_url(self.url)
            named = b"%b:%d" % (url.host, url.port) if url.port else url.host
            if named and (b"host", named) not in self.headers:
                self.headers.insert(0, (b"host", named))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._place is _Place.HEAD:
            self._held.add(size)
        if self._head_bytes > self._shared.header_bytes and not self.transport.is_closing():
            self._is_refused = True
            if self._place is _Place.HEAD or not self.cycle.response_started:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            else:
                self._abort()


class _OpenAnswer:
    """An answer that goes on without its request. Implements `OpenAnswer`; uvicorn has it as a request's cycle."""

    __slots__ = ("_connection", "_head", "disconnected", "holder", "keep_alive", "response_complete")

    message_event = _Nobody()
    response_started = True

    def __init__(self, connection: _Connection, head: bytes, *, keep_alive: bool) -> None:
        self._connection = connection
        self._head = head
        """What the first chunks are written behind."""
        self.holder: Holder | None = None
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    @property
    def is_full(self) -> bool:
        return self._connection.flow.write_paused

    def write(self, chunk: bytes) -> None:
        if self._head:
            chunk, self._head = self._head + chunk, b""
        self._connection.transport.write(chunk)

    def end(self, chunk: bytes) -> None:
        connection = self._connection
        self.write(chunk + _LAST_CHUNK)
        self.response_complete = True
        if not self.keep_alive:
            connection.transport.close()
        connection.answered()

    def drop(self) -> None:
        self._connection.transport.abort()


class _Acceptor:
    """Takes connections from a listening socket. While TLS is being agreed on one, it waits and may be dropped."""

    def __init__(
        self,
        listener: socket.socket,
        shared: _Shared,
        connection: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._shared = shared
        self._connection = connection
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._pausing: asyncio.TimerHandle | None = None
        self._untaken: set[socket.socket] = set()
        """Accepted, and no transport has them yet."""
        self._go_on()

    def close(self) -> None:
        """Take no more. Called before the socket is closed, or the loop takes the next with its number for it."""
        if self._pausing is not None:
            self._pausing.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        for each in self._untaken:
            each.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                # No descriptor is left, or no memory. A socket that stays readable would keep the loop busy.
                self._shared.make_room()
                self._loop.remove_reader(self._listener)
                self._pausing = self._loop.call_later(PAUSE_S, self._go_on)
                return
            accepted.setblocking(False)
            self._untaken.add(accepted)
            scope = anyio.CancelScope()
            self._shared.admit(accepted.fileno(), scope.cancel)
            self._shared.waits(accepted, scope.cancel)
            self._shared.beginning += 1
            self._shared.start(partial(self._begin, accepted, scope))

    def _go_on(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def _begin(self, accepted: socket.socket, scope: anyio.CancelScope) -> None:
        """Agree on TLS, if that is spoken, and let a connection have it. Raises nothing."""
        handshake_s = None if self._tls is None else HANDSHAKE_S
        self._untaken.discard(accepted)
        try:
            if scope.cancel_called or accepted.fileno() < 0:
                accepted.close()
                return
            with scope, suppress(OSError):  # the peer went away, or agreed on nothing
                await self._loop.connect_accepted_socket(
                    self._connection, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
                )
        except Exception:  # whatever it is, others are served
            logger.exception("a connection could not begin", extra={"event": "connection_failed"})
        finally:
            self._shared.works(accepted)
            self._shared.beginning -= 1


class _Uvicorn(uvicorn.Server):
    """uvicorn as a guest in our loop: signals are the program's own."""

    def __init__(
        self, config: uvicorn.Config, shared: _Shared, tls: ssl.SSLContext | None, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        shared.state = self.server_state
        self._shared = shared
        self._tls = tls
        self._ready = ready
        self.servers = []
        self.acceptors: list[_Acceptor] = []

    def cut(self) -> None:
        """Take no connection any more, and drop those that are open. After an orderly end nothing is left to do."""
        for each in self.acceptors:
            each.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self.acceptors:
            each.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()

        def connection() -> _Connection:
            return _Connection(
                self._shared, config=self.config, server_state=self.server_state, app_state={}, _loop=loop
            )

        self.acceptors = [_Acceptor(each, self._shared, connection, self._tls) for each in sockets or ()]
        self.started = True
        self._ready()


class _Messages:
    """What has come on a socket, for one who takes it: as much of `asyncio.Queue` as uvicorn uses."""

    __slots__ = ("_messages", "_more")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._more: asyncio.Future[None] | None = None

    def put_nowait(self, message: Any) -> None:
        self._messages.append(message)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def get(self) -> Any:
        while not self._messages:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        return self._messages.pop(0)

    def empty(self) -> bool:
        return not self._messages


class _Gate:
    """Open or closed: as much of `asyncio.Event` as uvicorn uses."""

    __slots__ = ("_opening",)

    def __init__(self) -> None:
        self._opening: asyncio.Future[None] | None = None
        """Done when it opens; none while it is open."""

    def set(self) -> None:
        if self._opening is not None:
            self._opening.set_result(None)
            self._opening = None

    def clear(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()

    def is_set(self) -> bool:
        return self._opening is None

    async def wait(self) -> None:
        while self._opening is not None:
            # Several wait for it, and one that gives up is not to keep the others.
            await asyncio.shield(self._opening)


class _Socket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which the application can drop, and which takes many messages at once."""

    __slots__ = (
        "app",
        "app_state",
        "asgi_version",
        "client",
        "close_sent",
        "close_timeout",
        "close_timer",
        "config",
        "conn",
        "connections",
        "curr_msg_data_type",
        "default_headers",
        "disconnected",
        "frames",
        "handshake_complete",
        "handshake_initiated",
        "initial_response",
        "last_ping_rtt",
        "logger",
        "loop",
        "pending_ping_payload",
        "ping_interval",
        "ping_sent_at",
        "ping_timeout",
        "ping_timer",
        "pong_timer",
        "queue",
        "read_paused",
        "request",
        "response",
        "root_path",
        "scheme",
        "scope",
        "server",
        "tasks",
        "transport",
        "writable",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = _sockets
        # There are thousands of sockets, and most of them are silent: asyncio's own take four kilobytes.
        self.queue = cast("Any", _Messages())
        self.writable = cast("Any", _Gate())

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept":
            # The heads of both sides are read and written. The parser has the request as long as it lives.
            self.request.headers.clear()
            self.request = self.response = self.scope = cast("Any", None)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["extensions"] = {
                **(self.scope.get("extensions") or {}),
                ABORT: {"call": self.transport.abort},
                SEND_ALL: {"call": self._send_all, "at_once": self._send_at_once},
            }

    def send_500_response(self) -> None:
        if self.initial_response is None and not self.handshake_complete:
            self.logger.error("a WebSocket was neither accepted nor refused; it is told 500")
        super().send_500_response()

    async def _send_all(self, texts: Sequence[bytes]) -> None:
        """Write messages of text with one write, which costs a fifth of one for each. Waits as `send` does."""
        await self.writable.wait()
        self._write_all(texts)

    def _send_at_once(self, texts: Sequence[bytes]) -> bool:
        """The same without waiting; false if there is no room now, and nothing was written."""
        if not self.writable.is_set():
            return False
        self._write_all(texts)
        return True

    def _write_all(self, texts: Sequence[bytes]) -> None:
        if self.disconnected or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        heads = map(_text_head, map(len, texts))
        self.transport.write(b"".join(chain.from_iterable(zip(heads, texts, strict=True))))


@lru_cache(2048)
def _text_head(size: int) -> bytes:
    """What comes before a message of text: it is whole, and neither masked nor compressed."""
    if size < _SIZE_IN_2:
        return bytes((_TEXT, size))
    if size < _MOST_IN_2:
        return struct.pack("!BBH", _TEXT, _SIZE_IN_2, size)
    return struct.pack("!BBQ", _TEXT, _SIZE_IN_8, size)


async def _serve(
    app: ASGIApp,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    limits: Limits,
    ready: Callable[[], None],
    stop: anyio.Event,
    *,
    http2: bool,
    socket_bytes: int,
) -> None:
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws=_Socket,
        ws_max_size=socket_bytes,
        ws_ping_interval=limits.heartbeat_s,
        ws_ping_timeout=MISSED_PINGS * limits.heartbeat_s,
        # It would hold a window for each socket; a proxy can do it where the line is slow.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    async with anyio.create_task_group() as tasks:
        server = _Uvicorn(config, _Shared(app, limits, tasks, http2=http2), tls, ready)

        async def ending() -> None:
            await stop.wait()
            server.should_exit = True

        tasks.start_soon(ending)
        try:
            await server.serve([listener])
        finally:
            # What has not ended by now waits for a peer that does not read.
            server.cut()
            tasks.cancel_scope.cancel()
