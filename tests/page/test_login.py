"""A browser that logged in by a login link."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser
from tests.page.rig import OFFLINE, housed, visiting
from tests.support.browser import PHONE, page_key

pytestmark = pytest.mark.anyio


async def test_a_browser_stays_logged_in_over_a_kill_of_the_daemon(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        async with visiting(browser, house) as desk, visiting(browser, house, viewport=PHONE) as phone:
            for visitor in (desk, phone):
                visitor.watch.expect(OFFLINE)
            house.kill()
            house.come_back()
            for visitor in (desk, phone):
                own = await page_key(await visitor.open())
                told = await visitor.context.request.get(f"{house.url}/capabilities", headers=own)
                assert (await told.json())["caller"]["role"] == "owner"
