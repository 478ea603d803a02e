"""Silence ends nothing: the end of a turn is its terminal event, however much time passes."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, ViewportSize, expect
from tests.page.rig import PROFILES, House, visiting
from tests.page.talk import Talk
from tests.support.browser import DESKTOP, PHONE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
async def test_a_turn_that_is_silent_for_two_minutes_still_runs_and_then_goes_on(
    browser: Browser, house: House, profile: str, viewport: ViewportSize
) -> None:
    session_id = house.session(profile)
    gate = house.gate(session_id)
    async with visiting(browser, house, viewport=viewport) as visitor:
        page = await visitor.context.new_page()
        # Every timer of the page itself runs by this clock. Workers have the machine's, and only carry events.
        await page.clock.install()
        await page.goto(f"{visitor.url}/#/session/{session_id}")
        talk = Talk(page)
        await talk.send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
        await expect(talk.said("ko ko ko")).to_be_visible()
        for _ in range(4):
            await page.clock.run_for(30_000)
            await talk.is_running()
            await expect(talk.ends).to_have_count(0)
        gate.touch()
        # In the same message: nothing had been closed.
        await expect(talk.said("ko ko ko li li li")).to_have_count(1)
        await talk.has_ended("end_turn")
