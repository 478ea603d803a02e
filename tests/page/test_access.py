"""Accessibility: no serious violation of WCAG AA in any part, light and dark; the keyboard is enough."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Locator, Page, ViewportSize, expect
from tests.page.axe import CONTRAST, findings, need_axe
from tests.page.rig import House, housed, visiting
from tests.page.talk import Talk
from tests.page.test_asked import FIRST, change_asked
from tests.support.browser import DESKTOP, PHONE, watched

pytestmark = pytest.mark.anyio

EVERYTHING = "\n".join(
    [
        "think about it",
        "plan read; write; test",
        'say 1 "# A title"',
        'say 1 "\\n\\nSome **bold** words, `code` and a [link](https://example.test/).\\n\\n"',
        "tool t1 read look at a file",
        "tool-open t2",
        "terminal echo hello",
        "usage 150000 200000",
    ]
)


@pytest.fixture(scope="module")
def axe() -> str:
    return need_axe()


@asynccontextmanager
async def looking(
    browser: Browser, house: House, viewport: ViewportSize, scheme: Literal["light", "dark"]
) -> AsyncGenerator[Page]:
    async with visiting(browser, house, viewport=viewport, color_scheme=scheme) as visitor:
        yield await visitor.open()


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[House, str]]:
    """Open a session with all kinds of items, whose agent asks for a change; it has another prompt in its queue."""
    with housed(tmp_path_factory.mktemp("asking")) as house:
        session_id = house.session(title="everything")
        house.served.said(session_id, EVERYTHING)
        house.served.ended(session_id, house.served.prompt(session_id, "error -32001 out of paper"))
        house.served.prompt(session_id, change_asked(FIRST))
        house.served.until(session_id, "permission_request")
        house.served.prompt(session_id, "what comes next")
        yield house, session_id


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
async def test_no_part_of_the_page_has_a_serious_finding(
    browser: Browser, asking: tuple[House, str], axe: str, viewport: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    house, session_id = asking
    found: list[str] = []
    async with looking(browser, house, viewport, scheme) as page:

        async def look(part: str) -> None:
            found.extend(f"{part}: {each}" for each in await findings(page, axe))

        await expect(page.get_by_role("list", name="Sessions")).to_be_visible()
        await look("home")
        await page.goto(f"{house.url}/#/inbox")
        await expect(page.get_by_role("button", name="Allow")).to_be_visible()
        await look("inbox")
        await page.goto(f"{house.url}/#/session/{session_id}")
        await expect(Talk(page).queue).to_be_visible()
        await look("conversation")
        await page.goto(f"{house.url}/#/session/{session_id}/inspector")
        await expect(page.get_by_role("grid", name="Events")).to_be_visible()
        await look("inspector")
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await look("palette")
        await leave(page)
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        await look("shortcuts")
        await leave(page)
        await page.keyboard.press("n")
        await expect(page.get_by_role("dialog", name="New session")).to_be_visible()
        await look("new session")
        await leave(page)
        await page.get_by_role("button", name="Session menu").click()
        await look("menu")
        await page.get_by_role("menuitem", name="Share").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await look("share")
        await page.get_by_role("button", name="Create link").click()
        await expect(page.get_by_role("textbox", name="Link")).to_be_visible()
        await look("share link")
        await leave(page)
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def in_states(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[House, dict[str, str]]]:
    """Open one session in each state that a conversation can be in."""
    with housed(tmp_path_factory.mktemp("states")) as house:
        served = house.served
        ids = {
            name: house.session(title=name) for name in ("idle", "running", "form", "closed", "failed", "answered")
        }
        served.said(ids["idle"], EVERYTHING)
        served.prompt(ids["running"], 'plan read; write\nsay 3 "ko "\nnever')
        served.prompt(ids["form"], "elicit which colour")
        served.until(ids["form"], "permission_request")
        served.said(ids["closed"], 'say 1 "ko"')
        served.ask("DELETE", f"/session/{ids['closed']}")
        served.ended(ids["failed"], served.prompt(ids["failed"], "error -32001 out of paper"))
        served.prompt(ids["answered"], "ask tidy allow_once,reject_once\nnever")
        served.until(ids["answered"], "permission_request")
        yield house, ids


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
async def test_no_state_of_a_session_has_a_serious_finding(
    browser: Browser,
    in_states: tuple[House, dict[str, str]],
    axe: str,
    viewport: ViewportSize,
    scheme: Literal["light", "dark"],
) -> None:
    house, ids = in_states
    found: list[str] = []
    async with looking(browser, house, viewport, scheme) as page:
        talk = Talk(page)
        shows = {
            "idle": talk.form.get_by_role("button", name="Send"),
            "running": talk.stop,
            "form": talk.log.get_by_role("textbox", name="answer"),
            "closed": page.get_by_text("This session is closed."),
            "failed": talk.log.get_by_role("button", name="Send again"),
            "answered": talk.log.get_by_role("button", name="allow once"),
        }
        for state, sign in shows.items():
            await page.goto(f"{house.url}/#/session/{ids[state]}")
            await expect(sign).to_be_visible()
            found.extend(f"{state}: {each}" for each in await findings(page, axe))
        await page.goto(f"{house.url}/#/session/{ids['running']}")
        await talk.is_running()
        await talk.field.fill("what comes next")
        await talk.form.get_by_role("button", name="More ways to send").click()
        await expect(page.get_by_role("menu")).to_be_visible()
        found.extend(f"typing: {each}" for each in await findings(page, axe))
        await page.keyboard.press("Escape")
        await talk.field.fill("/")
        await expect(page.get_by_role("listbox", name="Agent commands")).to_be_visible()
        found.extend(f"commands: {each}" for each in await findings(page, axe))
    async with watched(browser, house.url, viewport=viewport, color_scheme=scheme) as (context, watch):
        watch.expect("401")
        outside = await context.new_page()
        await outside.goto(f"{house.url}/#/link-expired")
        await expect(outside.get_by_role("heading", name="Log in")).to_be_visible()
        found.extend(f"login: {each}" for each in await findings(outside, axe))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_buttons_are_readable_while_they_are_pointed_at_and_pressed(
    browser: Browser,
    asking: tuple[House, str],
    in_states: tuple[House, dict[str, str]],
    axe: str,
    scheme: Literal["light", "dark"],
) -> None:
    found: list[str] = []

    async def look(page: Page, button: Locator) -> None:
        name = await button.inner_text()
        await button.hover()
        found.extend(f"{name}, hovered: {each}" for each in await findings(page, axe, CONTRAST))
        await page.mouse.down()
        found.extend(f"{name}, pressed: {each}" for each in await findings(page, axe, CONTRAST))
        # Released elsewhere, so it is not clicked.
        await page.mouse.move(0, 0)
        await page.mouse.up()
        await button.focus()
        found.extend(f"{name}, focused: {each}" for each in await findings(page, axe, CONTRAST))

    house, session_id = asking
    async with looking(browser, house, DESKTOP, scheme) as page:
        for name in ("New", "Start session"):
            await look(page, page.get_by_role("button", name=name, exact=True))
        await page.goto(f"{house.url}/#/session/{session_id}")
        await look(page, page.get_by_role("button", name="Allow"))
        await look(page, page.get_by_role("button", name="Hold"))
        talk = Talk(page)
        await look(page, talk.stop)
        await talk.field.fill("more")
        await look(page, talk.form.get_by_role("button", name="Queue"))
    house, ids = in_states
    async with looking(browser, house, DESKTOP, scheme) as page:
        await page.goto(f"{house.url}/#/session/{ids['idle']}")
        await look(page, Talk(page).form.get_by_role("button", name="Send"))
        await page.goto(f"{house.url}/#/session/{ids['answered']}")
        await look(page, page.get_by_role("button", name="reject once"))
    assert not found, "\n".join(found)


async def leave(page: Page) -> None:
    """Close the dialog that is open."""
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_the_keyboard_alone_is_enough(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        async with visiting(browser, house) as visitor:
            page = await visitor.open()
            keys, talk = page.keyboard, Talk(page)
            await expect(page.get_by_role("button", name="New", exact=True)).to_be_visible()
            await page.get_by_role("link", name="turnwire").focus()
            # A new session with its first prompt.
            await keys.press("n")
            await expect(page.get_by_role("textbox", name="First prompt").last).to_be_focused()
            await keys.type("ask tidy allow_once,reject_once")
            await keys.press("Enter")
            # The agent asks: its card is reached by Tab, and answered by a number.
            asked = talk.log.get_by_role("group", name="tidy")
            await expect(asked).to_be_visible()
            await reach(page, "group", "tidy")
            await keys.press("1")
            await expect(talk.said("selected allow_once")).to_have_count(1)
            await talk.has_ended("end_turn")
            # Another prompt, and its end before it is over.
            await reach(page, "textbox", "Prompt")
            await keys.type("never")
            await keys.press("Enter")
            await talk.is_running()
            await reach(page, "button", "Stop")
            await keys.press("Enter")
            await talk.has_ended("end_turn", "cancelled")
            # The palette leads to the inspector, and Escape out of it.
            await keys.press("Control+k")
            await keys.type("inspector")
            await keys.press("Enter")
            await expect(page.get_by_role("grid", name="Events")).to_be_visible()
            # A dialog that a command opens replaces the palette, and stays.
            await keys.press("Control+k")
            await keys.type("share this")
            await keys.press("Enter")
            shares = page.get_by_role("dialog", name="Share")
            await expect(shares.get_by_role("button", name="Create link")).to_be_focused()
            await keys.press("Enter")
            await expect(shares.get_by_role("textbox", name="Link")).to_have_value(re.compile("/login#"))
            await leave(page)


CLOSE_AND_PRESS = """() => {
    document.querySelector("dialog").close();
    const where = document.activeElement;
    where.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true, cancelable: true }));
    return where.tagName;
}"""
"""A key pressed before the browser has reported that the dialog is closed."""


async def test_a_key_works_right_after_a_dialog_was_closed(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        async with visiting(browser, house) as visitor:
            page = await visitor.open()
            await expect(page.get_by_role("button", name="New", exact=True)).to_be_visible()
            await page.evaluate("document.activeElement.blur()")
            await page.keyboard.press("?")
            await expect(
                page.get_by_role("dialog", name="Keyboard shortcuts").get_by_role("checkbox")
            ).to_be_focused()
            assert await page.evaluate(CLOSE_AND_PRESS) == "INPUT", "the focus is still in the closed dialog"
            await expect(page.get_by_role("dialog", name="New session")).to_be_visible()


async def reach(page: Page, role: Literal["group", "textbox", "button"], name: str) -> None:
    """Press Tab until an element has the focus."""
    wanted = page.get_by_role("main").get_by_role(role, name=name, exact=True)
    for _ in range(60):
        if await wanted.evaluate_all("all => all.includes(document.activeElement)"):
            return
        await page.keyboard.press("Tab")
    focused = await page.evaluate("document.activeElement.outerHTML")
    pytest.fail(f"Tab does not lead to the {role} {name!r}; it is at {focused[:300]}")
