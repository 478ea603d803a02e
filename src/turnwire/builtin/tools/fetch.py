"""Reading a page of the web: `fetch`.

Bounded in size, in time and in redirects; GET only. Offered only if whoever started the agent allowed it, and asks
the user like any tool that leaves the machine: an address can carry away what the model has read.

A name is looked up once, every address it has is checked, and the connection goes to an address that was checked;
so a name that means another machine a moment later changes nothing. Each redirect goes the same way. Private,
loopback, link-local and other special addresses are refused, for behind them are things that trust their network
(cloud metadata, routers, databases), unless the host is named in `private_hosts`. Proxies are not used: they would
look the name up again.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Collection
from contextlib import aclosing
from html.parser import HTMLParser
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urljoin

import anyio
import httpx
from anyio import to_thread
from msgspec import Meta

from turnwire.builtin.tools.tool import Arguments, checked, failed, shown, told, tool_spec, wrong
from turnwire.builtin.tools.workplace import ShownCall, Workplace

FETCH_S, REDIRECTS = 30.0, 5

PAGE_BYTES, PAGE_CHARACTERS = 4 * 2**20, 40_000
"""What is read of a page, and what of its text a model gets at a time."""

LAST_PORT = 65_535

REDIRECT = {301, 302, 303, 307, 308}

TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")

NAT64, GLOBAL_UNICAST = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("2000::/3")
"""All that is given out to the public is in the second; the first stands for the addresses of IPv4."""

HEADERS: Final = {
    "User-Agent": "turnwire",
    "Accept": "text/html, text/plain, text/markdown, application/json, */*;q=0.1",
    "Accept-Encoding": "identity",
}


class FetchArguments(Arguments):
    url: Annotated[str, Meta(description="An http or https address.", max_length=4000)]
    offset: Annotated[int, Meta(description="How many characters of the text to leave out.", ge=0)] = 0


class Page(NamedTuple):
    """What a server gave."""

    address: str
    kind: str
    text: str
    is_cut: bool


class Fetch:
    """A page of the web, as text."""

    spec = tool_spec(
        "fetch",
        "Get a web page or another text by its http or https address. HTML is given as text. Long texts are cut; "
        "read on with `offset`.",
        FetchArguments,
    )
    kind = "fetch"
    asks = True
    edits = False

    def __init__(self, private_hosts: Collection[str] = (), within_s: float = FETCH_S) -> None:
        """`private_hosts` are names or addresses that may be in a private network, such as `localhost`."""
        self._private_hosts = frozenset(host.lower() for host in private_hosts)
        self._within_s = within_s
        self._trust: ssl.SSLContext | None = None

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Fetch {told(arguments, 'url')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        self._asked(workplace, arguments)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        asked, url = self._asked(workplace, arguments)
        try:
            with anyio.fail_after(self._within_s):
                page = await self._get(url)
        except TimeoutError:
            raise failed(
                f"the server did not answer in full within {self._within_s:g} s; try again later"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
            # Also what the library cannot read of a redirect: it looks at it before we do.
            raise failed("the server cannot be reached, or broke off; check the address, or try later") from None
        text = (
            html_text(page.text, page.address) if page.kind in ("text/html", "application/xhtml+xml") else page.text
        )
        return await shown(call, _part(page, text, asked.offset))

    def _asked(self, workplace: Workplace, arguments: dict[str, Any]) -> tuple[FetchArguments, httpx.URL]:
        asked = checked(arguments, FetchArguments, self.spec.name)
        if not workplace.allows_fetch:
            raise wrong(
                "fetching is not allowed here; the user can allow it when the agent is started", "not_allowed"
            )
        return asked, _checked_url(asked.url)

    async def _get(self, url: httpx.URL) -> Page:
        if self._trust is None:
            # Reads all certificates of the machine.
            self._trust = await to_thread.run_sync(httpx.create_ssl_context)
        async with httpx.AsyncClient(verify=self._trust, trust_env=False, timeout=self._within_s) as client:
            for _ in range(REDIRECTS + 1):
                address = await self._address(url)
                # By its number, so nobody looks the name up again; the name stays in `Host` and in the handshake.
                request = client.build_request(
                    "GET",
                    url.copy_with(host=address),
                    headers={**HEADERS, "Host": url.netloc.decode("ascii")},
                    extensions={"sni_hostname": _host(url)},
                )
                response = await client.send(request, stream=True)
                async with aclosing(response):
                    if response.status_code not in REDIRECT or "location" not in response.headers:
                        return await _read(response, str(url))
                    url = _checked_url(str(url.join(response.headers["location"])))
        raise failed("the address leads from redirect to redirect; use the last address itself")

    async def _address(self, url: httpx.URL) -> str:
        """An address of the host that may be reached; all of its addresses have to be such."""
        port = url.port or (443 if url.scheme == "https" else 80)
        host = _host(url)
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        if host not in self._private_hosts and not all(map(_is_public, addresses)):
            raise wrong("the address is in a private network; only public ones are fetched", "private_address")
        return addresses[0]


def _host(url: httpx.URL) -> str:
    """As machines write it: small ASCII letters, whatever alphabet it is shown in."""
    return url.raw_host.decode("ascii").lower()


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.strip())
        url.netloc.decode("ascii")
        # Reading it fails for a name that only claims to be in another alphabet.
        host = url.host
    except (httpx.InvalidURL, ValueError, TypeError):
        raise wrong("`url` is no address; give one such as https://example.org/page") from None
    if (url.port or 0) > LAST_PORT:
        raise wrong(f"`url` has a port above {LAST_PORT}; check it")
    if url.scheme not in ("http", "https") or not host:
        raise wrong("only http and https addresses are fetched; give one such as https://example.org/page")
    if url.userinfo:
        raise wrong("an address with a user name in it is not fetched; leave that out")
    return url.copy_with(fragment=None)


def _is_public(address: str) -> bool:
    # An IPv6 address may have a zone, and one that only wraps an IPv4 address is judged by that.
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or _translated(ip)
        if inner is None and ip not in GLOBAL_UNICAST:
            return False
        ip = inner or ip
    return ip.is_global and not ip.is_multicast


def _translated(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """What a translator of this network (NAT64) makes of it."""
    return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF) if ip in NAT64 else None


async def _read(response: httpx.Response, address: str) -> Page:
    if response.status_code >= 400:
        raise failed(f"the server answered {response.status_code}; check the address", "http_status")
    kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    if not kind.startswith(TEXT_TYPES) and not kind.endswith(("+xml", "+json")):
        raise failed("there is no text at that address, but something to download; use another one", "not_text")
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > PAGE_BYTES:
            break
    try:
        text = bytes(content[:PAGE_BYTES]).decode(response.charset_encoding or "utf-8", errors="replace")
    except LookupError:
        text = bytes(content[:PAGE_BYTES]).decode(errors="replace")
    return Page(address, kind, text, len(content) > PAGE_BYTES)


def _part(page: Page, text: str, offset: int) -> str:
    if offset and offset >= len(text):
        raise wrong(f"the text has {len(text)} characters; give a smaller `offset`")
    part = text[offset : offset + PAGE_CHARACTERS]
    end = offset + len(part)
    notes = f"(From {page.address})\n"
    if end < len(text):
        notes += f"(Characters {offset} to {end} of {len(text)}. Read on with offset {end}.)\n"
    if page.is_cut:
        notes += "(The page is longer than what was read of it.)\n"
    return f"{notes}\n{part or '(There is no text.)'}\n"


# -- a page of HTML as text --------------------------------------------------------------------------------


UNSEEN = {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}

BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "table", "tr"),
    *("blockquote", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "form", "figure", "dl", "dt", "dd", "hr", "li"),
}


def html_text(page: str, address: str) -> str:
    """A page, however broken, roughly as Markdown, without scripts, styles and what is not shown. Links are given
    as they lead from `address`."""
    reader = _Reader(address)
    reader.feed(page)
    reader.close()
    text = "".join(reader.parts).replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _joined(address: str, link: str) -> str | None:
    """Where a link leads; none for one that leads nowhere outside its page."""
    try:
        target = urljoin(address, link.strip())
    except ValueError:
        return None
    return target if target.startswith(("http://", "https://")) and not link.startswith("#") else None


class _Reader(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__(convert_charrefs=True)
        self._address = address
        self._unseen: list[str] = []
        self._pre = 0
        self._link: str | None = None
        self._link_starts = 0
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            # A `head` that is never closed ends where the body begins.
            self._unseen.append(tag)
        elif tag == "body":
            self._unseen.clear()
        elif not self._unseen:
            self._start(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            while self._unseen.pop() != tag:
                pass
        elif not self._unseen:
            self._end(tag)

    def _take_text(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data if self._pre else re.sub(r"\s+", " ", data))

    handle_data = _take_text

    def _start(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag in BLOCKS or tag == "br":
            self.parts.append("\n" if tag in ("br", "li", "tr") else "\n\n")
        if tag == "li":
            self.parts.append("- ")
        elif re.fullmatch(r"h[1-6]", tag):
            self.parts.append("#" * int(tag[1]) + " ")
        elif tag == "pre":
            self._pre += 1
            self.parts.append("```\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag == "a":
            self._link, self._link_starts = attributes.get("href"), len(self.parts)

    def _end(self, tag: str) -> None:
        if tag == "a" and self._link:
            text = "".join(self.parts[self._link_starts :]).strip()
            target = _joined(self._address, self._link)
            if text and target:
                self.parts[self._link_starts :] = [f"[{text}]({target})"]
            self._link = None
        elif tag == "pre" and self._pre:
            self._pre -= 1
            self.parts.append("\n```\n")
        elif tag in BLOCKS:
            self.parts.append("\n")
