"""The page in a browser: how soon it is seen, how soon a long session is, how evenly it draws, and what it weighs.

Prints one table: the page of turnwire and that of `qwen serve`, in the same Chromium, each with its own daemon and
the same agent. Every round begins with an empty cache, and the best counts. Times are the browser's own, from the
beginning of the navigation. Needs Debian's chromium.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
from playwright.async_api import Browser, BrowserContext, Page, Response, async_playwright

from bench.daemon_http import HOST, WAIT_S
from bench.daemon_table import Found, Table
from bench.daemon_targets import QWEN_PAGE, TURNWIRE, Running, Target, running

ROUNDS = 5
TURNS, UPDATES = 100, 100
STREAMED = 5_000
WAIT_MS = WAIT_S * 1000
NEWEST = f"piece {UPDATES:08d} of an answer"
"""In the last turn alone, which has one piece more than the others."""
SEEN = """words => {
    const look = () => requestAnimationFrame(() => {
        if (!document.body?.textContent.includes(words)) look();
        else requestAnimationFrame(now => { window.seenAt = now; });
    });
    look();
}"""
"""Notes when words have been drawn: at the frame behind the one in which they are in the document."""
FRAMES = """() => {
    window.frames_ = [];
    let before;
    const next = now => {
        if (before !== undefined) window.frames_.push(now - before);
        before = now;
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
}"""
PARTS = ("document", "script", "stylesheet", "font")
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


class PageOf(NamedTuple):
    """A daemon's page, and where it shows sessions."""

    target: Target
    sessions: str
    """Before the id of the session that is shown."""


PAGES = (
    PageOf(TURNWIRE, "/#/session/"),
    PageOf(QWEN_PAGE, "/session/"),
)


class Visit:
    """A daemon that runs, and the browser that looks at its page."""

    def __init__(self, daemon: Running, browser: Browser, page_of: PageOf) -> None:
        self._daemon = daemon
        self._browser = browser
        self._page_of = page_of
        self.url = f"http://{HOST}:{daemon.port}"

    @asynccontextmanager
    async def fresh(self) -> AsyncGenerator[Page]:
        """A page in a browser that has never been here, but is let in."""
        context = await self._browser.new_context(viewport={"width": 1280, "height": 800})
        try:
            context.set_default_timeout(WAIT_MS)
            await self._log_in(context)
            yield await context.new_page()
        finally:
            await context.close()

    async def _log_in(self, context: BrowserContext) -> None:
        if not self._daemon.target.is_ours:
            return
        made = await context.request.post(f"{self.url}/login-link", headers=self._credential)
        code = (await made.json())["url"].partition("#")[2]
        # Not by the page of the link: that would fill the cache.
        await context.request.post(f"{self.url}/login", data={"code": code}, headers={"Origin": self.url})

    @property
    def _credential(self) -> dict[str, str]:
        return {name: value for name, value in self._daemon.headers.items() if name != "Host"}

    async def session(self, *prompts: str) -> str:
        """A session in which these turns have ended, one after the other."""
        async with httpx.AsyncClient(base_url=self.url, headers=self._credential, timeout=WAIT_S) as http:
            made = await http.post("/session", json={"cwd": self._daemon.cwd, "sessionScope": "thread"})
            session_id = made.raise_for_status().json()["sessionId"]
            for prompt in prompts:
                await self._run(http, session_id, prompt)
            return session_id

    async def _run(self, http: httpx.AsyncClient, session_id: str, prompt: str) -> None:
        async with http.stream("GET", f"/session/{session_id}/events") as events:
            await self.prompt(session_id, prompt)
            async for line in events.aiter_lines():
                if line.startswith("event: turn_complete"):
                    return

    async def prompt(self, session_id: str, text: str) -> None:
        path, body = f"/session/{session_id}/prompt", {"prompt": [{"type": "text", "text": text}]}
        async with httpx.AsyncClient(base_url=self.url, headers=self._credential, timeout=WAIT_S) as http:
            (await http.post(path, json=body)).raise_for_status()

    def address(self, session_id: str) -> str:
        return f"{self.url}{self._page_of.sessions}{session_id}"


async def value(page: Page, expression: str) -> float:
    """A number of the page, once it is there."""
    found = await page.wait_for_function(f"() => {expression}")
    return float(await found.json_value())


async def home(visit: Visit) -> Found:
    """The first paint of the page, and the bytes that it took."""
    answered: list[Response] = []

    def note(response: Response) -> None:
        if response.request.resource_type in PARTS:
            answered.append(response)

    async with visit.fresh() as page:
        page.on("response", note)
        await page.goto(visit.url)
        painted = await value(page, PAINTED)
        weight = sum([len(gzip.compress(await each.body(), 9)) for each in answered])
    return {"home: first contentful paint, ms": painted, "home: what it loads, kB gzipped": weight / 1000}


async def opening(visit: Visit) -> Found:
    """A long session, until its newest words are drawn."""
    session_id = await visit.session(*[f"burst {UPDATES}"] * (TURNS - 1), f"burst {UPDATES + 1}")
    found: list[float] = []
    nodes = 0.0
    for _ in range(ROUNDS):
        async with visit.fresh() as page:
            await page.add_init_script(f"({SEEN})({NEWEST!r})")
            await page.goto(visit.address(session_id), wait_until="commit")
            found.append(await value(page, "window.seenAt"))
            nodes = await value(page, "document.querySelectorAll('*').length")
    return {
        f"{TURNS * UPDATES:,} updates: newest words drawn, ms": min(found),
        f"{TURNS * UPDATES:,} updates: elements in the document": nodes,
    }


async def streaming(visit: Visit) -> Found:
    """A turn that says 500 pieces a second, while it is looked at."""
    session_id = await visit.session("one")
    async with visit.fresh() as page:
        await page.goto(visit.address(session_id))
        await value(page, "document.body.textContent.includes('one piece')")
        await page.evaluate(FRAMES)
        await page.evaluate(SEEN, "the last piece")
        begun = time.perf_counter()
        await visit.prompt(session_id, f"stream {STREAMED}")
        await value(page, "window.seenAt")
        took = time.perf_counter() - begun
        frames: list[Any] = sorted(await page.evaluate("window.frames_"))
    return {
        "500 updates/s: a frame, p50, ms": float(frames[len(frames) // 2]),
        "500 updates/s: a frame, p95, ms": float(frames[len(frames) * 95 // 100]),
        "500 updates/s: the longest frame, ms": float(frames[-1]),
        f"500 updates/s: {STREAMED:,} are drawn after, s": took,
    }


PHASES = (home, opening, streaming)


async def measure(page_of: PageOf, daemon: Running, browser: Browser, table: Table) -> None:
    visit = Visit(daemon, browser, page_of)
    for phase in PHASES:
        print(f"… {phase.__name__}: {page_of.target.name}", file=sys.stderr, flush=True)
        for _ in range(ROUNDS if phase is home else 1):
            table.take(page_of.target.name, await phase(visit))


async def run(program: str) -> None:
    pages = [each for each in PAGES if each.target.missing is None]
    table = Table([each.target.name for each in pages], but="")
    async with async_playwright() as playwright:
        for each in pages:
            browser = await playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
            with running(each.target) as daemon:
                await measure(each, daemon, browser, table)
            await browser.close()
    table.show()
    for each in PAGES:
        if each.target.missing is not None:
            print(f"{each.target.name}: {each.target.missing}")


def main() -> None:
    program = shutil.which("chromium")
    if program is None:
        print("the page: skipped, because chromium is not on PATH")
        return
    print("the page in Chromium; the best of several, from an empty cache")
    asyncio.run(run(program))


if __name__ == "__main__":
    main()
