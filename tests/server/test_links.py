"""Login links and share links in a real browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, Page, expect
from starlette.types import Receive, Scope, Send
from tests.patience import LONG_S
from tests.support.browser import page_key, watched
from tests.support.daemons import Running, running_daemon

from turnwire.cli.credentials import start_browser
from turnwire.server.listener import listen

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


@asynccontextmanager
async def opened(browser: Browser, tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Running, Page]]:
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "d", **settings) as running, watched(browser) as (context, watch):
            # A page without a login, and a daemon without a page.
            watch.expect("40[14]")
            yield running, await context.new_page()


async def test_the_file_that_a_browser_is_started_with_logs_it_in(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(address: str) -> bool:
        started.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", start)
    async with opened(browser, tmp_path) as (running, page):
        link = await running.daemon.login.login_link(running.url)
        assert start_browser(link, {"HOME": str(tmp_path), "DISPLAY": ":0"})
        await page.goto(started[0])
        await page.wait_for_url(f"{running.url}/")
        told = await page.request.get(f"{running.url}/capabilities", headers=await page_key(page))
        assert (await told.json())["caller"]["role"] == "owner"


async def test_another_server_of_the_host_gets_half_a_login_and_can_do_nothing_with_it(
    browser: Browser, tmp_path: Path
) -> None:
    seen: list[str] = []

    async def other(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"cookie")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<!doctype html><title>a dev server</title>"})

    async with opened(browser, tmp_path) as (running, page), anyio.create_task_group() as tasks:
        await page.goto(await running.daemon.login.login_link(running.url))
        await page.wait_for_url(f"{running.url}/")
        assert await page_key(page)
        ready, urls = anyio.Event(), list[str]()

        def listening(url: str) -> None:
            urls.append(url)
            ready.set()

        tasks.start_soon(partial(listen, other, host="127.0.0.1", port=0, ready=listening, stop=anyio.Event()))
        await ready.wait()
        await page.goto(urls[0])
        assert await page_key(page) == {}, "another port is another origin"
        [cookie] = seen
        assert cookie.startswith("turnwire")
        forged = {"Cookie": cookie, "Origin": running.url, "Sec-Fetch-Site": "same-origin"}
        async with running.stranger(headers=forged) as thief:
            made = await thief.post("/tokens", json={"name": "eve", "role": "owner"})
            read = [await thief.get(path) for path in ("/capabilities", "/session", "/events")]
            assert [each.status_code for each in (made, *read)] == [401] * 4
        tasks.cancel_scope.cancel()


async def test_a_link_that_was_used_says_so_where_it_is(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as (running, page):
        await page.goto(f"{running.url}/login#used")
        await expect(page.locator("body")).to_contain_text("This link has expired or was already used")
        await expect(page).to_have_url(f"{running.url}/#/link-expired")


async def test_without_the_page_a_login_says_what_it_is_good_for(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, page=False) as (running, page):
        await page.goto(await running.daemon.login.login_link(running.url))
        await expect(page.locator("body")).to_contain_text("You are logged in")
