"""Login links and share links in a real browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.patience import LONG_S
from tests.support.browser import Page, need_browser, running_browser
from tests.support.daemons import Running, running_daemon

from turnwire.cli.browser import start_browser

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G13")]


@pytest.fixture
def browser_program() -> str:
    return need_browser()


@asynccontextmanager
async def opened(tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Running, Page]]:
    with anyio.fail_after(LONG_S):
        async with (
            running_daemon(tmp_path / "d", **settings) as running,
            running_browser(tmp_path / "browser") as browser,
        ):
            yield running, await browser.page()


@pytest.mark.usefixtures("browser_program")
async def test_the_file_that_a_browser_is_started_with_logs_it_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(address: str) -> bool:
        started.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", start)
    async with opened(tmp_path) as (running, page):
        link = running.daemon.login.login_link(running.url)
        assert start_browser(link, {"HOME": str(tmp_path), "DISPLAY": ":0"})
        await page.ask("Page.navigate", url=started[0])
        await page.until(f"location.href === '{running.url}/'")
        assert (
            await page.run("fetch('capabilities').then(reply => reply.json()).then(told => told.caller.role)")
            == "owner"
        )


@pytest.mark.usefixtures("browser_program")
async def test_a_share_link_lets_a_browser_read_its_session_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as (running, page), running.client() as owner:
        session_id = (await owner.post("/session")).json()["sessionId"]
        await page.open((await owner.post(f"/session/{session_id}/share")).json()["url"])
        await page.until(f"location.href === '{running.url}/'")
        asked = "Promise.all(%s.map(([method, path]) => fetch(path, {method}).then(reply => reply.status)))"
        paths = [["GET", f"/session/{session_id}"], ["POST", f"/session/{session_id}/cancel"], ["GET", "/tokens"]]
        assert await page.run(asked % paths) == [200, 403, 403]


@pytest.mark.usefixtures("browser_program")
async def test_a_link_that_was_used_says_so_where_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as (running, page):
        await page.open(f"{running.url}/login#used")
        await page.until("document.body.innerText.includes('This link was used')")
        assert await page.run("location.href") == f"{running.url}/login"


@pytest.mark.usefixtures("browser_program")
async def test_without_the_page_a_login_says_what_it_is_good_for(tmp_path: Path) -> None:
    async with opened(tmp_path, page=False) as (running, page):
        await page.open(running.daemon.login.login_link(running.url))
        await page.until("document.body.innerText.includes('You are logged in')")
