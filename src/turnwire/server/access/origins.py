"""Hosts and origins: which a request may name, which a page may have, what a page of ours may do, where we listen.

A page that a browser loaded from elsewhere is known by its origin; a name that was made to resolve to us
(rebinding), by its host. No name is ever looked up: what it resolves to changes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from turnwire.errors import ConfigError

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\s]+)")
_PORTS = {"http": 80, "https": 443}
_WEB = {"ws": "http", "wss": "https"}


REMEMBERED = 64
"""Hosts and origins that are parsed once: every request of a client names the same."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of this machine."""
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def check_bind(host: str, has_token: bool, no_auth: bool) -> None:
    """Raises `ConfigError` when others could use the daemon without a credential."""
    if is_loopback(host):
        return
    if no_auth:
        raise ConfigError(
            f"--no-auth would let anybody who reaches {host!r} run the agent; bind 127.0.0.1, or leave it out"
        )
    if not has_token:
        raise ConfigError(
            f"{host!r} can be reached from outside; give --token or TURNWIRE_TOKEN, or bind 127.0.0.1"
        )


def page_headers(policy: str) -> dict[str, str]:
    """The headers of a page of ours that may do what `policy` says: nobody frames it, opens it or is told of it."""
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
    }


class Host(NamedTuple):
    """A `Host` header."""

    name: str
    """In lower case; a version 6 address without its brackets."""
    port: int | None


class Origin(NamedTuple):
    """Where a page comes from."""

    scheme: str
    name: str
    port: int


@lru_cache(maxsize=REMEMBERED)
def parse_host(text: str) -> Host | None:
    """The parts of `name[:port]`."""
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    return Host(match[1].strip("[]"), int(match[2]) if match[2] else None)


@lru_cache(maxsize=REMEMBERED)
def parse_origin(text: str) -> Origin | None:
    """The parts of `scheme://name[:port]`. `null` and everything with a path are none."""
    match = _ORIGIN.fullmatch(text.lower())
    host = match and parse_host(match[2])
    return origin_of(match[1], host) if match and host else None


def origin_of(scheme: str, host: Host) -> Origin:
    """The origin of a page that was loaded from here, as the request for it came in."""
    web = _WEB.get(scheme, scheme)
    return Origin(web, host.name, host.port if host.port is not None else _PORTS[web])


@dataclass(frozen=True, kw_only=True)
class BrowserPolicy:
    """Who may reach a daemon through a browser, and whether credentials are asked for."""

    hosts: frozenset[str]
    """Names and addresses of ours."""
    every_address: bool
    """Bound to all addresses: any literal address is ours. Rebinding needs a name."""
    origins: frozenset[Origin]
    """Pages of other origins that are let in."""
    no_auth: bool = False

    @classmethod
    def of(
        cls, host: str, *, hosts: Iterable[str] = (), origins: Iterable[str] = (), no_auth: bool = False
    ) -> BrowserPolicy:
        """What a daemon bound to `host` lets in, with what the operator added.

        Raises:
            ConfigError: One of `hosts` or `origins` is none.
        """
        return cls(
            hosts=LOOPBACK | {_name(each) for each in hosts} | ({host.strip("[]").lower()} - {""}),
            every_address=is_wildcard(host),
            origins=frozenset(_origin(each) for each in origins),
            no_auth=no_auth,
        )

    def knows(self, host: Host) -> bool:
        """Whether `host` is a name of ours. The port is not compared: it may have been forwarded."""
        return host.name in self.hosts or is_loopback(host.name) or (self.every_address and _is_address(host.name))


def _name(text: str) -> str:
    host = parse_host(text)
    if host is None:
        raise ConfigError(f"{text!r} is no host; give a name or an address, without scheme and path")
    return host.name


def _origin(text: str) -> Origin:
    origin = parse_origin(text.rstrip("/"))
    if origin is None:
        raise ConfigError(f"{text!r} is no origin; give one such as https://example.org or http://localhost:3000")
    return origin


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
