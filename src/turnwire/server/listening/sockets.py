"""The socket that a daemon listens on, made by us so that both kinds of server behave the same.

Takes a host and a port; gives a listening socket and the address that clients use. Options are set on the listener,
because connections inherit them. Never waits and never serves.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from turnwire.errors import ConfigError
from turnwire.limits import Limits

BACKLOG = 2048
"""Connections that may wait to be accepted: a page of tabs that all come back after a restart."""


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
