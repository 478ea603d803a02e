"""Accessibility: no serious violation of WCAG AA in any part, light and dark; the keyboard is enough."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect
from tests.page.axe import findings, need_axe
from tests.page.rig import House, housed, visiting
from tests.page.talk import Talk
from tests.page.test_asked import FIRST, change_asked
from tests.support.browser import DESKTOP, PHONE

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


async def test_a_key_right_behind_the_one_that_closed_a_dialog_works(browser: Browser, tmp_path: Path) -> None:
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
