"""The listener: an ASGI application served on a socket, inside the loop that is running already.

The socket is made here, so that both kinds of server behave the same. uvicorn serves HTTP/1.1; granian serves
HTTP/1.1 and HTTP/2 on one port, in the clear (h2c) or by ALPN over TLS. Both serve WebSockets; uvicorn also learns
by pings that a client is gone. Never handles a signal and never ends a stream: streams end themselves when the
daemon stops, and `stop` is set after that. To stop at once, cancel it.

What uvicorn can do here beside ASGI is offered to the application as extensions, named in `server.endpoint`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
import uvicorn
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP2Settings
from granian.log import LogLevels
from granian.server.embed import Server as GranianServer
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from turnwire.errors import ConfigError, TurnwireError
from turnwire.limits import Limits
from turnwire.server.endpoint import ABORT, LINGERS, SEND_ALL

ServerKind: TypeAlias = Literal["uvicorn", "granian"]
Result = TypeVar("Result")

KEEP_ALIVE_S = 75
"""Longer than the 60 s of common proxies, so that it is they who close a connection that rests."""
STOP_S = 5
"""What requests get that are under way when the server stops."""
LOOK_S = 0.001
"""Between two looks at what another thread does without telling."""
AT_ONCE = 65_536
"""Requests that granian serves at a time. A stream is one, and its default of 1,024 would be all there are."""
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

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Tls(NamedTuple):
    """A certificate chain and its key, as PEM files."""

    cert: Path
    key: Path


async def listen(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    tls: Tls | None = None,
    server: ServerKind,
    ready: Callable[[str], None],
    stop: anyio.Event,
    limits: Limits | None = None,
) -> None:
    """Serve until `stop` is set. `ready` hears the address once connections are taken. Raises `ConfigError`."""
    limits = limits or Limits()
    if tls is not None:
        check_tls(tls)
    with open_listener(host, port, limits) as listener:
        url = url_of(listener, host, is_tls=tls is not None)
        serve = _serve_uvicorn if server == "uvicorn" else _serve_granian
        await serve(app, listener, tls, limits, lambda: ready(url), stop)
    if not stop.is_set():
        raise TurnwireError("the HTTP server ended by itself; the log says why")


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run a program on the fast loop."""
    return anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})


async def _until_stopped(serve: Callable[[], Awaitable[None]], stop: anyio.Event, end: Callable[[], None]) -> None:
    """Run a server; `end` asks it to come to its end once `stop` is set."""
    async with anyio.create_task_group() as tasks:

        async def ending() -> None:
            await stop.wait()
            end()

        tasks.start_soon(ending)
        await serve()
        tasks.cancel_scope.cancel()


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


def check_tls(tls: Tls) -> None:
    """Load what a server will load: its own failure names no file, and it asks a terminal for a passphrase.

    Raises `ConfigError`.
    """
    for path in tls:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}; TLS needs the certificate and its key")
    is_locked = False

    def passphrase() -> str:
        nonlocal is_locked
        is_locked = True
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key, passphrase)
    except (OSError, ValueError) as error:  # of which `SSLError` is one
        raise ConfigError(_why_no_tls(tls, error, is_locked=is_locked)) from error


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


# -- uvicorn -------------------------------------------------------------------------------------------------


_sockets = logging.getLogger("uvicorn.error.sockets")
# Below warnings it writes the address of each socket, and what a client has put there is not for a log.
_sockets.setLevel(logging.WARNING)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """uvicorn calls every refused upgrade an error of ours. One that nobody answered says so in `_Socket`."""
    return record.msg != "ASGI callable returned without completing handshake."


_sockets.addFilter(_is_no_refusal)


class _Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with the bounds that it lacks: how long a request's head is, and how long it takes."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._most = limits.header_bytes
        self._head_bytes = 0
        self._in_head = True
        self._too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._too_late = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._most and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._too_late is None:
            self._too_late = self.loop.call_later(HEAD_S, self.transport.abort)
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}, LINGERS: {}}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_time()
        super().on_headers_complete()

    def _in_time(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None


class _Uvicorn(uvicorn.Server):
    """uvicorn as a guest in our loop: signals are the program's own."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self.servers = []

    def cut(self) -> None:
        """Take no connection any more, and drop those that are open. After an orderly end nothing is left to do."""
        for each in self.servers:
            # A loop that still watches a closed socket takes the next one with its number for it.
            each.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class _Socket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which the application can drop, and which takes many messages at once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = _sockets

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["extensions"] = {
                **(self.scope.get("extensions") or {}),
                ABORT: {"call": self.transport.abort},
                SEND_ALL: {"call": self._send_all},
            }

    def send_500_response(self) -> None:
        if self.initial_response is None and not self.handshake_complete:
            self.logger.error("a WebSocket was neither accepted nor refused; it is told 500")
        super().send_500_response()

    async def _send_all(self, texts: Sequence[bytes]) -> None:
        """Write messages of text with one write, which costs a fifth of one for each. Waits as `send` does."""
        await self.writable.wait()
        if self.disconnected or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(b"".join([part for text in texts for part in (_text_head(len(text)), text)]))


def _text_head(size: int) -> bytes:
    """What comes before a message of text: it is whole, and neither masked nor compressed."""
    if size < _SIZE_IN_2:
        return bytes((_TEXT, size))
    if size < _MOST_IN_2:
        return struct.pack("!BBH", _TEXT, _SIZE_IN_2, size)
    return struct.pack("!BBQ", _TEXT, _SIZE_IN_8, size)


async def _serve_uvicorn(
    app: ASGIApp,
    listener: socket.socket,
    tls: Tls | None,
    limits: Limits,
    ready: Callable[[], None],
    stop: anyio.Event,
) -> None:
    def protocol(**options: Any) -> _Connection:
        return _Connection(limits, **options)

    config = uvicorn.Config(
        app,
        http=protocol,  # pyright: ignore[reportArgumentType]
        ws=_Socket,
        ws_max_size=limits.body_bytes,
        ws_ping_interval=limits.heartbeat_s,
        ws_ping_timeout=MISSED_PINGS * limits.heartbeat_s,
        # It would hold a window for each socket; a proxy can do it where the line is slow.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=tls and tls.cert,
        ssl_keyfile=tls and tls.key,
    )
    server = _Uvicorn(config, ready)

    def end() -> None:
        server.should_exit = True

    try:
        await _until_stopped(lambda: server.serve([listener]), stop, end)
    finally:
        # What has not ended by now waits for a peer that does not read.
        server.cut()


# -- granian -------------------------------------------------------------------------------------------------


class _Granian(GranianServer):
    """granian as a guest, on a socket of ours."""

    def __init__(self, listener: socket.socket, app: ASGIApp, **options: Any) -> None:
        super().__init__(app, **options)
        self._listener = listener
        self._descriptor: int | None = None

    def end_workers(self) -> None:
        """Take no connection any more. Those that are open are left to their end."""
        for worker in self.wrks:
            worker.terminate()

    def _init_shared_socket(self) -> None:
        # It closes what it is given, so it gets a descriptor of its own.
        self._descriptor = self._listener.dup().detach()
        self._shd = SocketHolder(self._descriptor, False, BACKLOG)  # pyright: ignore[reportCallIssue]

    async def let_go(self) -> None:
        """Return once the other thread, which was told to end, has closed its descriptor: about a millisecond.

        It tells nobody. To shut the socket down meanwhile would end the listening too, and leave the thread trying
        to accept for ever.
        """
        while self._descriptor is not None and _is_same(self._descriptor, self._listener):  # noqa: ASYNC110 nothing tells us
            await anyio.sleep(LOOK_S)

    async def _stop_workers(self) -> None:
        self.end_workers()
        # They end with their last connection, and one that has sent half a head would hold up everything. Not
        # cancelled when that is too long: the other thread still tells them when it is done.
        tasks: list[asyncio.Task[None]] = [getattr(each, "_task") for each in self.wrks]  # noqa: B009
        with anyio.move_on_after(STOP_S):
            await asyncio.wait(tasks)
        self.wrks.clear()


def _is_same(descriptor: int, listener: socket.socket) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.fstat(listener.fileno()))
    except OSError:
        return False


async def _serve_granian(
    app: ASGIApp,
    listener: socket.socket,
    tls: Tls | None,
    limits: Limits,
    ready: Callable[[], None],
    stop: anyio.Event,
) -> None:
    server = _Granian(
        listener,
        app,
        interface=Interfaces.ASGINL,
        http=HTTPModes.auto,
        websockets=True,
        backpressure=AT_ONCE,
        http2_settings=HTTP2Settings(max_headers_size=limits.header_bytes, max_concurrent_streams=AT_ONCE),
        # Only its level is set: handlers and formats are the program's own. Below errors it tells of itself, with
        # an address that is not ours.
        log_level=LogLevels.error,
        log_dictconfig={"incremental": True, "handlers": {}, "loggers": {}},
        ssl_cert=tls and tls.cert,
        ssl_key=tls and tls.key,
    )
    server.on_startup(ready)
    try:
        await _until_stopped(server.serve, stop, server.stop)
    finally:
        server.end_workers()
        with anyio.move_on_after(STOP_S, shield=True):
            await server.let_go()
