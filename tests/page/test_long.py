"""A session of 10,000 updates: its newest screen first, the rest on demand, and never all of it at once."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, ViewportSize, expect
from tests.page.rig import House, visiting
from tests.page.talk import Talk
from tests.support.browser import DESKTOP, PHONE

pytestmark = pytest.mark.anyio

TURNS = 100
TURN = "\n".join(
    [*(f'think about {n}\nsay 12 "word {n} "\ntool t{n} read look at file {n}' for n in range(6)), "say 4 end"]
)
"""Some 100 updates: thoughts, text and tools."""
WAITING = 25
"""Number of prompts queued at once, below the queue's limit."""
SEEN = """words => {
    const look = () => requestAnimationFrame(() => {
        if (!document.body?.innerText.includes(words)) look();
        else requestAnimationFrame(() => performance.mark("seen"));
    });
    look();
}"""
SOON_MS = 2_000
"""Generous: the real time is measured by the bench."""
MOST_ELEMENTS = 6_000


@pytest.fixture(scope="module")
def long_session(house: House) -> str:
    session_id = house.session(title="long")
    for begin in range(0, TURNS, WAITING):
        numbers = range(begin, min(begin + WAITING, TURNS))
        prompts = [house.served.prompt(session_id, f"{TURN}{number:04d}") for number in numbers]
        house.served.ended(session_id, prompts[-1])
    return session_id


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
async def test_a_long_session_opens_at_its_newest_words_at_once(
    browser: Browser, house: House, long_session: str, viewport: ViewportSize
) -> None:
    assert house.served.ask("GET", f"/session/{long_session}")["lastEventId"] > TURNS * 95
    async with visiting(browser, house, viewport=viewport) as visitor:
        page = await visitor.context.new_page()
        newest = f"end{TURNS - 1:04d}" * 4
        await page.add_init_script(f"({SEEN})({newest!r})")
        await page.goto(f"{visitor.url}/#/session/{long_session}")
        talk = Talk(page)
        await expect(talk.said(newest)).to_be_in_viewport()
        seen = await page.wait_for_function("() => performance.getEntriesByName('seen')[0]?.startTime")
        assert await seen.json_value() < SOON_MS
        assert await page.locator("*").count() < MOST_ELEMENTS


async def test_reading_back_to_the_beginning_never_holds_all_of_it(
    browser: Browser, house: House, long_session: str
) -> None:
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(long_session))
        await expect(talk.said(f"end{TURNS - 1:04d}" * 4)).to_be_in_viewport()
        oldest = talk.said("end0000" * 4)
        elements = 0
        # Each scroll upwards loads another page, until there is none.
        for _ in range(TURNS * 20):
            await talk.log.evaluate("box => { box.scrollTop = 0; }")
            elements = max(elements, await talk.page.locator("*").count())
            if await oldest.count():
                break
        await expect(oldest).to_have_count(1)
        assert elements < MOST_ELEMENTS
        await talk.page.get_by_role("button", name="Jump to latest").click()
        await expect(talk.said(f"end{TURNS - 1:04d}" * 4)).to_be_in_viewport()
