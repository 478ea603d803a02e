"""The source of a request: its host, the origin of its page, and its address through proxies.

This module also defines the allowed values of each, the permissions of our pages, and the addresses to listen on. A
page that a browser loaded from elsewhere is recognised by its origin; a name that was made to resolve to us
(rebinding), by its host. Names are never resolved, because the result changes.

A proxy's statement about its client is believed only if the operator trusts the proxy. The list (`Forwarded`, RFC
7239, or `X-Forwarded-For`) is read from its end, where the nearest proxy has written: entries further to the left
came with the request and may be forged. If the two headers name different clients, neither is believed: a proxy
writes one of them and passes the other on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from turnwire.errors import ConfigError

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\s]+)")
_BASE = re.compile(r"https?://([^/?#@\s]+)(?:/[^?#\s]*)?", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_WEB = {"ws": "http", "wss": "https"}


REMEMBERED = 64
"""Cached parses of hosts and origins: every request of a client names the same ones."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def is_wildcard(host: str) -> bool:
    """Return whether `host` means every address of this machine."""
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def check_bind(host: str, has_token: bool, no_auth: bool) -> None:
    """Raise `ConfigError` if others could use the daemon without a credential."""
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


def cluster_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises `ConfigError`."""
    parsed = parse_host(text)
    if parsed is None or not parsed.port:
        raise ConfigError(f"{text!r} is no address for other nodes; give host and port, such as 10.0.0.1:4171")
    return parsed.name, parsed.port


def check_cluster_bind(host: str, *, has_tls: bool, plain: bool) -> None:
    """Raise `ConfigError` if others on the network could read the traffic between nodes."""
    if not (is_loopback(host) or has_tls or plain):
        raise ConfigError(
            f"{host!r} can be reached from outside, and nodes would talk in the clear; give tls_cert and tls_key,"
            " or set cluster_plain if this network is yours alone"
        )


def cluster_url(given: str | None, listen: str, *, has_tls: bool) -> str:
    """Return the URL at which other nodes reach this one. Raises `ConfigError`."""
    host, port = cluster_address(listen)
    if given is not None:
        match = _BASE.fullmatch(given)
        if match is None or parse_host(match[1]) is None:
            raise ConfigError(
                f"{given!r} is no cluster_url; give scheme, host and port, such as http://10.0.0.1:{port}"
            )
        return given.rstrip("/")
    if is_wildcard(host):
        raise ConfigError(
            "cluster_listen is every address of this machine; say with cluster_url by which others reach it"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if has_tls else 'http'}://{shown}:{port}"


def page_headers(policy: str) -> dict[str, str]:
    """Return the headers of a page with this `policy`; they also forbid frames, openers and referrers."""
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
    """Lower case; an IPv6 address without its brackets."""
    port: int | None


class Origin(NamedTuple):
    """The origin of a page."""

    scheme: str
    name: str
    port: int


@lru_cache(maxsize=REMEMBERED)
def parse_host(text: str) -> Host | None:
    """Return the parts of `name[:port]`."""
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    return Host(match[1].strip("[]"), int(match[2]) if match[2] else None)


@lru_cache(maxsize=REMEMBERED)
def parse_origin(text: str) -> Origin | None:
    """Return the parts of `scheme://name[:port]`; None for `null` and for anything with a path."""
    match = _ORIGIN.fullmatch(text.lower())
    host = match and parse_host(match[2])
    return origin_of(match[1], host) if match and host else None


def origin_of(scheme: str, host: Host) -> Origin:
    """Return the origin of a page that was loaded from here, derived from the request."""
    web = _WEB.get(scheme, scheme)
    return Origin(web, host.name, host.port if host.port is not None else _PORTS[web])


@dataclass(frozen=True, kw_only=True)
class BrowserPolicy:
    """The hosts and origins by which a browser may reach a daemon, and whether credentials are required."""

    hosts: frozenset[str]
    """Our names and addresses."""
    every_address: bool
    """True if bound to all addresses: then any literal address is ours. Rebinding needs a name."""
    origins: frozenset[Origin]
    """Allowed pages of other origins."""
    no_auth: bool = False

    @classmethod
    def of(
        cls, host: str, *, hosts: Iterable[str] = (), origins: Iterable[str] = (), no_auth: bool = False
    ) -> BrowserPolicy:
        """Return the policy of a daemon bound to `host`, with the operator's additions.

        Raises:
            ConfigError: One of `hosts` or `origins` is malformed.
        """
        return cls(
            hosts=LOOPBACK | {_name(each) for each in hosts} | ({host.strip("[]").lower()} - {""}),
            every_address=is_wildcard(host),
            origins=frozenset(_origin(each) for each in origins),
            no_auth=no_auth,
        )

    def knows(self, host: Host) -> bool:
        """Return whether `host` is a name of ours. The port is not compared: it may have been forwarded."""
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


# -- addresses and proxies -----------------------------------------------------------------------------------


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

REMEMBERED_NETWORKS = 1024
"""Addresses whose network is cached."""
NETWORK_BITS_V6 = 64
"""IPv6 prefix length that counts as one address: providers assign such a network to one customer."""

_ELEMENT = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*")+')
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;\s]*))', re.IGNORECASE)
_NODE = re.compile(
    r"\[(?P<v6>[0-9a-fA-F:.]+)\](?::\d+)?|(?P<v4>\d+\.\d+\.\d+\.\d+)(?::\d+)?|(?P<bare>[0-9a-fA-F:.]+)"
)


def parse_network(text: str) -> Network | None:
    """Return an address or a network, such as `10.0.0.0/8`."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Proxies:
    """The proxies that the operator trusts."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Proxies:
        return cls(tuple(each for each in map(parse_network, texts) if each is not None))

    def client_of(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the client's address: the peer itself, or the address that trusted proxies name."""
        if not self.networks or not self._trusts(_address(peer)):
            return peer
        lists = (_forwarded(_joined(headers, b"forwarded")), _listed(_joined(headers, b"x-forwarded-for")))
        told = {self._nearest(hops, peer) for hops in lists if hops}
        return told.pop() if len(told) == 1 else peer

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in each for each in self.networks)

    def _nearest(self, hops: list[str], peer: str) -> str:
        """Return the last hop that is not a trusted proxy. An unreadable one hides all hops before it."""
        addresses = [_address(each) for each in hops]
        for each in reversed(addresses):
            if not self._trusts(each):
                return peer if each is None else str(each)
        return str(addresses[0])


def _joined(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> str:
    return ",".join(value.decode("latin-1") for name, value in headers if name == wanted)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")] if text else []


def _forwarded(text: str) -> list[str]:
    elements: list[str] = _ELEMENT.findall(text)
    found = [_FOR.search(each.strip()) for each in elements]
    return ["" if each is None else each[1] or each[2] or "" for each in found]


def _address(node: str) -> Address | None:
    """Return the address of `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]:80`; None for an obfuscated name."""
    match = _NODE.fullmatch(node)
    if match is None:
        return None
    try:
        found = ipaddress.ip_address(match["v6"] or match["v4"] or match["bare"])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


@lru_cache(maxsize=REMEMBERED_NETWORKS)
def network_of(address: str) -> str:
    """Return the key of a remote address: itself, or its network for IPv6. A socket's path is its own key."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return address
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, NETWORK_BITS_V6), strict=False))
