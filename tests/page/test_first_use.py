"""First use of the page: signing in, the first session, answering, failures, and a phone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.cli.rig import SCRIPTED
from tests.page.rig import AGENTS, OFFERED, OFFLINE, House, housed, visiting
from tests.page.talk import Talk
from tests.page.test_asked import card
from tests.support.browser import PHONE, watched

pytestmark = pytest.mark.anyio

PLAN = "plan read; write\n"


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    with housed(tmp_path_factory.mktemp("builtin"), "--agent", "builtin") as found:
        yield found


async def test_a_suggestion_starts_a_session_of_the_named_agent(browser: Browser, builtin: House) -> None:
    async with visiting(browser, builtin) as visitor:
        page = await visitor.open()
        main = page.get_by_role("main")
        await expect(main.get_by_text("Built-in agent (no model)")).to_be_visible()
        prompt = main.get_by_role("textbox", name="First prompt")
        await expect(prompt).to_be_focused()
        await main.get_by_role("button", name="What is in this folder?").click()
        await expect(prompt).to_have_value("What is in this folder?")
        await expect(prompt).to_be_focused()
        await page.keyboard.press("Enter")
        talk = Talk(page)
        await talk.has_ended("end_turn")
        await expect(talk.field).to_be_focused()
        # The session is named after its first prompt, and its header names the agent.
        await expect(page.get_by_role("heading", name="What is in this folder?")).to_be_visible()
        await expect(page.get_by_role("banner").get_by_text("Built-in agent (no model)")).to_be_visible()
        await expect(talk.log.get_by_role("article", name="Message from You")).to_have_count(1)


async def test_the_first_line_of_the_first_prompt_names_a_session_in_every_tab(
    browser: Browser, house: House
) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        page = await visitor.session(session_id)
        await expect(page.get_by_role("heading", name="Untitled")).to_be_visible()
        house.served.said(session_id, 'say 1 "ko"\nsay 1 "li"')
        await expect(page.get_by_role("heading", name='say 1 "ko"', exact=True)).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name='say 1 "ko"', exact=True)).to_be_visible()


async def test_a_used_login_link_leads_in_if_the_browser_is_logged_in(browser: Browser, house: House) -> None:
    link = house.served.ask("POST", "/login-link")["url"]
    async with visiting(browser, house, link=link) as visitor:
        visitor.watch.expect("401")
        page = await visitor.open()
        await page.goto(link)
        await expect(page.get_by_role("button", name="New", exact=True)).to_be_visible()
    async with watched(browser, house.url) as (context, watch):
        watch.expect("401")
        page = await context.new_page()
        await page.goto(link)
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        await expect(page.get_by_role("alert")).to_contain_text("expired or was already used")


async def test_a_token_signs_in_with_its_rights_and_settings_log_out(browser: Browser, house: House) -> None:
    made = house.served.ask("POST", "/tokens", {"name": "ann", "role": "observer"})
    async with watched(browser, house.url) as (context, watch):
        watch.expect("401")
        page = await context.new_page()
        await page.goto(house.url)
        token = page.get_by_label("Or sign in with a token")
        await token.fill("tw_mistyped")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("mistyped, revoked or expired")
        await token.fill(made["token"])
        await page.get_by_role("button", name="Sign in").click()
        await expect(
            page.get_by_role("list", name="Sessions").or_(page.get_by_text("No sessions yet."))
        ).to_be_visible()
        await page.get_by_role("button", name="Settings").click()
        menu = page.get_by_role("menu")
        await expect(menu).to_contain_text("Signed in as ann (observer)")
        await expect(menu.get_by_role("menuitem", name="Open on your phone")).to_have_count(0)
        await menu.get_by_role("menuitem", name="Log out").click()
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_a_number_answers_from_the_empty_prompt_field_only(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        page = await visitor.session(session_id)
        talk = Talk(page)
        await talk.send("ask tidy allow_once,reject_once")
        await expect(card(talk, "tidy").get_by_role("button", name="allow once")).to_be_visible()
        await talk.field.press_sequentially("x1")
        await expect(talk.field).to_have_value("x1")
        await talk.field.fill("")
        await talk.field.press("1")
        await expect(talk.said("selected allow_once")).to_have_count(1)
        await expect(talk.field).to_have_value("")
        await talk.has_ended("end_turn")


async def test_the_answer_and_the_plan_stay_at_the_turn(browser: Browser, house: House) -> None:
    session_id = house.session()
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await talk.send(f"{PLAN}ask tidy allow_once,reject_once")
        await card(talk, "tidy").get_by_role("button", name="allow once").click()
        await talk.has_ended("end_turn")
        for _ in range(2):
            await expect(talk.log.get_by_text("Allowed by you")).to_be_visible()
            await expect(talk.log.get_by_text("Plan 0 of")).to_be_visible()
            await expect(talk.log.get_by_role("region", name="Plan")).to_be_hidden()
            await talk.page.reload()
            await talk.has_ended("end_turn")


async def test_sending_scrolls_to_the_new_message(browser: Browser, house: House) -> None:
    session_id = house.session()
    house.served.said(session_id, 'say 400 "ko\\n\\n"')
    async with visiting(browser, house) as visitor:
        talk = Talk(await visitor.session(session_id))
        await expect(talk.said("ko").last).to_be_visible()
        await talk.log.hover()
        await talk.page.mouse.wheel(0, -3000)
        await expect(talk.page.get_by_role("button", name="Jump to latest")).to_be_visible()
        await talk.send('say 1 "li li"')
        await talk.has_ended("end_turn", "end_turn")
        await expect(talk.said("li li").last).to_be_in_viewport()


async def test_a_prompt_sent_while_the_daemon_is_away_is_delivered_once(browser: Browser, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        session_id = house.session()
        async with visiting(browser, house) as visitor:
            visitor.watch.expect(OFFLINE)
            page = await visitor.session(session_id)
            talk = Talk(page)
            await talk.send("never")
            await talk.is_running()
            house.kill()
            # The page does not claim to know the state.
            await expect(page.get_by_role("main").get_by_text("Unknown", exact=True)).to_be_visible()
            await talk.field.fill('say 3 "li "')
            await talk.field.press("Enter")
            await expect(page.get_by_text("Your prompt is sent as soon as it is back.")).to_be_visible()
            house.come_back()
            await talk.has_ended("daemon_restarted", "end_turn")
            await expect(talk.said("li li li")).to_have_count(1)
            await expect(talk.field).to_have_value("")
            await expect(page.get_by_text("Unknown", exact=True)).to_have_count(0)
            # A turn that the restart ended is one line with a button.
            failed = talk.log.locator("[data-end=daemon_restarted]")
            await expect(failed).to_contain_text("The daemon was restarted during this turn")
            await failed.get_by_role("button", name="Send again").click()
            await talk.is_running()


async def test_a_guest_is_never_asked_to_answer(browser: Browser, house: House) -> None:
    session_id = house.session(title="watched")
    house.served.prompt(session_id, "ask tidy allow_once,reject_once")
    house.served.until(session_id, "permission_request")
    link = house.served.ask("POST", f"/session/{session_id}/share", {})["url"]
    async with visiting(browser, house, link=link) as visitor:
        page = await visitor.open()
        await expect(page.get_by_text("Waiting for an answer", exact=True)).to_be_visible()
        await expect(page.get_by_text("Waiting for someone with permission to answer.")).to_be_visible()
        await expect(page.get_by_text("Needs you")).to_have_count(0)
        await expect(page.get_by_text("Waiting for you")).to_have_count(0)


@pytest.fixture
def reachable(tmp_path: Path) -> Generator[tuple[House, str]]:
    """A daemon at a name that the page does not take for this computer, although the browser resolves it so."""
    with housed(tmp_path, *AGENTS, "--allow-host", "phone.localhost") as house:
        yield house, house.url.replace("127.0.0.1", "phone.localhost")


async def test_the_phone_dialog_shows_a_qr_code_where_a_phone_can_reach_the_daemon(
    browser: Browser, reachable: tuple[House, str]
) -> None:
    house, url = reachable
    for origin, is_reachable in ((house.url, False), (url, True)):
        async with visiting(browser, house, url=origin) as visitor:
            page = await visitor.open()
            await page.get_by_role("button", name="Settings").click()
            await page.get_by_role("menuitem", name="Open on your phone").click()
            dialog = page.get_by_role("dialog", name="Open on your phone")
            if is_reachable:
                code = dialog.get_by_role("img", name="QR code of a login link")
                await expect(code).to_be_visible()
                assert await code.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
            else:
                await expect(dialog).to_contain_text("turnwire serve --host 0.0.0.0")


async def test_answers_fill_the_width_of_a_phone(browser: Browser, house: House) -> None:
    session_id = house.session()
    house.served.prompt(session_id, "ask tidy allow_once,allow_always,reject_once")
    async with visiting(browser, house, viewport=PHONE) as visitor:
        talk = Talk(await visitor.session(session_id))
        for name in ("allow once", "allow always", "reject once"):
            button = card(talk, "tidy").get_by_role("button", name=name)
            await expect(button).to_be_visible()
            box = await button.bounding_box()
            assert box is not None
            assert box["width"] > PHONE["width"] * 0.7
            assert box["height"] >= 44


async def test_the_agents_own_error_is_shown(browser: Browser, tmp_path: Path) -> None:
    script = tmp_path / "fail.script"
    script.write_text("error -32001 out of paper", encoding="utf-8")
    agent = f"fails={shlex.join([*SCRIPTED, *OFFERED, '--script', str(script)])}"
    with housed(tmp_path, "--agent", agent) as house:
        session_id = house.session("fails")
        async with visiting(browser, house) as visitor:
            talk = Talk(await visitor.session(session_id))
            await talk.send("print it")
            await talk.has_ended("agent_error")
            await expect(talk.ends).to_contain_text(
                re.compile("The agent reported an error.*out of paper", re.DOTALL)
            )
