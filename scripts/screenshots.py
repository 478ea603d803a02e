"""Draw docs/images/page-*.png: twelve states of the page in Chromium, with a daemon whose agents are scripted here.

The pictures are shown in README.md and docs/page.md. `make screenshots` runs it after the page has changed. It is
not among the checks: each run has other ids and other durations.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
from playwright.async_api import Browser, Page, ViewportSize, expect
from tests.cli.rig import SCRIPTED
from tests.page.rig import House, housed, visiting
from tests.page.talk import Talk
from tests.support.browser import PHONE, need_browser, running_browser

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "images"
MOST_BYTES = 150_000

OLD = """\
def upload(path: Path, to: str) -> None:
    send(path, to)
"""
NEW = """\
def upload(path: Path, to: str) -> None:
    for wait in (1, 2):
        with suppress(ConnectionError):
            return send(path, to)
        clock.sleep(wait)
    send(path, to)
"""
OLD_TEST = """\
def test_an_upload_survives_a_lost_connection(server):
    server.drop(1)
    time.sleep(3)
    upload(FILE, server.url)
"""
NEW_TEST = """\
def test_an_upload_survives_a_lost_connection(server, clock):
    server.drop(1)
    upload(FILE, server.url)
    assert clock.slept == [1]
"""
ANSWER = """\
An upload is now tried **three times**, with one and two seconds between.

- Only a lost connection is tried again; a refusal is raised at once.
- The waits come from the `clock`, so tests do not sleep.
"""
DESK = ViewportSize(width=1200, height=826)
SMALL = ViewportSize(width=760, height=520)
"""For states of which one part matters. All columns are still shown."""


def update(name: str, **members: Any) -> str:
    return f"update {json.dumps({'sessionUpdate': name, **members})}"


def say(text: str) -> str:
    return update("agent_message_chunk", content={"type": "text", "text": text})


def call(call_id: str, kind: str, title: str, **members: Any) -> str:
    return update("tool_call", toolCallId=call_id, kind=kind, title=title, **members)


def change(path: str, old: str, new: str) -> dict[str, str]:
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def text(words: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": words}}


def done(call_id: str, *content: dict[str, Any]) -> str:
    return update("tool_call_update", toolCallId=call_id, status="completed", content=content)


def plan(*steps: tuple[str, str]) -> str:
    entries = [{"content": words, "status": status, "priority": "medium"} for words, status in steps]
    return update("plan", entries=entries)


def asks(path: str, old: str, new: str, title: str) -> list[str]:
    """The agent wants to change a file, and waits for the answer."""
    shown = {"toolCallId": "edit", "kind": "edit", "title": title, "content": [change(path, old, new)]}
    options = [
        ("once", "Allow once", "allow_once"),
        ("always", "Always allow", "allow_always"),
        ("no", "Reject", "reject_once"),
    ]
    params = {
        "sessionId": "session-1",
        "toolCall": shown | {"status": "pending"},
        "options": [dict(zip(("optionId", "name", "kind"), each, strict=True)) for each in options],
    }
    request = {"jsonrpc": "2.0", "id": "ask", "method": "session/request_permission", "params": params}
    return [call("edit", "edit", title, status="pending", content=shown["content"]), f"raw {json.dumps(request)}"]


class Scene(NamedTuple):
    """A session: its title, its prompt, and its agent's script."""

    agent: str
    title: str
    prompt: str
    script: tuple[str, ...]
    ends: bool = True


UPLOADS = Scene(
    "coder",
    "Retry uploads with back-off",
    "Uploads fail when the network drops. Try again, three times at most.",
    (
        "gate 1",
        "think An upload opens one connection. What is lost with it, and what may be sent twice?",
        plan(("Read the uploader", "completed"), ("Try again", "completed"), ("Test it", "completed")),
        "gate 2",
        call("read", "read", "Read upload.py", status="in_progress"),
        "gate 3",
        done("read", text(OLD)),
        "gate 4",
        say("Each upload is a connection of its own, so it can be repeated as a whole."),
        "gate 5",
        *asks("/srv/sync/upload.py", OLD, NEW, "Edit upload.py"),
        "gate 6",
        done("edit", change("/srv/sync/upload.py", OLD, NEW)),
        "gate 7",
        call("test", "execute", "pytest -q tests/test_upload.py", status="in_progress"),
        "gate 8",
        done("test", text("......  6 passed in 0.21s")),
        "gate 9",
        say(ANSWER),
        "usage 48200 200000",
    ),
)
PACES = (0.6, 0.5, 0.2, 0.5, 0.2, 0.9, 0.3, 0.7, 0.5)
"""Seconds before each gate: the picture of a turn has lengths to show."""
TEST = Scene(
    "tester",
    "Fix the slow upload test",
    "test_an_upload_survives_a_lost_connection sleeps for three seconds. Make it quick.",
    (
        say("It waits for real time to pass. The uploader waits by a clock, so the test can have one of its own."),
        *asks("/srv/sync/tests/test_upload.py", OLD_TEST, NEW_TEST, "Edit test_upload.py"),
        "usage 9100 200000",
        "never",
    ),
    ends=False,
)
OTHERS = (
    Scene(
        "notes",
        "Write the release notes",
        "Write the notes of 2.4.",
        ('say 1 "Reading the log since 2.3"', "never"),
        ends=False,
    ),
    Scene(
        "review",
        "Review the storage layer",
        "Review storage/.",
        ('say 1 "Two things to look at."', "usage 1200 200000"),
    ),
    Scene("types", "Strict types for the client", "Make the client strict.", ('say 1 "Done."',)),
)
FAILING = Scene("printer", "Print the report", "Print report.pdf.", ("error -32001 The printer is out of paper.",))
SCENES = (*OTHERS, FAILING, TEST, UPLOADS)
REACHABLE = "phone.localhost"
"""A name of this machine that the page takes for one that phones can reach."""


async def play(house: House, scene: Scene) -> str:
    """The session, as far as its scene goes."""
    session_id = house.session(scene.agent, title=scene.title)
    prompt_id = house.served.prompt(session_id, scene.prompt)
    if scene is UPLOADS:
        await pace(house, session_id)
    if scene.ends:
        house.served.ended(session_id, prompt_id)
    return session_id


async def pace(house: House, session_id: str) -> None:
    """Open the gates of a scene one after the other, and answer the request before the sixth."""
    for number, seconds in enumerate(PACES, 1):
        await anyio.sleep(seconds)
        if number == 6:
            [asked] = house.served.ask("GET", f"/session/{session_id}/permissions")["permissions"]
            answer = {"outcome": {"outcome": "selected", "optionId": "once"}}
            house.served.ask("POST", f"/session/{session_id}/permissions/{asked['requestId']}", answer)
        house.gate(str(number)).touch()


def agents(home: Path) -> list[str]:
    """Return flags for a daemon: each scene has an agent that runs its script for any prompt."""
    flags: list[str] = []
    for scene in SCENES:
        script = home / f"{scene.agent}.script"
        lines = [f"gate {home}/gate-{each[5:]}" if each.startswith("gate ") else each for each in scene.script]
        script.write_text("\n".join(lines), encoding="utf-8")
        flags += ["--agent", f"{scene.agent}={shlex.join([*SCRIPTED, '--script', str(script)])}"]
    return flags


async def keep(page: Page, name: str) -> None:
    """Write a picture, once everything is there."""
    change = page.get_by_role("region", name="Change of")
    if await change.count():
        # Its colours come last.
        await expect(change.get_by_text("def", exact=True).first).to_be_visible()
    picture = await page.screenshot(animations="disabled", caret="hide")
    file = PICTURES / f"page-{name}.png"
    file.write_bytes(picture)
    print(f"{file.name}: {len(picture) / 1000:.0f} kB")
    if len(picture) > MOST_BYTES:
        sys.exit(f"{file.name} is larger than {MOST_BYTES / 1000:.0f} kB")


async def draw(browser: Browser, house: House) -> None:
    ids = {scene.title: await play(house, scene) for scene in SCENES}
    uploads, test = ids[UPLOADS.title], ids[TEST.title]
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        async with visiting(browser, house, viewport=DESK, color_scheme=scheme) as visitor:
            page = await visitor.session(uploads)
            await expect(Talk(page).said("The waits come from the clock")).to_be_visible()
            await keep(page, scheme)
    async with visiting(browser, house, viewport=DESK, color_scheme="light") as visitor:
        page = await visitor.session(test)
        await expect(page.get_by_role("button", name="Allow once")).to_be_visible()
        await keep(page, "permission")
        turn = house.served.ask("GET", f"/session/{uploads}/turns")["turns"][0]["promptId"]
        page = await visitor.open(f"session/{uploads}/inspector/{turn}")
        # It has more words than a conversation, and shows enough on a smaller screen.
        await page.set_viewport_size(ViewportSize(width=1100, height=700))
        await expect(page.get_by_role("group", name="The turn, to scale")).to_be_visible()
        await keep(page, "inspector")
    async with visiting(browser, house, viewport=PHONE, color_scheme="dark", device_scale_factor=1.5) as visitor:
        page = await visitor.session(test)
        await expect(page.get_by_role("button", name="Allow once")).to_be_visible()
        await keep(page, "phone")


async def draw_small(browser: Browser, house: House) -> None:
    """Draw the states around a conversation."""
    ids = {each["title"]: each["sessionId"] for each in house.served.ask("GET", "/session")["sessions"]}
    async with visiting(browser, house, viewport=SMALL, color_scheme="light") as visitor:
        page = await visitor.open()
        await expect(page.get_by_role("button", name="Start session")).to_be_visible()
        await keep(page, "start")
        await page.goto(f"{house.url}/#/inbox")
        await expect(page.get_by_role("button", name="Allow once")).to_be_visible()
        await keep(page, "inbox")
        await page.goto(f"{house.url}/#/session/{ids['Write the release notes']}")
        talk = Talk(page)
        await talk.is_running()
        await talk.send("Then translate them.")
        await talk.field.fill("And publish them.")
        await keep(page, "queue")
        await page.get_by_role("button", name="Session menu").click()
        await page.get_by_role("menuitem", name="Share").click()
        await page.get_by_role("button", name="Create link").click()
        await expect(page.get_by_role("textbox", name="Link")).to_be_visible()
        await keep(page, "share")
        await page.keyboard.press("Escape")
        house.served.ended(ids[FAILING.title], house.served.prompt(ids[FAILING.title], FAILING.prompt))
        await page.goto(f"{house.url}/#/session/{ids[FAILING.title]}")
        await expect(page.get_by_role("button", name="Send again").last).to_be_visible()
        await keep(page, "failed")
    async with browser_context(browser) as page:
        await page.goto(f"{house.url}/#/link-expired")
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        await keep(page, "login")
    url = house.url.replace("127.0.0.1", REACHABLE)
    async with visiting(browser, house, url=url, viewport=SMALL, color_scheme="dark") as visitor:
        page = await visitor.open()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("menuitem", name="Open on your phone").click()
        await expect(page.get_by_role("img", name="QR code of a login link")).to_be_visible()
        await keep(page, "scan")


@asynccontextmanager
async def browser_context(browser: Browser) -> AsyncGenerator[Page]:
    """Open a page of a browser that is not logged in."""
    context = await browser.new_context(viewport=SMALL, color_scheme="light")
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "sync"
        home.mkdir()
        with housed(home, *agents(home), "--allow-host", REACHABLE) as house:
            async with running_browser(need_browser()) as browser:
                await draw(browser, house)
                await draw_small(browser, house)


if __name__ == "__main__":
    asyncio.run(main())
