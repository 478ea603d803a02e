"""The page as users have it: a real daemon in a separate process, and browsers that logged in by a login link.

A `House` is one daemon on one port and one folder: it can be killed and restarted. A `Visitor` is a browser of one
user; several pages in it share cookies and workers, as tabs do. Agents are scripted: a prompt is the script of its
own turn, which waits at gates until the test opens them.
"""

from __future__ import annotations

import re
import shlex
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, expect
from tests.cli.rig import SCRIPTED, Served, served
from tests.support.browser import DESKTOP, PHONE, Watch, watched

PROFILES = ("v1", "v2")
OFFERED = ("--before", "commands plan,review", "--before", "usage 12000 200000")
"""The initial updates of every scripted agent in a session."""

OFFLINE = r"net::ERR_(CONNECTION|INTERNET|NETWORK|INCOMPLETE|EMPTY|SOCKET|FAILED)|when fetching the script"
"""The browser's message about an unreachable server."""


def scripted(profile: str, *options: str) -> str:
    """Return an agent for `--agent`, named like its version of ACP."""
    return f"{profile}={shlex.join([*SCRIPTED, '--profile', profile, *OFFERED, *options])}"


AGENTS = tuple(word for profile in PROFILES for word in ("--agent", scripted(profile)))
"""The flags of a daemon with a scripted agent of each version; the first is the default."""


class House:
    """A daemon with its folder and its port."""

    def __init__(self, home: Path, port: int, flags: tuple[str, ...], stack: ExitStack) -> None:
        self.home = home
        self._flags = (*flags, "--port", str(port))
        self._stack = stack
        self.served = self._start()

    @property
    def url(self) -> str:
        return self.served.url

    def _start(self) -> Served:
        return self._stack.enter_context(served(self.home, *self._flags))

    def kill(self) -> None:
        """Kill the daemon as a power cut does, at any point. Its agents end with it."""
        self.served.stop(signal.SIGKILL)

    def come_back(self) -> None:
        """Start it again, on the same port and the same folder."""
        self.served = self._start()

    def session(self, agent: str = PROFILES[0], title: str | None = None) -> str:
        session_id = self.served.session(agent=agent, cwd=str(self.home))
        if title is not None:
            self.served.ask("PATCH", f"/session/{session_id}", {"title": title})
        return session_id

    def gate(self, name: str) -> Path:
        """Return the gate of a scripted agent with the command `gate` and this path; `touch` opens it."""
        return self.home / f"gate-{name}"


@contextmanager
def housed(home: Path, *flags: str) -> Generator[House]:
    """Run a daemon, by default with the scripted agents. All of it is removed afterwards."""
    with socket.socket() as held, ExitStack() as stack:
        # Bound without listening: the port stays ours between two incarnations of the daemon.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield House(home, held.getsockname()[1], flags or AGENTS, stack)


@dataclass
class Visitor:
    """One user's browser, logged in."""

    context: BrowserContext
    watch: Watch
    url: str
    _first: Page | None
    """The tab to which the link led, until something else is opened in it."""

    async def open(self, where: str = "") -> Page:
        """Open a tab with a part of the page: the text after `#`."""
        page, self._first = self._first or await self.context.new_page(), None
        await page.goto(f"{self.url}/#/{where}")
        return page

    async def session(self, session_id: str) -> Page:
        return await self.open(f"session/{session_id}")


@asynccontextmanager
async def visiting(
    browser: Browser,
    house: House,
    *,
    url: str | None = None,
    viewport: ViewportSize = DESKTOP,
    link: str | None = None,
    **options: Any,
) -> AsyncGenerator[Visitor]:
    """Open a browser with a login link of the daemon, or another link, optionally over a proxy at another URL."""
    origin = url or house.url
    phone: dict[str, Any] = {"has_touch": True, "is_mobile": True} if viewport == PHONE else {}
    async with watched(browser, origin, viewport=viewport, **phone | options) as (context, watch):
        page = await context.new_page()
        came_by = link or house.served.ask("POST", "/login-link")["url"]
        await page.goto(came_by.replace(house.url, origin))
        await page.wait_for_url(re.compile(f"^{re.escape(origin)}/(#.*)?$"))
        await expect(page.locator("main")).to_be_attached()
        yield Visitor(context, watch, origin, page)


@asynccontextmanager
async def both(browser: Browser, house: House, where: str = "") -> AsyncGenerator[tuple[Page, Page]]:
    """Open the same part of the page at a desk and on a phone: two browsers of one user."""
    async with visiting(browser, house) as desk, visiting(browser, house, viewport=PHONE) as phone:
        yield await desk.open(where), await phone.open(where)
