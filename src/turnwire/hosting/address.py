"""The URL of a remote agent and the headers of every request to it, validated as entered by a person."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from turnwire.errors import ConfigError

_SOCKET: Final = ("ws", "wss")
_WEB: Final = ("http", "https")


def is_agent_url(text: str) -> bool:
    """Return true if this is the URL of an agent: a WebSocket, or a web address whose path ends in `/acp`."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return False
    if scheme.lower() in _SOCKET:
        return True
    return scheme.lower() in _WEB and text.partition("?")[0].rstrip("/").endswith("/acp")


def checked_agent_url(url: str) -> str:
    """Return the agent's address. Raises `ConfigError` if it is invalid, or contains parts that belong
    elsewhere.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError("the agent's address is no URL; give one such as wss://example.org/acp") from None
    if parts.scheme not in (*_SOCKET, *_WEB) or not parts.hostname or port == 0:
        raise ConfigError("an agent's URL is like ws://127.0.0.1:4170/acp or https://example.org/acp")
    if parts.username is not None or parts.fragment:
        raise ConfigError("an agent's URL has no user and no fragment; give the token as `token=…`")
    return url


def is_socket(url: str) -> bool:
    """Return true if the agent is behind a WebSocket."""
    return urlsplit(url).scheme in _SOCKET


def is_secure(url: str) -> bool:
    return urlsplit(url).scheme in ("wss", "https")


def is_loopback(url: str) -> bool:
    """Return true for an address of this machine, which must not be reached through a proxy."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown(url: str) -> str:
    """Return the address for display: without its query, which may hold secrets."""
    return url.partition("?")[0]


def agent_headers(token: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of every request. Raises `ConfigError` for an invalid header value."""
    made = {"User-Agent": "turnwire", **(headers or {})}
    if token:
        made["Authorization"] = f"Bearer {token}"
    for name, value in made.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"the header {name!r} has characters that no header has; copy the value again")
    return made
