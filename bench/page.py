"""The page in Chromium: first paint, a long session, frames while a turn streams, and weight.

Prints one table for the pages of turnwire and `qwen serve`, each with its own daemon and the same agent. Each visit
begins with an empty cache. Times are the browser's, from the start of the navigation. Needs chromium.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from playwright.async_api import Browser, Page, Response, async_playwright

from bench.client import HOST, WAIT_S
from bench.phases import Found
from bench.table import Table
from bench.targets import QWEN_PAGE, TURNWIRE, Running, running

ROUNDS = 5
TURNS, UPDATES, STREAMED = 100, 100, 5_000
PATHS = {TURNWIRE: "/#/session/", QWEN_PAGE: "/session/"}
"""Path under which each page shows a session."""
SEEN = """words => {
    const look = () => requestAnimationFrame(() => {
        if (!document.body?.textContent.includes(words)) look();
        else requestAnimationFrame(now => { window.seenAt = now; });
    });
    look();
}"""
"""Set `seenAt` at the frame after the one in which the words are in the document."""
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


class Visit:
    """A running daemon and a browser for its page."""

    def __init__(self, daemon: Running, browser: Browser) -> None:
        self._browser = browser
        self._path = PATHS[daemon.target]
        self.url = f"http://{HOST}:{daemon.port}"
        self._cwd, self._is_ours = daemon.cwd, daemon.target.is_ours
        self._headers = {name: value for name, value in daemon.headers.items() if name != "Host"}

    @asynccontextmanager
    async def page(self) -> AsyncGenerator[Page]:
        """Open a page with an empty cache, logged in."""
        context = await self._browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(WAIT_S * 1000)
        if self._is_ours:
            # Not by the page of the link, which would fill the cache.
            made = await context.request.post(f"{self.url}/login-link", headers=self._headers)
            code = (await made.json())["url"].partition("#")[2]
            await context.request.post(f"{self.url}/login", data={"code": code}, headers={"Origin": self.url})
        try:
            yield await context.new_page()
        finally:
            await context.close()

    async def session(self, *prompts: str) -> str:
        """Create a session and run turns in it."""
        async with httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=WAIT_S) as http:
            made = await http.post("/session", json={"cwd": self._cwd, "sessionScope": "thread"})
            session_id = made.raise_for_status().json()["sessionId"]
            for prompt in prompts:
                async with http.stream("GET", f"/session/{session_id}/events") as events:
                    await self.prompt(session_id, prompt)
                    async for line in events.aiter_lines():
                        if line.startswith("event: turn_complete"):
                            break
            return session_id

    async def prompt(self, session_id: str, text: str) -> None:
        body = {"prompt": [{"type": "text", "text": text}]}
        async with httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=WAIT_S) as http:
            (await http.post(f"/session/{session_id}/prompt", json=body)).raise_for_status()

    def address(self, session_id: str) -> str:
        return f"{self.url}{self._path}{session_id}"


async def value(page: Page, expression: str) -> float:
    """Wait for an expression to be true and return it as a number."""
    found = await page.wait_for_function(f"() => {expression}")
    return float(await found.json_value())


async def home(visit: Visit) -> Found:
    """The first paint, and the compressed size of everything loaded until then."""
    responses: list[Response] = []
    async with visit.page() as page:
        page.on("response", lambda response: responses.append(response))
        await page.goto(visit.url)
        painted = await value(page, "performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        parts = [
            each for each in responses if each.request.resource_type in ("document", "script", "stylesheet", "font")
        ]
        weight = sum([len(gzip.compress(await each.body(), 9)) for each in parts])
    return {"home: first contentful paint, ms": painted, "home: what it loads, kB gzipped": weight / 1000}


async def opening(visit: Visit) -> Found:
    """Measure opening a long session, until its newest words are drawn."""
    # The last turn alone has this chunk.
    session_id = await visit.session(*[f"burst {UPDATES}"] * (TURNS - 1), f"burst {UPDATES + 1}")
    found: list[float] = []
    nodes = 0.0
    for _ in range(ROUNDS):
        async with visit.page() as page:
            await page.add_init_script(f"({SEEN})('piece {UPDATES:08d} of an answer')")
            await page.goto(visit.address(session_id), wait_until="commit")
            found.append(await value(page, "window.seenAt"))
            nodes = await value(page, "document.querySelectorAll('*').length")
    row = f"{TURNS * UPDATES:,} updates"
    return {f"{row}: newest words drawn, ms": min(found), f"{row}: elements in the document": nodes}


async def streaming(visit: Visit) -> Found:
    """Measure a turn of 500 updates a second while it is shown."""
    session_id = await visit.session("one")
    async with visit.page() as page:
        await page.goto(visit.address(session_id))
        await value(page, "document.body.textContent.includes('one piece')")
        await page.evaluate(FRAMES)
        await page.evaluate(SEEN, "the last piece")
        begun = time.perf_counter()
        await visit.prompt(session_id, f"stream {STREAMED}")
        await value(page, "window.seenAt")
        took = time.perf_counter() - begun
        frames: list[float] = sorted(map(float, await page.evaluate("window.frames_")))
    return {
        "500 updates/s: a frame, p50, ms": frames[len(frames) // 2],
        "500 updates/s: a frame, p95, ms": frames[len(frames) * 95 // 100],
        "500 updates/s: the longest frame, ms": frames[-1],
        f"500 updates/s: {STREAMED:,} are drawn after, s": took,
    }


async def run(program: str) -> None:
    table = Table()
    async with async_playwright() as playwright:
        for target in (each for each in PATHS if each.missing is None):
            browser = await playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
            with running(target) as daemon:
                visit = Visit(daemon, browser)
                for phase in (*[home] * ROUNDS, opening, streaming):
                    print(f"… {phase.__name__}: {target.name}", file=sys.stderr, flush=True)
                    table.add(target.name, await phase(visit))
            await browser.close()
    table.show()


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if program is None:
        print("the page: skipped, because chromium is not on PATH")
    else:
        asyncio.run(run(program))


if __name__ == "__main__":
    main()
