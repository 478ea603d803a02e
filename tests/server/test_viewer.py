"""/docs: the viewer is the package that its note names, and works in a real browser that may load nothing else."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.patience import LONG_S
from tests.support.browser import Page, need_browser, running_browser
from tests.support.daemons import Running, running_daemon

from turnwire.server.routes.table import ENDPOINTS
from turnwire.server.routes.viewer import FOLDER

pytestmark = [pytest.mark.anyio]

TRY_IT = "#operations-session-get_session"
SESSIONS = "document.querySelector('#operations-session-get_session .live-responses-table')?.innerText"


@pytest.fixture
def browser_program() -> str:
    return need_browser()


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncGenerator[tuple[Running, Page]]:
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "d") as running, running_browser(tmp_path / "browser") as browser:
            page = await browser.page()
            await page.open(f"{running.url}/docs")
            await page.until("document.querySelector('.opblock')")
            yield running, page


async def try_sessions(page: Page) -> str:
    """Call `GET /session` by the page's own buttons; gives what it shows of the answer."""
    await page.click(f"{TRY_IT} .opblock-summary-control")
    await page.click(f"{TRY_IT} .try-out__btn")
    await page.click(f"{TRY_IT} .execute")
    return await page.until(SESSIONS)


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


async def test_the_page_is_off_with_rest(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", rest=False) as running, running.client() as http:
        assert (await http.get("/docs")).status_code == 404


@pytest.mark.usefixtures("browser_program")
async def test_a_browser_shows_every_route_and_asks_nobody_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as (running, page):
        assert await page.run("document.querySelectorAll('.opblock').length") == len(ENDPOINTS)
        assert page.complaints == []
        assert [each for each in page.requests if not each.startswith(f"{running.url}/")] == []


@pytest.mark.usefixtures("browser_program")
async def test_a_token_given_to_the_page_lets_its_user_try_a_route(tmp_path: Path) -> None:
    async with opened(tmp_path) as (running, page):
        assert "401" in await try_sessions(page)
        await page.click(".auth-wrapper .authorize")
        await page.write("#auth-bearer-value", running.token)
        await page.click(".auth-container .authorize")
        await page.click(f"{TRY_IT} .execute")
        await page.until(f"{SESSIONS}.includes('200')")
        assert all("401" in each for each in page.complaints), page.complaints


@pytest.mark.usefixtures("browser_program")
async def test_a_login_lets_the_browser_try_a_route_without_a_token(tmp_path: Path) -> None:
    async with opened(tmp_path) as (running, page):
        await page.open(running.daemon.login.login_link(running.url))
        await page.until(f"location.href === '{running.url}/'")
        await page.open(f"{running.url}/docs")
        assert "200" in await try_sessions(page)
        assert page.complaints == []
