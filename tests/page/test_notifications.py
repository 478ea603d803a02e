"""Browser notifications: only if the user enabled them, when a turn ends or an agent asks, and never for the
visible session.
"""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect
from tests.page.rig import House, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio

TITLES = """async () => {
    const worker = await navigator.serviceWorker.getRegistration();
    return (await worker.getNotifications()).map(each => each.title).sort().join("; ");
}"""


async def shown(page: Page, titles: str) -> None:
    """Wait for exactly these notifications."""
    await page.wait_for_function(f"async () => (await ({TITLES})()) === {titles!r}")


async def test_notifications_report_finished_turns_and_open_requests(browser: Browser, house: House) -> None:
    one, two = house.session(title="one"), house.session("v2", title="two")
    async with visiting(browser, house, permissions=["notifications"]) as visitor:
        page = await visitor.session(house.session(title="looked at"))
        await expect(Talk(page).field).to_be_visible()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Turn on notifications").click()
        await expect(page.get_by_text("Notifications are on")).to_be_visible()
        house.served.said(one, 'say 3 "ko "')
        await shown(page, "one: turn finished")
        house.served.prompt(two, "ask tidy allow_once,reject_once")
        await shown(page, "one: turn finished; two: needs you")
        # Answered: no notification is needed any more.
        house.served.ask("POST", f"/session/{two}/cancel")
        await page.wait_for_function(f"async () => !(await ({TITLES})()).includes('needs you')")
        # The visible session causes no notification.
        await Talk(page).send('say 3 "li "')
        await Talk(page).has_ended("end_turn")
        assert "looked at" not in await page.evaluate(TITLES)


async def test_blocked_notifications_are_explained(browser: Browser, house: House) -> None:
    async with visiting(browser, house) as visitor:
        page = await visitor.open()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Turn on notifications").click()
        await expect(page.get_by_text("This browser blocks notifications")).to_be_visible()
