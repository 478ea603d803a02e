"""Displayed and sent content: files, commands, options, and markdown that must do no harm."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, FilePayload, expect
from tests.page.rig import PROFILES, House, both, housed, scripted, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio

UNSAFE = json.loads((Path(__file__).parents[2] / "web/page/test/unsafe_markdown.json").read_text(encoding="utf-8"))
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_no_markdown_of_an_agent_runs_a_script_or_asks_anybody(browser: Browser, house: House) -> None:
    session_id = house.session()
    cases = UNSAFE["cases"]
    assert cases
    for number, case in enumerate(cases):
        block = {"type": "text", "text": f"{case['markdown']}\n\ncase {number} is over"}
        told = {"sessionUpdate": "agent_message_chunk", "content": block, "messageId": f"m{number}"}
        house.served.said(session_id, f"update {json.dumps(told)}")
    async with visiting(browser, house) as visitor:
        # By now the page has sent all its own requests for showing a session.
        harmless = house.session()
        page = await visitor.session(harmless)
        await expect(Talk(page).field).to_be_visible()
        usual = {urlsplit(each).path for each in visitor.watch.requests}
        before = len(visitor.watch.requests)
        await page.goto(f"{visitor.url}/#/session/{session_id}")
        talk = Talk(page)
        await expect(talk.said(f"case {len(cases) - 1} is over").last).to_be_visible()
        for _ in range(len(cases)):
            messages = talk.log.get_by_role("article", name="Message from the agent")
            for at in range(await messages.count()):
                found = messages.nth(at).locator(UNSAFE["forbidden"])
                assert await found.count() == 0, await found.first.evaluate("each => each.outerHTML")
            await talk.log.evaluate("box => { box.scrollTop = 0; }")
            if await talk.said("case 0 is over").count():
                break
        assert await page.evaluate("window.harm") is None
        asked = {urlsplit(each).path for each in visitor.watch.requests[before:]} - usual
        assert [each for each in asked if not each.startswith(("/session/", "/assets/"))] == []


@pytest.mark.parametrize("profile", PROFILES)
async def test_modes_and_models_are_the_same_everywhere(browser: Browser, house: House, profile: str) -> None:
    session_id = house.session(profile)
    async with both(browser, house, f"session/{session_id}") as (desk, phone):
        await desk.get_by_role("combobox", name="Mode", exact=True).select_option("code")
        await expect(phone.get_by_role("combobox", name="Mode", exact=True)).to_have_value("code")
        await phone.get_by_role("combobox", name="Model", exact=True).select_option("large")
        for each in (desk, phone):
            await expect(each.get_by_role("combobox", name="Model", exact=True)).to_have_value("large")
            await expect(each.get_by_role("combobox", name="Mode", exact=True)).to_have_value("code")
            await expect(each.get_by_role("meter", name="Context used")).to_be_visible()


async def test_the_agents_commands_are_offered_while_one_types(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await talk.field.press_sequentially("/re")
        offered = talk.page.get_by_role("listbox", name="Agent commands")
        await expect(offered.get_by_role("option")).to_have_count(1)
        await talk.page.keyboard.press("Enter")
        await expect(talk.field).to_have_value("/review")
        await talk.page.keyboard.press("Enter")
        await talk.has_ended("end_turn")
        await expect(talk.log.get_by_role("article", name="Message from the agent")).to_contain_text("'review'")


async def test_a_file_goes_with_the_prompt_and_can_be_left_out(browser: Browser, house: House) -> None:
    session_id = house.session()
    files = [
        FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"a kestrel hovers"),
        FilePayload(name="left-out.txt", mimeType="text/plain", buffer=b"nobody reads this"),
    ]
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        async with desk.page.expect_file_chooser() as chooser:
            await desk.form.get_by_role("button", name="Attach files").click()
        await (await chooser.value).set_files(files)
        parts = desk.form.get_by_role("list", name="Attached to the prompt")
        await expect(parts.get_by_role("listitem")).to_have_count(2)
        await parts.get_by_role("button", name="Remove left-out.txt").click()
        await desk.send("read this")
        for each in talks:
            await each.has_ended("end_turn")
            asked = each.log.get_by_role("article").first
            await expect(asked).to_contain_text("notes.txt")
            await expect(asked).not_to_contain_text("left-out.txt")
        turn = house.served.ask("GET", f"/session/{session_id}/transcript")["items"][0]
        assert "kestrel" in json.dumps(turn)
        await expect(phone.form.get_by_role("list", name="Attached to the prompt")).to_have_count(0)


async def test_a_picture_that_is_pasted_is_shown_or_refused_with_the_reason(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await talk.field.evaluate(
            """(field, data) => {
                const bytes = Uint8Array.from(atob(data), each => each.charCodeAt(0));
                const clipboardData = new DataTransfer();
                clipboardData.items.add(new File([bytes], "pixel.png", {type: "image/png"}));
                field.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
            }""",
            base64.b64encode(PIXEL).decode(),
        )
        parts = talk.form.get_by_role("list", name="Attached to the prompt")
        await expect(
            parts.get_by_text("pixel.png").or_(talk.form.get_by_text("does not accept images"))
        ).to_be_visible()


async def test_a_child_session_is_nested_where_it_was_announced(browser: Browser, house: House) -> None:
    session_id = house.session("v2")
    async with both(browser, house, f"session/{session_id}") as pages:
        talks = [Talk(each) for each in pages]
        await talks[0].send('say 2 "mu "\nchild helper say 3 "ko "\nchild-rests helper\nsay 2 "li "')
        for each in talks:
            await each.has_ended("end_turn")
            child = each.log.get_by_role("region", name="Child session")
            await expect(child).to_contain_text("done")
            await expect(each.said("ko ko ko")).to_have_count(0)
            await child.get_by_role("button").first.click()
            await expect(child.get_by_text("ko ko ko")).to_have_count(1)


async def test_a_word_is_put_into_the_running_turn(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path, "--agent", scripted("v1", "--steering")) as house:
        session_id = house.session("v1")
        gate = house.gate("steered")
        async with both(browser, house, f"session/{session_id}") as pages:
            desk, phone = talks = [Talk(each) for each in pages]
            await desk.send(f"gate {gate}")
            await phone.is_running()
            await phone.field.fill("mind the gap")
            await phone.form.get_by_role("button", name="More ways to send").click()
            await phone.page.get_by_role("menuitem", name="Steer").click()
            await expect(phone.field).to_have_value("")
            for each in talks:
                await expect(each.log.get_by_text("mind the gap", exact=True)).to_have_count(1)
                await expect(each.said("steered mind the gap")).to_have_count(1)
                await expect(each.queue).to_have_count(0)
            gate.touch()
            for each in talks:
                await expect(each.stop).to_have_count(0)
                await expect(each.ends.last).to_have_attribute("data-end", "end_turn")


async def test_a_file_that_is_dropped_anywhere_goes_with_the_prompt(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await expect(talk.field).to_be_visible()
        dropped = await talk.page.evaluate_handle(
            """() => {
                const files = new DataTransfer();
                files.items.add(new File(["a heron stands"], "heron.txt", { type: "text/plain" }));
                return files;
            }"""
        )
        await talk.log.dispatch_event("dragover", {"dataTransfer": dropped})
        await talk.log.dispatch_event("drop", {"dataTransfer": dropped})
        parts = talk.form.get_by_role("list", name="Attached to the prompt")
        await expect(parts.get_by_role("listitem")).to_contain_text(["heron.txt"])
        await talk.send("hello")
        await talk.has_ended("end_turn")
        await expect(parts).to_have_count(0)
        prompt = house.served.ask("GET", f"/session/{session_id}/transcript")["items"][0]["content"]
        assert "a heron stands" in json.dumps(prompt)


async def test_the_output_of_a_terminal_is_shown_as_a_terminal_would(browser: Browser, house: House) -> None:
    session_id = house.session("v2")
    output = base64.b64encode(b"\x1b[31mred\x1b[0m rest\r\nover\rOVER\r\n").decode()
    for told in (
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "t1",
            "title": "run it",
            "kind": "execute",
            "status": "in_progress",
            "content": [{"type": "terminal", "terminalId": "x1"}],
        },
        {"sessionUpdate": "terminal_update", "terminalId": "x1", "command": "make it"},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "x1", "data": output},
    ):
        house.served.ended(session_id, house.served.prompt(session_id, f"update {json.dumps(told)}"))
    async with both(browser, house, f"session/{session_id}") as pages:
        for talk in map(Talk, pages):
            await expect(talk.said("red rest")).to_be_visible()
            await expect(talk.said("OVER")).to_be_visible()
            coloured = talk.log.get_by_text("red", exact=True)
            colours = [
                await each.evaluate("each => getComputedStyle(each).color")
                for each in (coloured, talk.said("OVER"))
            ]
            assert colours[0] != colours[1]
