"""Kills, cuts, reloads, many tabs: nothing lost, nothing twice, and no alarm that outlives its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, expect
from tests.page.rig import OFFLINE, PROFILES, House, both, housed, visiting
from tests.page.talk import Talk
from tests.patience import LONG_S
from tests.support.browser import PHONE
from tests.support.cut_proxy import cutting

pytestmark = pytest.mark.anyio

MARK = "Reconnecting"
TABS = 12


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_daemon_killed_in_the_middle_of_a_turn_loses_and_repeats_nothing(
    browser: Browser, tmp_path: Path, profile: str
) -> None:
    with housed(tmp_path) as house:
        session_id = house.session(profile)
        where = f"session/{session_id}"
        async with visiting(browser, house) as desk, visiting(browser, house, viewport=PHONE) as phone:
            talks = [Talk(await each.open(where)) for each in (desk, phone)]
            for each in (desk, phone):
                each.watch.expect(OFFLINE)
            await talks[0].send('say 3 "ko "')
            await talks[0].has_ended("end_turn")
            await talks[0].send('say 3 "li "\nnever')
            for each in talks:
                await expect(each.said("li li li")).to_be_visible()
            house.kill()
            house.come_back()
            for each in talks:
                await each.has_ended("end_turn", "daemon_restarted")
                await expect(each.page.get_by_text(MARK)).to_have_count(0)
            await talks[1].send('say 3 "mu "')
            for each in talks:
                await each.has_ended("end_turn", "daemon_restarted", "end_turn")
                for words in ("ko ko ko", "li li li", "mu mu mu", "never"):
                    await expect(each.said(words)).to_have_count(1)
            assert await talks[0].text() == await talks[1].text()


async def test_a_network_that_is_cut_and_comes_back_leaves_no_trace(browser: Browser, house: House) -> None:
    session_id = house.session()
    gates = [house.gate(f"{session_id}-{each}") for each in range(2)]
    with anyio.fail_after(LONG_S):
        async with cutting(house.url) as proxy, visiting(browser, house, url=proxy.url) as visitor:
            visitor.watch.expect(OFFLINE)
            talk = Talk(await visitor.session(session_id))
            await talk.send(f'say 3 "ko "\ngate {gates[0]}\nsay 3 "li "\ngate {gates[1]}\nsay 3 "mu "')
            await expect(talk.said("ko ko ko")).to_be_visible()
            proxy.refusing = True
            proxy.cut_all()
            # Sent in the meantime, received by no client.
            gates[0].touch()
            await expect(talk.page.get_by_text(MARK)).to_be_visible()
            await expect(talk.page.get_by_role("main").get_by_text("Unknown", exact=True)).to_be_visible()
            proxy.refusing = False
            await expect(talk.said("ko ko ko li li li")).to_have_count(1)
            await expect(talk.page.get_by_text(MARK)).to_have_count(0)
            await expect(talk.ends).to_have_count(0)
            gates[1].touch()
            await talk.has_ended("end_turn")
            await expect(talk.said("ko ko ko li li li mu mu mu")).to_have_count(1)


async def test_a_short_cut_shows_no_banner(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate = house.gate(session_id)
    with anyio.fail_after(LONG_S):
        async with cutting(house.url) as proxy, visiting(browser, house, url=proxy.url) as visitor:
            visitor.watch.expect(OFFLINE)
            page = await visitor.session(session_id)
            await page.evaluate(
                """words => {
                    window.alarms = 0;
                    new MutationObserver(() => {
                        if (document.body.innerText.includes(words)) window.alarms++;
                    }).observe(document.body, {subtree: true, childList: true, characterData: true});
                }""",
                MARK,
            )
            talk = Talk(page)
            await talk.send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
            await expect(talk.said("ko ko ko")).to_be_visible()
            opened = proxy.opened
            proxy.cut_all()
            gate.touch()
            await talk.has_ended("end_turn")
            await expect(talk.said("ko ko ko li li li")).to_have_count(1)
            assert proxy.opened > opened
            assert await page.evaluate("window.alarms") == 0


async def test_a_reload_in_the_middle_of_a_turn_shows_the_same(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate = house.gate(session_id)
    async with both(browser, house, f"session/{session_id}") as pages:
        desk, phone = talks = [Talk(each) for each in pages]
        await desk.send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
        for each in talks:
            await expect(each.said("ko ko ko")).to_be_visible()
        await desk.field.fill("not sent yet")
        await desk.page.reload()
        await expect(desk.said("ko ko ko")).to_have_count(1)
        await desk.is_running()
        await expect(desk.field).to_have_value("not sent yet")
        gate.touch()
        for each in talks:
            await each.has_ended("end_turn")
            await expect(each.said("ko ko ko li li li")).to_have_count(1)
        assert await desk.text() == await phone.text()


async def test_a_dozen_tabs_of_one_browser_are_live_over_http_1(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate = house.gate(session_id)
    with anyio.fail_after(LONG_S):
        async with visiting(browser, house) as visitor:
            talks = [Talk(await visitor.session(session_id)) for _ in range(TABS)]
            for each in talks:
                await expect(each.field).to_be_visible()
            await talks[-1].send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
            for each in talks:
                await expect(each.said("ko ko ko")).to_be_visible()
            gate.touch()
            for each in talks:
                await each.has_ended("end_turn")
                await expect(each.said("ko ko ko li li li")).to_have_count(1)


async def test_a_reload_without_a_daemon_recovers_by_itself(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        session_id = house.session()
        async with visiting(browser, house) as visitor:
            visitor.watch.expect(f"{OFFLINE}|503")
            page = await visitor.session(session_id)
            talk = Talk(page)
            await talk.send('say 3 "ko "')
            await talk.has_ended("end_turn")
            await page.evaluate("navigator.serviceWorker.ready.then(() => true)")
            house.kill()
            await page.reload()
            # Never the earlier state: that may be wrong by now.
            await expect(page.get_by_role("heading", name="The daemon is not reachable")).to_be_visible()
            await expect(talk.said("ko ko ko")).to_have_count(0)
            house.come_back()
            await expect(talk.said("ko ko ko")).to_have_count(1)
            await talk.send('say 3 "li "')
            await talk.has_ended("end_turn", "end_turn")


async def test_a_page_that_slept_catches_up_without_a_banner(browser: Browser, house: House) -> None:
    session_id = house.session()
    gate = house.gate(session_id)
    async with visiting(browser, house) as visitor:
        page = await visitor.session(session_id)
        talk = Talk(page)
        await talk.send(f'say 3 "ko "\ngate {gate}\nsay 3 "li "')
        await expect(talk.said("ko ko ko")).to_be_visible()
        # Playwright does not type its answers.
        tools: Any = await visitor.context.new_cdp_session(page)
        await tools.send("Page.setWebLifecycleState", {"state": "frozen"})
        gate.touch()
        house.served.until(session_id, "turn_complete")
        await tools.send("Page.setWebLifecycleState", {"state": "active"})
        await talk.has_ended("end_turn")
        await expect(talk.said("ko ko ko li li li")).to_have_count(1)
        await expect(page.get_by_text(MARK)).to_have_count(0)
