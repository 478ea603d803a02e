"""The address that a request comes from, also through proxies, and the network that it counts as.

What a proxy says of its client is believed only if the operator trusts the proxy. Its list (`Forwarded`, RFC 7239,
or `X-Forwarded-For`) is read from its end, where the nearest proxy has written: what is further to the left came
with the request, and anybody may have made it up. Where the two headers tell different clients neither is believed:
a proxy writes one of them and passes the other on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

REMEMBERED = 1024
"""Addresses whose network is worked out once."""
NETWORK_BITS_V6 = 64
"""One customer of a provider holds a network of this size, so its addresses count as one."""

_ELEMENT = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*")+')
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;\s]*))', re.IGNORECASE)
_NODE = re.compile(
    r"\[(?P<v6>[0-9a-fA-F:.]+)\](?::\d+)?|(?P<v4>\d+\.\d+\.\d+\.\d+)(?::\d+)?|(?P<bare>[0-9a-fA-F:.]+)"
)


def parse_network(text: str) -> Network | None:
    """An address or a network, as `10.0.0.0/8`."""
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
        """Who asks, as far as it is known: the peer itself, or the one whom trusted proxies name."""
        if not self.networks or not self._trusts(_address(peer)):
            return peer
        lists = (_forwarded(_joined(headers, b"forwarded")), _listed(_joined(headers, b"x-forwarded-for")))
        told = {self._nearest(hops, peer) for hops in lists if hops}
        return told.pop() if len(told) == 1 else peer

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in each for each in self.networks)

    def _nearest(self, hops: list[str], peer: str) -> str:
        """The last of them that is no proxy of ours. One that cannot be read hides all before it."""
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
    """The address of `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]:80`; none of a name that hides it."""
    match = _NODE.fullmatch(node)
    if match is None:
        return None
    try:
        found = ipaddress.ip_address(match["v6"] or match["v4"] or match["bare"])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


@lru_cache(maxsize=REMEMBERED)
def network_of(address: str) -> str:
    """The key of a remote address: itself, or its network for version 6. A socket's path is itself too."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return address
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, NETWORK_BITS_V6), strict=False))
