"""The browser of tests: Debian's Chromium, driven by Playwright, with a watch over what its pages do.

Never a browser that Playwright has downloaded. Every wait is bounded: Playwright's own, and `expect`'s. A context
that ends without an error must have a clean record: nothing thrown, nothing said on the console, nothing
forbidden by a policy, no request that failed, none to another origin. A test that causes such a thing says so
beforehand.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    WebError,
    async_playwright,
    expect,
)

from turnwire.testing.patience import WAIT_S
from turnwire.testing.plugin import find_tool

WAIT_MS = WAIT_S * 1000
FLAGS = ("--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update")
DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=360, height=740)
TELLING = """document.addEventListener("securitypolicyviolation", event =>
    console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI} in ${event.sourceFile}`))"""
"""Chromium says most of what a policy forbids on the console, and not all."""
LEFT = "net::ERR_ABORTED"
"""How a request ends whose page went elsewhere, or which the page itself gave up."""
IN_THE_PAGE = ("data:", "blob:", "about:")


class Watch:
    """What the pages of a context did."""

    def __init__(self, *origins: str) -> None:
        self.origins = origins
        """Whom they may ask; without one, anybody."""
        self.requests: list[str] = []
        """The address of each request, but for what is in the page itself."""
        self.complaints: list[str] = []
        """Errors nobody caught, warnings and errors of the console, what a policy forbade, requests that failed."""
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """The test does something that leads to such a complaint."""
        self._expected.append(re.compile(pattern))

    @property
    def unexpected(self) -> list[str]:
        """Complaints that nothing led to, and requests to others."""
        mine = tuple(f"{each}/" for each in self.origins)
        strayed = [each for each in self.requests if mine and not each.startswith(mine)]
        found = [*self.complaints, *(f"asked elsewhere: {each}" for each in strayed)]
        return [each for each in found if not any(expected.search(each) for expected in self._expected)]

    def over(self, context: BrowserContext) -> None:
        context.on("console", self._heard)
        context.on("weberror", self._threw)
        context.on("request", self._asked)
        context.on("requestfailed", self._failed)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("warning", "error", "assert"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _threw(self, error: WebError) -> None:
        self.complaints.append(f"thrown: {error.error.stack or error.error}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(IN_THE_PAGE):
            self.requests.append(request.url)

    def _failed(self, request: Request) -> None:
        if request.failure != LEFT:
            self.complaints.append(f"failed: {request.method} {request.url}: {request.failure}")


def need_browser() -> str:
    """The browser's program. Without it the test is skipped; see `find_tool`."""
    # The first is Chromium without windows: the others start processes for the interface around each page as well.
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    return find_tool("chromium")


@asynccontextmanager
async def running_browser(program: str) -> AsyncGenerator[Browser]:
    """A browser with a profile of its own that is gone afterwards. Ask `need_browser` first."""
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=WAIT_MS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def watched(
    browser: Browser, *origins: str, viewport: ViewportSize = DESKTOP, **options: Any
) -> AsyncGenerator[tuple[BrowserContext, Watch]]:
    """A context, which is what one user has: cookies, storage and workers of its own. Its end must be clean."""
    context = await browser.new_context(viewport=viewport, **options)
    watch = Watch(*origins)
    try:
        context.set_default_timeout(WAIT_MS)
        await context.add_init_script(TELLING)
        watch.over(context)
        yield context, watch
        for page in context.pages:
            await _heard_out(page)
    finally:
        # A page whose script never rests would keep its context open for ever.
        with anyio.fail_after(WAIT_S, shield=True):
            await context.close()
    assert not watch.unexpected, "the pages were not clean:\n" + "\n".join(watch.unexpected)


async def _heard_out(page: Page) -> None:
    """Return once all that the page has said until now was heard: what is told behind it is, too."""
    if not page.is_closed():
        with anyio.fail_after(WAIT_S):
            await page.evaluate("0")
