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


async def until_told(page: Page, titles: str) -> None:
    """Wait for exactly these notifications."""
    await page.wait_for_function(f"async () => (await ({TITLES})()) === {titles!r}")


async def test_who_asked_for_it_is_told_of_ends_and_of_questions(browser: Browser, house: House) -> None:
    one, two = house.session(title="one"), house.session("v2", title="two")
    async with visiting(browser, house, permissions=["notifications"]) as visitor:
        page = await visitor.session(house.session(title="looked at"))
        await expect(Talk(page).field).to_be_visible()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Notify me").click()
        await expect(page.get_by_text("You are told when a turn ends")).to_be_visible()
        house.served.said(one, 'say 3 "ko "')
        await until_told(page, "one: turn over")
        house.served.prompt(two, "ask tidy allow_once,reject_once")
        await until_told(page, "one: turn over; two: needs you")
        # Answered: no notification is needed any more.
        house.served.ask("POST", f"/session/{two}/cancel")
        await page.wait_for_function(f"async () => !(await ({TITLES})()).includes('needs you')")
        # The visible session causes no notification.
        await Talk(page).send('say 3 "li "')
        await Talk(page).has_ended("end_turn")
        assert "looked at" not in await page.evaluate(TITLES)


async def test_who_refused_it_is_told_why_there_are_none(browser: Browser, house: House) -> None:
    async with visiting(browser, house) as visitor:
        page = await visitor.open()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Notify me").click()
        await expect(page.get_by_text("does not allow notifications")).to_be_visible()
