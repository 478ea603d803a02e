"""Turns at a desk and on a phone: shown once, streamed, ended alike; stopped, late, queued."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from playwright.async_api import Browser, expect
from tests.page.rig import PROFILES, House, both, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio

VERSIONS = pytest.mark.parametrize("profile", PROFILES)


@VERSIONS
async def test_a_prompt_appears_once_and_ends_the_same_in_every_tab(
    browser: Browser, house: House, profile: str
) -> None:
    session_id = house.session(profile)
    gate = house.gate(session_id)
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await expect(phone.field).to_be_visible()
        await desk.send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
        for each in talks:
            await expect(each.said("ko ko ko")).to_be_visible()
            await each.is_running()
            await expect(each.said(gate.name)).to_have_count(1)
            await expect(each.ends).to_have_count(0)
        gate.touch()
        for each in talks:
            await each.has_ended("end_turn")
            await expect(each.said("ko ko ko li li li")).to_have_count(1)
            await expect(each.said(gate.name)).to_have_count(1)
        assert await desk.text() == await phone.text()


@VERSIONS
async def test_a_turn_is_stopped_from_the_other_page(browser: Browser, house: House, profile: str) -> None:
    session_id = house.session(profile)
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await desk.send('say 3 "ko "\nnever')
        await expect(phone.said("ko ko ko")).to_be_visible()
        await phone.stop.click()
        for each in talks:
            await each.has_ended("cancelled")
        # The next turn is one like any other.
        await phone.send('say 3 "li "')
        for each in talks:
            await expect(each.said("li li li")).to_have_count(1)
            await each.has_ended("cancelled", "end_turn")


async def test_the_tooltip_of_an_end_has_its_receipt_live_and_after_a_reload(
    browser: Browser, house: House
) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        page = await visitor.session(session_id)
        talk = Talk(page)
        for text in ("say 1 ko", "error -32000 no"):
            await talk.send(text)
        await expect(talk.ends).to_have_count(2)
        with closing(house.served.events(session_id)) as events:
            ends = (each["data"] for each in events if each["type"] in ("turn_complete", "turn_error"))
            hashes = [next(ends)["receipt"]["hash"] for _ in range(2)]
        assert len({*hashes}) == 2
        for _ in range(2):
            for place, each in enumerate(hashes):
                await talk.ends.nth(place).hover()
                await expect(talk.ends.nth(place)).to_have_attribute("title", f"Receipt {each}")
            await page.reload()
            await expect(talk.ends).to_have_count(2)


@VERSIONS
async def test_a_failed_turn_shows_its_error_in_every_tab(browser: Browser, house: House, profile: str) -> None:
    session_id = house.session(profile)
    async with both(browser, house, f"session/{session_id}") as pages:
        talks = [Talk(each) for each in pages]
        await talks[0].send('say 2 "ko "\nerror -32001 out of paper')
        for each in talks:
            await each.has_ended("agent_error")
            await expect(each.ends).to_contain_text("out of paper")
            await expect(each.said("ko ko")).to_have_count(1)


async def test_output_after_the_end_is_marked_as_late(browser: Browser, house: House) -> None:
    session_id = house.session("v1")
    async with both(browser, house, f"session/{session_id}") as pages:
        talks = [Talk(each) for each in pages]
        await talks[0].send('say 2 "ko "\nafter say 3 "li "')
        for each in talks:
            await expect(each.said("li li li")).to_have_count(1)
            await expect(each.log.get_by_text("late", exact=True)).to_have_count(1)
            await each.has_ended("end_turn")


async def test_the_queue_is_seen_edited_moved_and_removed_in_both(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate = house.gate(session_id)
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await desk.send(f"gate {gate}")
        await desk.is_running()
        for words in ("first", "second", "third"):
            await desk.send(words)
        for each in talks:
            await expect(each.queue.get_by_role("listitem")).to_contain_text(["first", "second", "third"])
        await (
            phone.queue.get_by_role("listitem")
            .filter(has_text="third")
            .get_by_role("button", name="Move up")
            .click()
        )
        for each in talks:
            await expect(each.queue.get_by_role("listitem")).to_contain_text(["first", "third", "second"])
        first = desk.queue.get_by_role("listitem").filter(has_text="first")
        await first.get_by_role("button", name="Edit").click()
        await desk.queue.get_by_role("textbox").fill('say 3 "ko "')
        await desk.queue.get_by_role("button", name="Save").click()
        for each in talks:
            await expect(each.queue.get_by_role("listitem")).to_contain_text(['say 3 "ko "', "third", "second"])
        await (
            phone.queue.get_by_role("listitem")
            .filter(has_text="second")
            .get_by_role("button", name="Remove")
            .click()
        )
        for each in talks:
            await expect(each.queue.get_by_role("listitem")).to_contain_text(['say 3 "ko "', "third"])
        gate.touch()
        for each in talks:
            # A removed prompt was never sent, so nothing of it is shown.
            await each.has_ended("end_turn", "end_turn", "end_turn")
            await expect(each.said("Removed from the queue")).to_have_count(0)
            await expect(each.said("ko ko ko")).to_have_count(1)
            await expect(each.queue).to_have_count(0)


async def test_a_turn_that_never_ends_can_be_settled(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = (Talk(each) for each in pages)
        await desk.send("never")
        await desk.is_running()
        await desk.page.keyboard.press("Control+k")
        await desk.page.keyboard.type("settle")
        await desk.page.keyboard.press("Enter")
        for each in (desk, phone):
            await expect(each.ends).to_have_text(re.compile("^Settled"))
            await expect(each.stop).to_have_count(0)
