"""Agents' requests: shown everywhere, answered once, and the other clients are notified of the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect
from tests.page.rig import PROFILES, House, both, housed, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio

VERSIONS = pytest.mark.parametrize("profile", PROFILES)
QUESTION = "The agent has a question"
NEW, OLD = "def retry():\n    return 3\n", "def retry():\n    return 1\n"


def card(talk: Talk, title: str) -> Locator:
    return talk.log.get_by_role("group", name=title)


@VERSIONS
async def test_a_permission_is_asked_everywhere_and_answered_once(
    browser: Browser, house: House, profile: str
) -> None:
    session_id = house.session(profile)
    gate = house.gate(session_id)
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await desk.send(f"ask tidy allow_once,reject_once\ngate {gate}")
        for each in talks:
            await expect(card(each, "tidy").get_by_role("button", name="allow once")).to_be_visible()
            await expect(card(each, "tidy").get_by_role("button", name="reject once")).to_be_visible()
        await card(phone, "tidy").get_by_role("button", name="allow once").click()
        await expect(card(phone, "tidy")).to_contain_text("You answered: allow once")
        await expect(card(desk, "tidy")).to_contain_text("You answered elsewhere")
        for each in talks:
            await expect(card(each, "tidy").get_by_role("button", name="allow once")).to_have_count(0)
            await expect(each.said("selected allow_once")).to_have_count(1)
        gate.touch()
        for each in talks:
            await each.has_ended("end_turn")


async def test_a_permission_is_answered_by_its_number(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await talk.send("ask tidy allow_once,reject_once")
        await card(talk, "tidy").focus()
        await talk.page.keyboard.press("2")
        await expect(talk.said("selected reject_once")).to_have_count(1)
        await talk.has_ended("end_turn")


FIRST = "session-1"
"""The scripted agent's id of its first session."""


def change_asked(agent_session: str) -> str:
    """Return a permission request for a change of a file, as a v1 agent sends it."""
    diff = {"type": "diff", "path": "/project/retry.py", "oldText": OLD, "newText": NEW}
    call = {
        "toolCallId": "edit-1",
        "title": "Edit retry.py",
        "kind": "edit",
        "status": "pending",
        "content": [diff],
    }
    options = [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}]
    asked = {"sessionId": agent_session, "toolCall": call, "options": options}
    told = {"sessionUpdate": "tool_call", **call}
    request = {"jsonrpc": "2.0", "id": "ask-1", "method": "session/request_permission", "params": asked}
    return f"update {json.dumps(told)}\nraw {json.dumps(request)}\nnever"


async def test_a_comment_on_a_line_of_a_change_becomes_part_of_the_next_prompt(
    browser: Browser, tmp_path: Path
) -> None:
    with housed(tmp_path) as house:
        session_id = house.session()
        async with both(browser, house, f"session/{session_id}") as pages:
            await comment_and_send(*(Talk(each) for each in pages))


async def comment_and_send(desk: Talk, phone: Talk) -> None:
    talks = (desk, phone)
    await desk.send(change_asked(FIRST))
    changes = [card(each, "Edit retry.py").get_by_role("region", name="Change of") for each in talks]
    for each in changes:
        await expect(each).to_contain_text("return 3")
    await changes[0].get_by_role("button", name="Comment on line 2", exact=True).click()
    await changes[0].get_by_role("textbox", name="Comment on line 2").fill("why three?")
    await changes[0].get_by_role("button", name="Add comment").click()
    await expect(desk.form.get_by_role("list", name="Attached to the prompt")).to_contain_text("why three?")
    await desk.send("see my comment")
    for each in talks:
        for words in ("see my comment", "/project/retry.py:2", "why three?"):
            await expect(each.queue.get_by_role("listitem")).to_contain_text(words)
    await phone.stop.click()
    for each in talks:
        await each.has_ended("cancelled", "end_turn")


async def test_a_form_is_filled_in_on_one_page_and_gone_on_the_other(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with both(browser, house, f"session/{session_id}") as pages:
        talks = [Talk(each) for each in pages]
        desk = talks[0]
        await desk.send("elicit which colour")
        for each in talks:
            await expect(card(each, QUESTION).get_by_role("textbox", name="answer")).to_be_visible()
        await card(desk, QUESTION).get_by_role("textbox", name="answer").fill("green")
        await card(desk, QUESTION).get_by_role("button", name="Send").click()
        for each in talks:
            await expect(each.said('elicited accept {"answer":"green"}')).to_have_count(1)
            await each.has_ended("end_turn")
            await expect(card(each, QUESTION)).to_have_count(0)
