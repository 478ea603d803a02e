"""A real Chromium for tests, driven over the DevTools protocol: open a page, run scripts in it, see what it did.

Takes nothing from the machine but the program: a profile of its own that is gone afterwards, and no network besides
what the page asks for. Gives pages that write down each request, what the console said, and what a policy forbade.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from turnwire.testing.patience import WAIT_S
from turnwire.testing.plugin import find_tool

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--remote-debugging-port=0", "--window-size=1280,900", "--force-device-scale-factor=1"),
)
LARGEST = 64 * 1024 * 1024
"""Bytes of one message: a picture of a long page is one."""
STOP_S = 10.0


class ScriptFailed(AssertionError):
    """A script of the test threw in the page."""


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        """The address of each request so far, but for what is in the page itself (`data:`, `blob:`)."""
        self.complaints: list[str] = []
        """What a policy forbade, errors nobody caught, and warnings and errors of the console."""
        self.statuses: dict[str, int] = {}
        """The status of the last answer by address."""

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        return await self._browser.ask(method, parameters, self._session)

    async def open(self, url: str) -> None:
        """Go there, and wait until the page and what it names are loaded."""
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise ScriptFailed(f"{script}: {_said(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    async def until(self, script: str, within_s: float = WAIT_S) -> Any:
        """The value of an expression as soon as it is true. An element cannot leave its page: it is `True`."""
        waiting = f"""new Promise(found => {{
            const look = () => {{
                let value = null;
                try {{ value = ({script}); }} catch (_) {{}}
                value ? found(value instanceof Node || value) : setTimeout(look, 20);
            }};
            look();
        }})"""
        with anyio.fail_after(within_s):
            while True:
                try:
                    return await self.run(waiting)
                except (ScriptFailed, BrowserRefused):
                    # The page went elsewhere meanwhile; its successor is asked.
                    await anyio.lowlevel.checkpoint()

    async def text(self, selector: str = "body") -> str:
        """What a reader sees of an element."""
        return await self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    async def click(self, selector: str) -> None:
        """Click the element as soon as it is there."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def write(self, selector: str, text: str) -> None:
        """Type into a field."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.ask("Input.insertText", text=text)

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen to a PNG, or the whole length of the page."""
        answer = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await anyio.Path(file).write_bytes(base64.b64decode(answer["data"]))

    def heard(self, method: str, told: dict[str, Any]) -> None:
        """An event of the protocol."""
        match method:
            case "Network.requestWillBeSent":
                if not told["request"]["url"].startswith(("data:", "blob:")):
                    self.requests.append(told["request"]["url"])
            case "Network.responseReceived":
                self.statuses[told["response"]["url"]] = told["response"]["status"]
            case "Runtime.exceptionThrown":
                self.complaints.append(_said(told["exceptionDetails"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("warning", "error"):
                self.complaints.append(told["entry"]["text"])
            case "Runtime.consoleAPICalled" if told["type"] in ("warning", "error", "assert"):
                words = [str(each.get("value", each.get("description"))) for each in told["args"]]
                self.complaints.append(" ".join(words))
            case "Audits.issueAdded" if told["issue"]["code"] == "ContentSecurityPolicyIssue":
                self.complaints.append(json.dumps(told["issue"]))
            case _:
                pass


class BrowserRefused(Exception):
    """The browser did not do what the DevTools protocol was asked for."""


class Browser:
    """A running Chromium."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[anyio.Event, dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def page(self) -> Page:
        """A new tab, in which nothing has been opened yet."""
        target = await self.ask("Target.createTarget", {"url": "about:blank"})
        attached = await self.ask("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            await page.ask(f"{domain}.enable")
        return page

    async def ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        number, over = next(self._numbers), anyio.Event()
        answer: dict[str, Any] = {}
        self._waiting[number] = over, answer
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        with anyio.fail_after(WAIT_S):
            await over.wait()
        if "result" not in answer:
            raise BrowserRefused(f"{method}: {answer.get('error')}")
        return answer["result"]

    async def listen(self) -> None:
        """Take what the browser says, until it is gone."""
        try:
            async for message in self._socket:
                self._take(json.loads(message))
        except ConnectionClosed:
            pass
        for over, _ in self._waiting.values():
            over.set()

    def _take(self, told: dict[str, Any]) -> None:
        if "id" in told:
            over, answer = self._waiting.pop(told["id"])
            answer.update(told)
            over.set()
        elif (page := self._pages.get(told.get("sessionId", ""))) is not None:
            page.heard(told["method"], told["params"])


def need_browser() -> str:
    """The browser's program. Without it the test is skipped; see `find_tool`."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    return find_tool("chromium")


@asynccontextmanager
async def running_browser(profile: Path) -> AsyncGenerator[Browser]:
    """A browser with the profile in a folder that is not there yet. Ask `need_browser` first."""
    program = need_browser()
    await anyio.Path(profile).mkdir()
    process = await anyio.open_process(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        env={**os.environ, "HOME": str(profile)},
        stdin=None,
        stdout=None,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        with anyio.fail_after(WAIT_S):
            address = await _address(process.stderr)
        async with connect(address, max_size=LARGEST, proxy=None) as socket, anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, process.stderr)
            browser = Browser(socket)
            tasks.start_soon(browser.listen)
            try:
                yield browser
            finally:
                await _leave(browser, tasks)
    finally:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _leave(browser: Browser, tasks: TaskGroup) -> None:
    gone = suppress(BrowserRefused, ConnectionClosed)  # it may go before it answers
    with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_S), gone:
        await browser.ask("Browser.close", {})
    tasks.cancel_scope.cancel()


async def _address(stderr: anyio.abc.ByteReceiveStream) -> str:
    """Where it listens; it says so once it does."""
    said = b""
    async for chunk in stderr:
        said += chunk
        for line in said.decode(errors="replace").split("\n")[:-1]:
            if line.startswith("DevTools listening on "):
                return line.removeprefix("DevTools listening on ").strip()
    pytest.fail(f"the browser ended: {said.decode(errors='replace')[-2000:]}")


async def _drain(stderr: anyio.abc.ByteReceiveStream) -> None:
    """A browser says much on stderr, and a full pipe would stop it."""
    async for _ in stderr:
        pass


def _said(details: dict[str, Any]) -> str:
    return details.get("exception", {}).get("description") or details["text"]
