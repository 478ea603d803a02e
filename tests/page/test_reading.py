"""Reading while a turn streams: the visible text does not move, and a reader at the end stays there."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, expect
from tests.page.rig import House, both, visiting
from tests.page.talk import Talk

pytestmark = pytest.mark.anyio


def lines(word: str) -> str:
    """Return sixty paragraphs, each in a separate update."""
    texts = [f"{word} {number} of the answer\n\n" for number in range(60)]
    chunk = {"sessionUpdate": "agent_message_chunk", "messageId": word}
    return "\n".join(f"update {json.dumps(chunk | {'content': {'type': 'text', 'text': each}})}" for each in texts)


def top_of(words: str) -> str:
    """Return the visible position of a line."""
    return f"""box => [...box.querySelectorAll("p")].find(each => each.textContent.trim() === {words!r})
        .getBoundingClientRect().top"""


async def test_visible_text_stays_in_place_while_more_arrives(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate, last = house.gate(f"{session_id}-more"), house.gate(f"{session_id}-last")
    async with both(browser, house, f"session/{session_id}") as pages:
        for each in pages:
            await expect(Talk(each).field).to_be_visible()
        house.served.prompt(session_id, f"{lines('line')}\ngate {gate}\n{lines('more')}\nsay 3 'ko '\ngate {last}")
        for each in pages:
            talk = Talk(each)
            # The end was followed; now something before it is read.
            await expect(talk.log.get_by_text("line 59 of the answer", exact=True)).to_be_in_viewport()
            await talk.log.hover()
            await each.mouse.wheel(0, -900)
            await expect(each.get_by_role("button", name="Jump to latest")).to_be_visible()
        seen = [await Talk(each).log.evaluate(FIRST_SEEN) for each in pages]
        before = [await Talk(each).log.evaluate(top_of(words)) for each, words in zip(pages, seen, strict=True)]
        gate.touch()
        for each in pages:
            await expect(Talk(each).said("ko ko ko")).to_be_attached()
        after = [await Talk(each).log.evaluate(top_of(words)) for each, words in zip(pages, seen, strict=True)]
        assert after == before
        for each in pages:
            await each.get_by_role("button", name="Jump to latest").click()
            await expect(Talk(each).said("ko ko ko")).to_be_in_viewport()
        last.touch()
        for each in pages:
            await Talk(each).has_ended("end_turn")
            await expect(Talk(each).ends).to_be_in_viewport()


FIRST_SEEN = """box => {
    const top = box.getBoundingClientRect().top;
    const seen = [...box.querySelectorAll("p")].find(each => each.getBoundingClientRect().top > top + 20);
    return seen.textContent.trim();
}"""


async def test_nothing_jumps_while_an_answer_streams(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        page = await visitor.session(session_id)
        talk = Talk(page)
        await expect(talk.field).to_be_visible()
        await page.evaluate(
            """() => {
                window.jumps = [];
                new PerformanceObserver(list => {
                    for (const each of list.getEntries()) if (!each.hadRecentInput) window.jumps.push(each.value);
                }).observe({type: "layout-shift", buffered: false});
            }"""
        )
        house.served.prompt(
            session_id, f"think about it\nplan one; two\n{lines('line')}\ntool t1 read look\n{lines('more')}"
        )
        await talk.has_ended("end_turn")
        assert sum(await page.evaluate("window.jumps")) < 0.1
