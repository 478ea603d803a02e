"""A conversation of the page as its reader has it: by roles and names, never by looks.

The expected text of an agent is the command's output: `say 3 "ko "` sends `ko ko ko`, which its prompt does not
contain.
"""

from __future__ import annotations

import re

from playwright.async_api import Locator, Page, expect


class Talk:
    """The conversation that a page shows."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.log = page.get_by_role("log", name="Conversation")
        self.form = page.get_by_role("form", name="Prompt")
        self.field = self.form.get_by_role("textbox", name="Prompt")
        self.queue = page.get_by_role("region", name="Queue")
        self.stop = self.form.get_by_role("button", name="Stop", exact=True)
        self.ends = self.log.locator("[data-end]")
        """Ends of turns: the reason is in `data-end`."""

    async def send(self, text: str) -> None:
        """Write a prompt and send it, or put it into the queue; it is out of the field when the daemon has it."""
        await self.field.fill(text)
        await self.form.get_by_role("button", name=re.compile("^(Send|Queue)$")).click()
        await expect(self.field).to_have_value("")

    def said(self, words: str) -> Locator:
        return self.log.get_by_text(words)

    async def is_running(self) -> None:
        """Wait until a turn runs, and the page shows it."""
        await expect(self.stop).to_be_visible()
        await expect(self.page.get_by_role("main").get_by_text("Working", exact=True)).to_be_visible()

    async def has_ended(self, *reasons: str) -> None:
        """Wait until these turns have ended, in this order, and none runs."""
        await expect(self.ends).to_have_count(len(reasons))
        for place, reason in enumerate(reasons):
            await expect(self.ends.nth(place)).to_have_attribute("data-end", reason)
        await expect(self.stop).to_have_count(0)

    async def text(self) -> str:
        """Return all text in it."""
        return await self.log.inner_text()

    async def read_from_the_start(self) -> None:
        """Scroll up until there is nothing older to load: a long conversation is opened at its end."""
        await self.page.wait_for_function(
            "log => { log.scrollTop = 0; return !log.innerText.includes('Loading older messages'); }",
            arg=await self.log.element_handle(),
        )
