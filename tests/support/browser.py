"""The browser of tests: Debian's Chromium, driven by Playwright, with a record of its pages' actions.

A browser downloaded by Playwright is never used. Every wait is bounded: Playwright's own, and `expect`'s. A context
that ends without an error must have a clean record: no exception, no console output, no policy violation, no failed
request, no request to another origin. A test that causes such an event declares it beforehand.
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

from turnwire.server.access.login import PAGE_KEY
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

WAIT_MS = WAIT_S * 1000
FLAGS = ("--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update")
DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=360, height=740)
TELLING = """document.addEventListener("securitypolicyviolation", event =>
    console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI} in ${event.sourceFile}`))"""
"""Chromium reports most policy violations on the console, but not all."""
LEFT = "net::ERR_ABORTED"
"""The error of a request whose page navigated away, or which the page itself aborted."""
IN_THE_PAGE = ("data:", "blob:", "about:")


class Watch:
    """The recorded actions of a context's pages."""

    def __init__(self, *origins: str) -> None:
        self.origins = origins
        """Origins that the pages may request; if unset, any."""
        self.requests: list[str] = []
        """The address of each request, except for content in the page itself."""
        self.complaints: list[str] = []
        """Uncaught errors, warnings and errors of the console, policy violations, failed requests."""
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
    """Run a browser with a temporary profile. Use `need_browser` first."""
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=WAIT_MS)
        try:
            yield browser
        finally:
            await browser.close()


async def page_key(page: Page) -> dict[str, str]:
    """Return the header with the half of the login that this origin stores; empty if it stores none."""
    key = await page.evaluate("localStorage.getItem('turnwire key /')")
    return {} if key is None else {PAGE_KEY: key}


@asynccontextmanager
async def watched(
    browser: Browser, *origins: str, viewport: ViewportSize = DESKTOP, **options: Any
) -> AsyncGenerator[tuple[BrowserContext, Watch]]:
    """Open a context, which corresponds to one user: separate cookies, storage and workers. Its end must be
    clean.
    """
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
        # A page whose script never ends would block the close of its context indefinitely.
        with anyio.fail_after(WAIT_S, shield=True):
            await context.close()
    assert not watch.unexpected, "the pages were not clean:\n" + "\n".join(watch.unexpected)


async def _heard_out(page: Page) -> None:
    """Return once all earlier messages of the page were received: messages arrive in order, so the answer to a
    later one proves it.
    """
    if not page.is_closed():
        with anyio.fail_after(WAIT_S):
            await page.evaluate("0")
