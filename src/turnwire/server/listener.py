"""The listener: serves an ASGI application over HTTP/1.1 and WebSockets, inside the running event loop.

HTTP/2 is left to a proxy in front. The listener handles no signal and ends no stream: streams end themselves when
the daemon stops, and `stop` is set after that. To stop at once, cancel it.

`http_connection` and `websocket_connection` serve one connection each, on the public sans-I/O parsers of httptools
and websockets; `connections` has their shared state, and the only interface that ASGI lacks: detached answers.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio
from starlette.types import ASGIApp

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.runtime.node import mark_asyncio
from turnwire.server.connections import Connections
from turnwire.server.http_connection import HttpConnection

Result = TypeVar("Result")

STOP_S = 5
"""Time for running requests to end when the server stops."""
NOT_ENDED = "%d connections were cut: they did not end within %g s"
OTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""OpenSSL reasons for a valid key and a valid certificate that do not belong together."""
BACKLOG = 2048
"""Pending connections of the socket: all tabs and clients reconnect at once after a restart."""
HANDSHAKE_S = 10.0
"""Timeout for the TLS handshake, which takes a few round trips."""
ACCEPTED_AT_ONCE = 16
"""Maximum number of connections accepted at once. Then open connections are served, and dropped ones are closed."""
PAUSE_S = 0.1
"""Delay before accepting again after the process ran out of file descriptors."""

logger = logging.getLogger(__name__)


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
    ready: Callable[[str], None],
    stop: anyio.Event,
    limits: Limits | None = None,
    socket_bytes: int | None = None,
    make_room: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until `stop` is set. `ready` is called with the address once connections are accepted.

    `socket_bytes` bounds a WebSocket message; the default is the limit for bodies. `make_room` is called when file
    descriptors run out: it drops a stream, and returns False if there was none. Raises `ConfigError`.
    """
    mark_asyncio()
    limits = limits or Limits()
    context = None if tls is None else check_tls(tls)
    with open_listener(host, port, limits) as listener:
        connections = Connections(
            app,
            limits,
            socket_bytes=socket_bytes or limits.body_bytes,
            scheme="http" if tls is None else "https",
            make_room=make_room,
        )
        acceptor = _Acceptor(listener, connections, context)
        try:
            ready(url_of(listener, host, is_tls=tls is not None))
            await stop.wait()
            acceptor.close()
            connections.shut_down()
            with anyio.move_on_after(STOP_S) as stopping:
                await connections.until_closed()
            if stopping.cancelled_caught:
                logger.warning(NOT_ENDED, len(connections.open), STOP_S, extra={"event": "connections_cut"})
        finally:
            acceptor.close()
            connections.cut()
            with anyio.move_on_after(STOP_S, shield=True):
                await connections.until_closed()


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run a program on the fast loop."""
    return anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})


# -- the socket ----------------------------------------------------------------------------------------------


def open_listener(host: str, port: int, limits: Limits) -> socket.socket:
    """Open a listening socket. Raises `ConfigError` if the address does not exist or the port is in use."""
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
    # A port in TIME_WAIT can be bound at once; one that another process listens on cannot.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Send an event when it is stored, without waiting for more of them.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel drops a peer that acknowledges nothing for this long. The server cannot do so after a response
        # has ended: the transport waits until everything is sent.
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
    """Return the URL at which clients on this machine reach the listener, with its actual port."""
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
    """Load the certificate and its key. Never asks a terminal for a passphrase. Raises `ConfigError`."""
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
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert, tls.key, passphrase)
    except (OSError, ValueError) as error:  # includes `SSLError`
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


# -- connections ---------------------------------------------------------------------------------------------


class _Acceptor:
    """Accepts connections from a listening socket. A connection in the TLS handshake counts as idle."""

    def __init__(self, listener: socket.socket, connections: Connections, tls: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._pausing: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop accepting. Call before closing the socket, or the loop watches the next one with its number."""
        if self._pausing is not None:
            self._pausing.cancel()
        self._loop.remove_reader(self._listener)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        connections = self._connections
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                # Out of descriptors or memory. The socket stays readable, and watching it would busy the loop.
                connections.make_room()
                self._loop.remove_reader(self._listener)
                self._pausing = self._loop.call_later(PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            connections.handshakes += 1
            task = connections.start(self._begin(accepted))
            task.add_done_callback(partial(self._begun, accepted))
            connections.admit(accepted.fileno(), task.cancel)
            connections.idle(accepted, task.cancel)

    async def _begin(self, accepted: socket.socket) -> None:
        """Do the TLS handshake, if any, and start a connection."""
        handshake_s = None if self._tls is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                partial(HttpConnection, self._connections),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_s,
            )
        except OSError:
            pass  # the peer disconnected, or the handshake failed
        except Exception:  # other connections must be served
            logger.exception("a connection could not begin", extra={"event": "connection_failed"})

    def _begun(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.busy(accepted)
        self._connections.handshakes -= 1
        if task.cancelled():
            accepted.close()
