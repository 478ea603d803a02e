"""The examples that need no SDK: TypeScript on Node, and a page in a real browser, each with a real daemon."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, Page, expect
from tests.interop.peers import PEERS, ROOT, absent
from tests.patience import LONG_S
from tests.support.browser import watched
from tests.support.cut_proxy import cutting
from tests.support.daemons import TOKEN, running_daemon

pytestmark = pytest.mark.anyio

TYPESCRIPT = ROOT / "examples" / "typescript"
BROWSER = ROOT / "examples" / "browser"
COMPILER = PEERS / "typescript"
NODE = COMPILER / "node_modules" / "node" / "bin" / "node"
SCRIPT = 'say 3 "word "\nask tool allow_once,reject_once\nsay 1 " done"'
"""Script of the scripted agent: it sends text, asks, sends the answer it got, and sends text again."""


@pytest.fixture
def node() -> str:
    """Return a Node that runs TypeScript, with the compiler next to it."""
    if not (COMPILER / ".installed").exists():
        absent(f"{COMPILER.relative_to(ROOT)} is not there; run: make peers")
    return str(NODE)


async def run_node(node: str, *words: str, **env: str) -> tuple[int, str]:
    with anyio.fail_after(LONG_S):
        done = await anyio.run_process([node, *words], check=False, env=os.environ | env)
    return done.returncode, (done.stdout + done.stderr).decode()


async def test_the_types_of_the_typescript_example_hold(node: str) -> None:
    compiler = str(COMPILER / "node_modules" / "typescript" / "bin" / "tsc")
    assert await run_node(node, compiler, "-p", str(TYPESCRIPT)) == (0, "")


async def test_the_typescript_example_prints_the_answer_over_a_connection_that_is_cut(
    node: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f'say 3 "word "\ngate {gate}\nask tool allow_once,reject_once\nsay 1 " done"'
    program = [node, str(TYPESCRIPT / "prompt.ts"), script]
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "d") as daemon, cutting(daemon.url) as proxy:
            env = os.environ | {"TURNWIRE_URL": proxy.url, "TURNWIRE_TOKEN": TOKEN}
            async with await anyio.open_process(program, env=env, stderr=None) as process:
                assert process.stdout is not None
                said = b""
                while said.count(b"word ") < 3:
                    said += await process.stdout.receive()
                before = proxy.opened
                proxy.cut_all()
                gate.touch()
                async for piece in process.stdout:
                    said += piece
            assert proxy.opened > before
    assert process.returncode == 0
    # Nothing twice, nothing lost.
    assert said.decode() == "word word word \n[tool: allow once]\nselected allow_once done\n[end_turn]\n"


async def test_the_typescript_example_tells_of_an_error_and_of_a_wrong_token(node: str, tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as daemon:

        async def said(token: str) -> tuple[int, str]:
            prompt = str(TYPESCRIPT / "prompt.ts"), "error -32001 no"
            return await run_node(node, *prompt, TURNWIRE_URL=daemon.url, TURNWIRE_TOKEN=token)

        code, failed = await said(TOKEN)
        assert code == 1
        assert "[failed: " in failed
        code, refused = await said("wrong")
        assert code == 1
        assert "credential" in refused


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that writes nothing to stderr."""

    def log_message(self, format: str, *args: object) -> None:
        """Discard log messages."""


@contextmanager
def pages(folder: Path) -> Generator[str]:
    """The origin of a server of these files."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def fill_in(page: Page, origin: str, url: str, text: str) -> None:
    """Open the example's page, and send a prompt by it."""
    await page.goto(f"{origin}/index.html")
    await page.locator("[name=url]").fill(url)
    await page.locator("[name=token]").fill(TOKEN)
    await page.locator("[name=text]").fill(text)
    await page.locator("form button").click()


async def test_the_page_prompts_asks_its_reader_and_shows_the_end(browser: Browser, tmp_path: Path) -> None:
    with anyio.fail_after(LONG_S), pages(BROWSER) as origin:
        async with (
            running_daemon(tmp_path / "d", allow_origin=(origin,)) as daemon,
            watched(browser, origin, daemon.url) as (context, _),
        ):
            page = await context.new_page()
            await fill_in(page, origin, daemon.url, SCRIPT)
            await expect(page.locator("fieldset")).to_contain_text("tool")
            await page.locator("[data-option=allow_once]").click()
            await expect(page.locator("#end")).to_have_text("end_turn")
            await expect(page.locator("output")).to_have_text("word word word selected allow_once done")
            await expect(page.locator("fieldset")).to_be_hidden()


async def test_a_page_that_was_not_let_in_is_told_and_gets_nothing(browser: Browser, tmp_path: Path) -> None:
    with anyio.fail_after(LONG_S), pages(BROWSER) as origin:
        async with running_daemon(tmp_path / "d") as daemon, watched(browser) as (context, watch):
            watch.expect("CORS policy|net::ERR_FAILED")
            page = await context.new_page()
            await fill_in(page, origin, daemon.url, "hello")
            await expect(page.locator("#end")).to_contain_text("failed")
            async with daemon.client() as http:
                assert (await http.get("/session")).json()["sessions"] == []
