"""Reading a web page: `fetch`.

It is bounded in size, in time and in redirects; GET only. It is offered only if the user who started the agent
allowed it, and asks like any tool that leaves the machine: a URL can leak data that the model has read.

A name is resolved once, every address it has is checked, and the connection goes to a checked address; so a name
that resolves differently a moment later changes nothing. Each redirect is checked in the same way. Private,
loopback, link-local and other special addresses are refused, because they lead to services that trust their network
(cloud metadata, routers, databases), unless the host is named in `private_hosts`. Proxies are not used: they would
resolve the name again.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
import sys
from collections.abc import Collection
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import anyio
import httpx
from anyio import to_thread
from msgspec import Meta

from turnwire_agent.tools.tool import Arguments, checked, failed, shown, told, tool_spec, wrong
from turnwire_agent.tools.workplace import ShownCall, Workplace

FETCH_S, REDIRECTS = 30.0, 5

PAGE_BYTES, PAGE_CHARACTERS = 4 * 2**20, 40_000
"""Maximum bytes read of a page, and maximum characters of its text returned at a time."""

MARKUP_CHARACTERS, PARSE_S = 512 * 1024, 5.0
"""Maximum characters of HTML that are parsed, and the time limit. A large ordinary page needs 0.2 s."""

PROGRAM = Path(__file__).with_name("page_program.py")

LAST_PORT = 65_535

REDIRECT = {301, 302, 303, 307, 308}

TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")

NAT64, GLOBAL_UNICAST = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("2000::/3")
"""The NAT64 prefix, which represents IPv4 addresses, and the range of all public IPv6 unicast addresses."""

HEADERS: Final = {
    "User-Agent": "turnwire",
    "Accept": "text/html, text/plain, text/markdown, application/json, */*;q=0.1",
    "Accept-Encoding": "identity",
}


class FetchArguments(Arguments):
    url: Annotated[str, Meta(description="An http or https address.", max_length=4000)]
    offset: Annotated[int, Meta(description="How many characters of the text to leave out.", ge=0)] = 0


class Page(NamedTuple):
    """A server's response."""

    address: str
    kind: str
    text: str
    is_cut: bool


class Fetch:
    """The tool that returns a web page as text."""

    spec = tool_spec(
        "fetch",
        "Get a web page or another text by its http or https address. HTML is given as text. Long texts are cut; "
        "read on with `offset`.",
        FetchArguments,
    )
    kind = "fetch"
    asks = True
    edits = False

    def __init__(
        self, private_hosts: Collection[str] = (), within_s: float = FETCH_S, parse_s: float = PARSE_S
    ) -> None:
        """`private_hosts` are names or addresses that may be in a private network, such as `localhost`."""
        self._parse_s = parse_s
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
            # This includes redirects that the library cannot parse: it reads them before we do.
            raise failed("the server cannot be reached, or broke off; check the address, or try later") from None
        if page.kind in ("text/html", "application/xhtml+xml"):
            is_cut = page.is_cut or len(page.text) > MARKUP_CHARACTERS
            page = page._replace(text=await self._text_of(page), is_cut=is_cut)
        return await shown(call, _part(page, page.text, asked.offset))

    async def _text_of(self, page: Page) -> str:
        """Return the text of HTML. Raises `RequestRefused` if parsing exceeds its time limit."""
        command = [sys.executable, "-I", "-S", str(PROGRAM), page.address]
        markup = page.text[:MARKUP_CHARACTERS].encode(errors="replace")
        try:
            with anyio.fail_after(self._parse_s):
                # Killed when this is cancelled.
                ended = await anyio.run_process(command, input=markup, stderr=subprocess.DEVNULL)
        except (TimeoutError, subprocess.CalledProcessError, OSError):
            raise failed("the page's HTML is too complicated to be read; use another page") from None
        return ended.stdout.decode()

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
                # Connect to the number, so that the name is not resolved again; the name stays in `Host` and in the
                # handshake.
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
        """Return an allowed address of the host; all of its addresses have to be allowed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        host = _host(url)
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        if host not in self._private_hosts and not all(map(_is_public, addresses)):
            raise wrong("the address is in a private network; only public ones are fetched", "private_address")
        return addresses[0]


def _host(url: httpx.URL) -> str:
    """Return the host in its wire form: lower-case ASCII, whatever alphabet it is shown in."""
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
    """Return the IPv4 address that a translator of this network (NAT64) would use."""
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
