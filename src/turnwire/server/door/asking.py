"""What the guard reads of a request: the headers that say where it comes from and who sends it.

Takes an ASGI scope; gives `Asked`. Never reads a body, and never lets one header stand for another: one that may
come once only and comes twice is refused.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from turnwire.errors import BadRequest, HeadersTooLarge
from turnwire.server.door.origins import Host, parse_host

_ONCE = frozenset(
    {
        *(b"host", b"origin", b"authorization", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"),
        b"access-control-request-method",
    }
)
_SECRET_NAMES = frozenset({"token", "access_token", "auth_token", "turnwire_token", "authorization", "bearer"})
_SECRET_VALUE = re.compile(r"tw_[0-9a-f]{12}_.{16,}")
_HEADER_EXTRA = 4
"""Colon, space and line end of each header."""


class Asked(NamedTuple):
    """Where a request comes from and who sends it, as it says itself."""

    method: str
    path: str
    scheme: str
    host: Host
    origin: str | None
    site: str | None
    """`Sec-Fetch-Site`: how a browser relates the page that asks to us."""
    is_navigation: bool
    """A person opens it as a page of its own, not inside another."""
    preflight: str | None
    """The method that a page of another origin wants to use."""
    authorization: str | None
    cookies: str
    address: str
    """The remote address; empty for a local socket."""


def read_asked(scope: Any, most_bytes: int) -> Asked:
    """Read the headers.

    Raises:
        HeadersTooLarge: They and the address line are longer than `most_bytes`.
        BadRequest: No host, a header that may come once only comes twice, or a secret in the query.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    query: bytes = scope.get("query_string", b"")
    size = len(query) + len(scope["path"]) + sum(len(name) + len(value) + _HEADER_EXTRA for name, value in headers)
    if size > most_bytes:
        raise HeadersTooLarge("the headers are too large; send fewer or shorter ones", limit="header_bytes")
    once, cookies = _pick(headers)
    host = parse_host(once.get(b"host", ""))
    if host is None:
        raise BadRequest("the request names no host; send one Host header with a name or an address")
    if query:
        _refuse_secrets(query)
    client = scope.get("client")
    return Asked(
        # A socket is opened with GET, but what it is for is more than reading.
        scope.get("method", "CONNECT"),
        # Inside another application the path begins with where that one put us.
        scope["path"].removeprefix(scope.get("root_path", "")),
        scope.get("scheme", "http"),
        host,
        once.get(b"origin"),
        once.get(b"sec-fetch-site"),
        (once.get(b"sec-fetch-mode"), once.get(b"sec-fetch-dest")) == ("navigate", "document"),
        once.get(b"access-control-request-method"),
        once.get(b"authorization"),
        cookies,
        client[0] if client else "",
    )


def cookie_of(cookies: str, name: str) -> str | None:
    """The value of one cookie."""
    for each in cookies.split(";"):
        key, found, value = each.strip().partition("=")
        if found and key == name:
            return value
    return None


def _pick(headers: list[tuple[bytes, bytes]]) -> tuple[dict[bytes, str], str]:
    once: dict[bytes, str] = {}
    cookies: list[str] = []
    for name, value in headers:
        if name == b"cookie":
            cookies.append(value.decode("latin-1"))
        elif name in _ONCE:
            if name in once:
                raise BadRequest(f"the header {name.decode()} comes more than once; send it once")
            once[name] = value.decode("latin-1").strip()
    return once, "; ".join(cookies)


def _refuse_secrets(query: bytes) -> None:
    """A query stands in logs, histories and `Referer` headers, where no secret may be."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if any(name.lower() in _SECRET_NAMES or _SECRET_VALUE.search(value) for name, value in pairs):
        raise BadRequest(
            "a token does not belong into a URL, where logs and histories keep it; send it as `Authorization:"
            " Bearer …`, and revoke this one if others may have seen it"
        )
