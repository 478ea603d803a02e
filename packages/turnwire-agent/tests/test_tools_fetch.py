"""Fetching pages: from a real server on this machine, which has to be allowed by name to be reached at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from agent_kit.tool_kit import WAIT_S, Heard, refused, use
from turnwire.errors import RequestRefused
from turnwire_agent.tools import Workplace
from turnwire_agent.tools.fetch import Fetch
from turnwire_agent.tools.page_program import CPU_S, html_text

pytestmark = pytest.mark.anyio

PAGE = """<!doctype html><html><head><title>T</title><script>bad()</script></head><body>
<h1>Title</h1><p>Some&nbsp;text &amp; more,
on two lines. <a href="/next?a=1">A link</a> and <a href="#top">none</a>.</p>
<ul><li>one<li>two</ul><pre>code
  more</pre><style>p{}</style><table><tr><td>a</td><td>b</td></tr></table></body></html>"""


class Web:
    """A server with a page for each path, and the requested paths."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    def put(
        self,
        path: str,
        body: str | bytes,
        kind: str = "text/plain",
        status: int = 200,
        length: int = 0,
        **headers: str,
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.pages[path] = (
            status,
            {"Content-Type": kind, "Content-Length": str(length or len(content)), **headers},
            content,
        )


@contextmanager
def served() -> Generator[Web]:
    web = Web()

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked.append((self.path, self.headers["Host"]))
            status, headers, body = web.pages[self.path]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        web.url = f"http://localhost:{server.server_address[1]}"
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def web() -> Generator[Web]:
    with served() as web:
        yield web


@pytest.fixture
def where(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, allows_fetch=True)


OPEN = Fetch(["localhost"])


async def test_a_page_is_given_as_text(web: Web, where: Workplace) -> None:
    web.put("/page", PAGE, "text/html; charset=utf-8")
    assert await use(OPEN, where, url=f"{web.url}/page#part") == (
        f"(From {web.url}/page)\n\n# Title\n\nSome text & more, on two lines. [A link]({web.url}/next?a=1) "
        "and none.\n\n- one\n- two\n\n```\ncode\n  more\n```\n\n | a | b\n\n"
    )
    assert web.asked == [("/page", web.url.removeprefix("http://"))]


async def test_text_and_json_are_given_as_they_are(web: Web, where: Workplace) -> None:
    web.put("/a", '{"a": "é"}', "application/json")
    web.put("/b", "é".encode("latin-1"), "text/plain; charset=iso-8859-1")
    assert '{"a": "é"}' in await use(OPEN, where, url=f"{web.url}/a")
    assert (await use(OPEN, where, url=f"{web.url}/b")).endswith("\n\né\n")


async def test_a_long_page_is_read_in_parts(web: Web, where: Workplace) -> None:
    web.put("/long", "x" * 40_000 + "the rest")
    call = Heard()
    first = await use(OPEN, where, call, url=f"{web.url}/long")
    assert 8000 < len(call.text) < 9000, "the user is shown both ends of it"
    assert "(Characters 0 to 40000 of 40008. Read on with offset 40000.)" in first
    assert (await use(OPEN, where, url=f"{web.url}/long", offset=40_000)).endswith("\n\nthe rest\n")
    assert "40008 characters" in str(await refused(OPEN, where, url=f"{web.url}/long", offset=50_000))


async def test_a_huge_page_is_read_to_a_bound(web: Web, where: Workplace) -> None:
    web.put("/huge", b"x" * 6_000_000)
    text = await use(OPEN, where, url=f"{web.url}/huge")
    assert "of 4194304." in text
    assert "longer than what was read" in text


async def test_redirects_are_followed_and_each_is_checked(web: Web, where: Workplace) -> None:
    web.put("/a", "", status=302, Location="/b")
    web.put("/b", "", status=307, Location=f"{web.url}/c")
    web.put("/c", "here")
    assert (await use(OPEN, where, url=f"{web.url}/a")).startswith(f"(From {web.url}/c)\n")
    # The same server under a name that is not allowed.
    web.put("/d", "", status=302, Location=web.url.replace("localhost", "127.0.0.1") + "/c")
    assert (await refused(OPEN, where, url=f"{web.url}/d")).reason == "private_address"
    web.put("/e", "", status=302, Location="file:///etc/passwd")
    assert "only http and https" in str(await refused(OPEN, where, url=f"{web.url}/e"))
    for location in ("http://xn--a/", "http://[::1/"):
        web.put("/g", "", status=302, Location=location)
        assert "check the address" in str(await refused(OPEN, where, url=f"{web.url}/g"))
    web.put("/f", "", status=302, Location="/f")
    assert "redirect to redirect" in str(await refused(OPEN, where, url=f"{web.url}/f"))
    assert [path for path, _ in web.asked].count("/f") == 6


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "0.0.0.0", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("[::1]", "[fd00::1]", "[fe80::1]", "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "2130706433", "224.0.0.1"),
        *("[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:a00:1::]", "[::7f00:1]"),
        *("[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "[fec0::1]", "[5f00::1]"),
    ],
)
async def test_private_addresses_are_refused(where: Workplace, host: str) -> None:
    assert (await refused(Fetch(), where, url=f"http://{host}:9/")).reason == "private_address"


async def test_nothing_is_fetched_unless_it_is_allowed(tmp_path: Path, web: Web) -> None:
    error = await refused(OPEN, Workplace(tmp_path), url=f"{web.url}/a")
    assert error.reason == "not_allowed"
    assert web.asked == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("example.org", "only http and https"),
        ("http://", "only http and https"),
        ("http://user:secret@example.org/", "user name"),
        ("http://example.org:x/", "no address"),
        ("http://example.org:70000/", "port"),
        ("http://[::1/", "no address"),
        ("http://xn--a/", "no address"),
        ("", "only http and https"),
    ],
)
async def test_what_is_no_address_is_told_in_words(where: Workplace, url: str, words: str) -> None:
    assert words in str(await refused(Fetch(), where, url=url))


async def test_failures_of_a_server_are_told_in_words(web: Web, where: Workplace) -> None:
    web.put("/gone", "nothing", status=404)
    web.put("/image", b"\x89PNG", "image/png")
    web.put("/cut", "short", length=100)
    assert "404" in str(await refused(OPEN, where, url=f"{web.url}/gone"))
    assert (await refused(OPEN, where, url=f"{web.url}/image")).reason == "not_text"
    assert "broke off" in str(await refused(OPEN, where, url=f"{web.url}/cut"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "cannot be reached" in str(
            await refused(OPEN, where, url=f"http://localhost:{unused.getsockname()[1]}/")
        )
    assert "cannot be reached" in str(await refused(OPEN, where, url="http://no-such-host.invalid/"))


async def test_a_server_that_never_answers_is_not_waited_for(where: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = await refused(
            Fetch(["localhost"], within_s=0.2), where, url=f"http://localhost:{silent.getsockname()[1]}/"
        )
    assert "within 0.2 s" in str(error)


async def test_a_cancelled_fetch_lets_go_at_once(where: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, anyio.fail_after(WAIT_S), ExitStack() as stack:
        connections: list[socket.socket] = []
        async with anyio.create_task_group() as tasks:
            url = f"http://localhost:{silent.getsockname()[1]}/"
            tasks.start_soon(OPEN.run, where, {"url": url}, Heard())
            connections.append(stack.enter_context((await to_thread.run_sync(silent.accept))[0]))
            tasks.cancel_scope.cancel()
        # The request, and then the end of the connection.
        while await to_thread.run_sync(connections[0].recv, 4096):
            pass


@pytest.mark.parametrize("markup", ["<a ", "<svg>", "<!--", "<![", "</p", "<script>"])
async def test_markup_that_takes_for_ever_is_given_up_and_holds_up_nobody(
    web: Web, where: Workplace, markup: str
) -> None:
    web.put("/slow", markup * (600_000 // len(markup)), "text/html")
    fetch, slept, took = Fetch(["localhost"], parse_s=1.0), 0, 0.0

    async def count() -> None:
        nonlocal slept
        while True:
            await anyio.sleep(0.01)
            slept += 1

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            began = anyio.current_time()
            with suppress(RequestRefused):
                await use(fetch, where, url=f"{web.url}/slow")
            took = anyio.current_time() - began
            tasks.cancel_scope.cancel()
    assert took < WAIT_S / 2
    assert slept > took, "the agent's loop kept running"


async def test_a_cancel_ends_the_parser(web: Web, where: Workplace) -> None:
    web.put("/slow", "<a " * 200_000, "text/html")
    children = set[int]()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            fetch = Fetch(["localhost"], parse_s=WAIT_S)
            tasks.start_soon(fetch.run, where, {"url": f"{web.url}/slow"}, Heard())
            while not (children := _parsers()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    with anyio.fail_after(CPU_S / 2):
        while children & _parsers():  # noqa: ASYNC110
            await anyio.sleep(0.01)


def _parsers() -> set[int]:
    """Return the ids of parsers that this process has started."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(each) for each in found if b"page_program" in Path(f"/proc/{each}/cmdline").read_bytes()}


@pytest.mark.parametrize(
    "page",
    [
        "<p>",
        "</p></div>",
        "<a href>x",
        "<a href='http://['>x</a>",
        "<pre>" * 50,
        "<head>x",
        "<!-- ",
        "<li>" * 9,
        "<![x",
    ],
)
def test_broken_html_is_read_somehow(page: str) -> None:
    assert html_text(f"before {page} after", "http://example.org/").startswith("before")
