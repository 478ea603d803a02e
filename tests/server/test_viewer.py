"""/docs: the viewer is the package that its note names, and works in a real browser that may load nothing else."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, Page, expect
from tests.patience import LONG_S
from tests.support.browser import Watch, watched
from tests.support.daemons import Running, running_daemon

from turnwire.server.routes.document import FOLDER
from turnwire.server.routes.table import ENDPOINTS

pytestmark = pytest.mark.anyio

TRY_IT = "#operations-session-get_session"


@asynccontextmanager
async def opened(browser: Browser, tmp_path: Path) -> AsyncGenerator[tuple[Running, Page, Watch]]:
    with anyio.fail_after(LONG_S):
        async with (
            running_daemon(tmp_path / "d") as running,
            watched(browser, running.url) as (context, watch),
        ):
            page = await context.new_page()
            await page.goto(f"{running.url}/docs")
            await expect(page.locator(".opblock").first).to_be_visible()
            yield running, page, watch


async def try_sessions(page: Page, status: str) -> None:
    """Call `GET /session` by the page's own buttons; it shows the answer."""
    route = page.locator(TRY_IT)
    await route.locator(".opblock-summary-control").click()
    await route.locator(".try-out__btn").click()
    await route.locator(".execute").click()
    await expect(route.locator(".live-responses-table")).to_contain_text(status)


def test_every_file_of_the_viewer_is_the_one_that_its_note_names() -> None:
    note = tomllib.loads((FOLDER / "package.toml").read_text(encoding="utf-8"))
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in FOLDER.iterdir()
        if each.name != "package.toml"
    }
    assert (note["package"], note["license"]) == ("swagger-ui-dist", "Apache-2.0")
    assert found == note["sha256"]


async def test_the_page_needs_no_credential_and_forbids_what_is_not_its_own(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.stranger() as http:
        page = await http.get("/docs")
        file = await http.get("/docs/swagger-ui-bundle.js")
    assert page.status_code == file.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert file.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.full("needs a browser")
async def test_a_browser_shows_every_route_and_asks_nobody_else(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as (_, page, watch):
        await expect(page.locator(".opblock")).to_have_count(len(ENDPOINTS))
        assert watch.requests


@pytest.mark.full("needs a browser")
async def test_a_token_given_to_the_page_lets_its_user_try_a_route(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as (running, page, watch):
        watch.expect("401")
        await try_sessions(page, "401")
        await page.locator(".auth-wrapper .authorize").first.click()
        await page.locator("#auth-bearer-value").fill(running.token)
        await page.locator(".auth-container .authorize").click()
        await page.locator(".auth-container .btn-done").click()
        await page.locator(f"{TRY_IT} .execute").click()
        await expect(page.locator(f"{TRY_IT} .live-responses-table")).to_contain_text("200")


@pytest.mark.full("needs a browser")
async def test_a_login_lets_the_browser_try_a_route_without_a_token(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as (running, page, _):
        await page.goto(await running.daemon.login.login_link(running.url))
        await page.wait_for_url(f"{running.url}/")
        await page.goto(f"{running.url}/docs")
        await try_sessions(page, "200")
