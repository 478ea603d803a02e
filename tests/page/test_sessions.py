"""The list of sessions, and actions on a session: the same everywhere, without a reload."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.page.rig import House, both, housed, visiting
from tests.page.talk import Talk
from tests.support.browser import PHONE

pytestmark = pytest.mark.anyio


def row(page: Page, title: str) -> Locator:
    """Return a session's row in the list."""
    return page.get_by_role("list", name="Sessions").get_by_role("listitem").filter(has_text=title)


async def choose(page: Page, title: str, words: str) -> None:
    """Choose one entry of a session's menu in the list."""
    await page.get_by_role("button", name=f"Menu of {title}").click()
    await page.get_by_role("menuitem", name=words).click()


async def test_a_session_made_at_the_desk_is_listed_on_the_phone_and_does_its_first_prompt(
    browser: Browser, house: House
) -> None:
    async with both(browser, house) as (desk, phone):
        await desk.get_by_role("button", name="New", exact=True).click()
        dialog = desk.get_by_role("dialog", name="New session")
        await dialog.get_by_role("textbox", name="First prompt").fill('say 3 "ko "')
        await dialog.get_by_role("combobox", name="Agent").select_option("v2")
        await dialog.get_by_role("button", name="Start and send").click()
        await expect(dialog).to_have_count(0)
        await Talk(desk).has_ended("end_turn")
        await row(phone, 'say 3 "ko "').get_by_role("link").click()
        await expect(Talk(phone).said("ko ko ko")).to_have_count(1)
        await expect(Talk(phone).said("say 3")).to_have_count(1)


async def test_badges_follow_the_log_in_every_page(browser: Browser, house: House) -> None:
    session_id, gate = house.session(title="badges"), house.gate("badges")
    async with both(browser, house) as pages:
        lines = [row(each, "badges").get_by_role("link") for each in pages]
        for each in lines:
            await expect(each).to_have_accessible_name(re.compile("Idle"))
        house.served.prompt(session_id, f"gate {gate}\nask tool allow_once,reject_once")
        for each in lines:
            await expect(each).to_have_accessible_name(re.compile("Working"))
        gate.touch()
        for each in lines:
            await expect(each).to_have_accessible_name(re.compile("Needs you"))
        house.served.ask("POST", f"/session/{session_id}/cancel")
        for each in lines:
            await expect(each).to_have_accessible_name(re.compile("Idle"))
        house.served.prompt(session_id, "exit 3")
        for each in lines:
            await expect(each).to_have_accessible_name(re.compile("Agent gone"))


async def test_a_new_title_appears_in_every_tab(browser: Browser, house: House) -> None:
    house.session(title="old name")
    async with both(browser, house) as (desk, phone):
        await choose(desk, "old name", "Rename")
        await desk.get_by_role("textbox", name="Title of the session").fill("new name")
        await desk.keyboard.press("Enter")
        for each in (desk, phone):
            await expect(row(each, "new name")).to_be_visible()
            await expect(row(each, "old name")).to_have_count(0)


async def test_an_archived_session_leaves_every_list_and_comes_back_to_every_list(
    browser: Browser, house: House
) -> None:
    house.session(title="put away")
    async with both(browser, house) as (desk, phone):
        await choose(desk, "put away", "Archive")
        for each in (desk, phone):
            await expect(row(each, "put away")).to_have_count(0)
        await phone.get_by_role("button", name="Archived").click()
        await choose(phone, "put away", "Unarchive")
        await expect(row(phone, "put away")).to_have_count(0)
        await phone.get_by_role("button", name="Back").click()
        for each in (desk, phone):
            await expect(row(each, "put away")).to_be_visible()


async def test_a_closed_session_can_be_read_and_takes_no_prompt(browser: Browser, house: House) -> None:
    session_id = house.session(title="to be closed")
    house.served.said(session_id, 'say 3 "ko "')
    async with both(browser, house, f"session/{session_id}") as (desk, phone):
        await expect(Talk(phone).field).to_be_visible()
        await choose(desk, "to be closed", "Close")
        await desk.get_by_role("dialog").get_by_role("button", name="Close session").click()
        for each in (desk, phone):
            await expect(Talk(each).form).to_have_count(0)
            await expect(Talk(each).said("ko ko ko")).to_have_count(1)


async def test_open_requests_are_in_the_inbox_until_they_are_answered(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        sessions = {name: house.session(profile, title=name) for name, profile in (("one", "v1"), ("two", "v2"))}
        async with both(browser, house, "inbox") as (desk, phone):
            await expect(desk.get_by_text("You're all caught up.")).to_be_visible()
            for session_id in sessions.values():
                house.served.prompt(session_id, "ask tool allow_once,reject_once")
            for each in (desk, phone):
                await expect(each.get_by_role("main").get_by_role("link")).to_have_count(2)
                await expect(each).to_have_title("(2) Inbox · turnwire")
            asked = (
                desk.get_by_role("main").get_by_role("listitem").filter(has=desk.get_by_role("link", name="one"))
            )
            await asked.get_by_role("button", name="allow once").click()
            for each in (desk, phone):
                await expect(each.get_by_role("main").get_by_role("link")).to_have_text(["two"])
            await phone.get_by_role("main").get_by_role("button", name="reject once").click()
            for each in (desk, phone):
                await expect(each.get_by_text("You're all caught up.")).to_be_visible()
            assert (
                "selected allow_once"
                in house.served.turn(
                    sessions["one"],
                    house.served.ask("GET", f"/session/{sessions['one']}/turns")["turns"][0]["promptId"],
                )["resultText"]
            )


async def test_a_search_finds_titles_and_messages(browser: Browser, house: House) -> None:
    said = house.session(title="plain title")
    house.session(title="a kestrel in the title")
    house.served.said(said, 'say 1 "the kestrel hovers"')
    async with both(browser, house) as pages:
        for each in pages:
            await each.get_by_role("searchbox", name="Search sessions").fill("kestrel")
            await expect(row(each, "plain title")).to_contain_text("hovers")
            await expect(row(each, "a kestrel in the title")).to_be_visible()
            await expect(each.get_by_role("list", name="Sessions").get_by_role("link")).to_have_count(2)


async def test_a_share_link_takes_two_clicks_and_shows_no_controls(browser: Browser, house: House) -> None:
    session_id, gate = house.session(title="shared"), house.gate("shared")
    async with visiting(browser, house) as owner:
        desk = await owner.session(session_id)
        await desk.get_by_role("button", name="Session menu").click()
        await desk.get_by_role("menuitem", name="Share").click()
        dialog = desk.get_by_role("dialog")
        await dialog.get_by_role("button", name="Create link").click()
        link = await dialog.get_by_role("textbox", name="Link").input_value()
        async with visiting(browser, house, viewport=PHONE, link=link) as guest:
            page = await guest.open()
            talk = Talk(page)
            house.served.prompt(session_id, f'say 3 "ko "\ngate {gate}\nask tool allow_once,reject_once')
            await expect(talk.said("ko ko ko")).to_have_count(1)
            gate.touch()
            await expect(talk.log).to_contain_text("tool")
            await expect(talk.form).to_have_count(0)
            for name in ("Stop", "Send", "New", "allow once", "reject once"):
                await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
            await expect(page.get_by_role("list", name="Sessions")).to_have_count(0)
            await dialog.get_by_role("button", name="Revoke").click()
            guest.watch.expect("401")
            await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
