"""The inspector: every event of a session, by turn, kind and time; raw, to scale, explained, for download."""

from __future__ import annotations

import json

import anyio
import pytest
from playwright.async_api import Browser, Download, Locator, Page, expect
from tests.page.rig import PROFILES, House, both, visiting

pytestmark = pytest.mark.anyio


def grid(page: Page) -> Locator:
    """All events: those that are out of sight are not in the document, but counted."""
    return page.get_by_role("grid", name="Events")


def rows(page: Page) -> Locator:
    """The events that are seen, without the line of titles."""
    return grid(page).get_by_role("row").filter(has=page.get_by_role("gridcell"))


@pytest.mark.parametrize("profile", PROFILES)
async def test_every_event_of_a_session_is_there_live_and_as_it_is(
    browser: Browser, house: House, profile: str
) -> None:
    session_id = house.session(profile)
    house.served.said(session_id, 'say 3 "ko "')
    async with both(browser, house, f"session/{session_id}/inspector") as pages:
        last = house.served.ask("GET", f"/session/{session_id}")["lastEventId"]
        for each in pages:
            await expect(grid(each)).to_have_attribute("aria-rowcount", str(last + 1))
        house.served.said(session_id, "tool t1 read look\nsay 1 done")
        told = house.served.ask("GET", f"/session/{session_id}/log?after=0&limit=1000&acp=agent")
        for each in pages:
            await expect(grid(each)).to_have_attribute("aria-rowcount", str(told["lastEventId"] + 1))
        desk = pages[0]
        number = next(each["id"] for each in told["events"] if each["type"] == "turn_complete")
        await rows(desk).filter(has_text="turn_complete").first.click()
        shown = desk.get_by_role("complementary", name=f"Event {number}")
        raw = json.loads(await shown.get_by_label("The event as JSON").inner_text())
        assert raw == next(each for each in told["events"] if each["id"] == number)


async def test_the_timeline_is_narrowed_by_turn_kind_and_text(browser: Browser, house: House) -> None:
    session_id = house.session()
    house.served.said(session_id, 'say 3 "ko "')
    house.served.said(session_id, 'say 2 "kestrel "\ntool t1 read look')
    async with both(browser, house, f"session/{session_id}/inspector") as (desk, phone):
        turns = desk.get_by_role("navigation", name="Turns").get_by_role("listitem")
        await expect(turns).to_have_count(2)
        await turns.nth(1).get_by_role("link").click()
        await expect(desk.get_by_role("group", name="The turn, to scale")).to_be_visible()
        await expect(rows(desk).filter(has_text="agent_message_chunk")).to_have_count(3)
        await expect(rows(desk).filter(has_text="tool_call")).to_have_count(0)
        await desk.get_by_role("navigation", name="Turns").get_by_role("link", name="All turns").click()
        await desk.get_by_text("Kinds: all").click()
        await (
            desk.get_by_role("group", name="Kinds of events").get_by_role("checkbox", name="turn_complete").check()
        )
        await expect(rows(desk)).to_have_count(2)
        await phone.get_by_role("searchbox", name="Filter by text").fill("kestrel")
        await expect(rows(phone).filter(has_text="agent_message_chunk")).to_have_count(2)


async def test_a_session_that_waits_is_explained_in_place(browser: Browser, house: House) -> None:
    session_id = house.session()
    house.served.prompt(session_id, "ask tidy allow_once,reject_once")
    house.served.until(session_id, "permission_request")
    async with both(browser, house, f"session/{session_id}/inspector") as pages:
        for each in pages:
            await each.get_by_role("button", name="Explain").click()
            explained = each.get_by_role("region", name="What it waits for")
            await expect(explained).to_contain_text("permission")


async def saved(download: Download) -> str:
    return await anyio.Path(await download.path()).read_text(encoding="utf-8")


async def test_the_log_and_the_conversation_can_be_taken_along(browser: Browser, house: House) -> None:
    session_id = house.session()
    house.served.said(session_id, 'say 3 "ko "')
    last = house.served.ask("GET", f"/session/{session_id}")["lastEventId"]
    async with visiting(browser, house) as visitor:
        page = await visitor.open(f"session/{session_id}/inspector")
        await page.get_by_text("Export", exact=True).click()
        async with page.expect_download() as log:
            await page.get_by_role("button", name="Save every event").click()
        lines = (await saved(await log.value)).splitlines()
        assert [json.loads(each).get("id") for each in lines if '"type"' in each][-1] == last
        async with page.expect_download() as markdown:
            await page.get_by_role("button", name="Save as markdown").click()
        assert "ko ko ko" in await saved(await markdown.value)
