"""The page with the built-in agent: each of its demonstrations, at a desk and on a phone at once."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.async_api import Browser, expect
from tests.page.rig import House, both, housed, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    with housed(tmp_path_factory.mktemp("home"), "--agent", "builtin") as found:
        yield found


async def test_a_change_of_a_file_is_asked_for_shown_and_made(browser: Browser, house: House) -> None:
    session_id = house.session("builtin")
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await desk.send("/demo edit")
        for each in talks:
            await expect(each.log.get_by_role("region", name="Change of").first).to_be_visible()
        await phone.log.get_by_role("button", name="Allow").first.click()
        for each in talks:
            await each.has_ended("end_turn")
            await expect(each.log.get_by_role("region", name="Change of")).to_have_count(1)


DEMONSTRATIONS = {
    "tools": "end_turn",
    "plan": "end_turn",
    "thinking": "end_turn",
    "usage": "end_turn",
    "error": "agent_error",
    "refusal": "refusal",
    "max-tokens": "max_tokens",
    "image": "end_turn",
    "markdown": "end_turn",
}
"""Demonstrations that ask nothing, with their ends."""


async def test_demonstrations_look_the_same_in_every_tab_and_after_a_reload(browser: Browser, house: House) -> None:
    session_id = house.session("builtin")
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        done: list[str] = []
        for name, end in DEMONSTRATIONS.items():
            await desk.send(f"/demo {name}")
            done.append(end)
            for each in talks:
                await expect(each.ends.last).to_have_attribute("data-end", end)
                await expect(each.stop).to_have_count(0)
        live = await desk.text()
        await expect(phone.log).to_have_text(live, use_inner_text=True)
        await desk.page.reload()
        await expect(desk.ends.last).to_have_attribute("data-end", done[-1])
        await desk.read_from_the_start()
        await expect(desk.log).to_have_text(live, use_inner_text=True)


async def test_a_stopped_answer_names_who_stopped_it(browser: Browser, house: House) -> None:
    session_id = house.session("builtin")
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await talk.send("/demo long 120s")
        await talk.is_running()
        await talk.stop.click()
        await talk.has_ended("cancelled")
        await expect(talk.ends).to_contain_text("Cancelled")
