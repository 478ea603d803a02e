"""Every demonstration of the built-in agent, run by the real process and observed by a client of ours."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.talk import Talk

from turnwire.client.client import Client, connect
from turnwire.demo.demonstrations import ABOUT, DEMONSTRATIONS, FOLDER
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Client]:
    """Provide one process for all tests."""
    home = tmp_path_factory.mktemp("home")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TURNWIRE_AGENT_DATA": str(home / "agent")}
    async with connect([sys.executable, "-m", "turnwire", "agent"], env=environment) as opened:
        yield opened


@pytest.fixture
async def talk(client: Client, tmp_path: Path) -> AsyncGenerator[Talk]:
    with anyio.fail_after(WAIT_S):
        session = await client.new_session(tmp_path)
    yield Talk(client, session, ())
    assert not (tmp_path / FOLDER).exists(), "a demonstration leaves nothing behind"


def test_each_demonstration_is_listed_and_each_in_the_list_is_there() -> None:
    assert list(ABOUT) == list(DEMONSTRATIONS)


async def test_the_list_names_them_all(talk: Talk) -> None:
    text = (await talk.turn("/demo")).text
    assert all(f"`/demo {name}`" in text for name in ABOUT)


async def test_a_name_that_is_none_is_told(talk: Talk) -> None:
    assert "no demonstration 'dance'" in await talk.failure("/demo dance")


async def test_tools_look_at_the_same_time(talk: Talk) -> None:
    told = await talk.turn("/demo tools")
    assert told.statuses()[:3] == [("1", "pending"), ("2", "pending"), ("3", "pending")]
    assert "3 of 3 calls worked" in told.text
    assert not talk.asked


@pytest.mark.parametrize(("answer", "said"), [("allow_once", "It ran."), ("reject_once", "It did not run.")])
async def test_a_permission_is_asked_for_and_obeyed(talk: Talk, answer: str, said: str) -> None:
    talk.answers = [answer]
    assert said in (await talk.turn("/demo permission")).text
    assert len(talk.asked) == 1


async def test_an_edit_shows_its_difference_before_it_is_allowed(talk: Talk) -> None:
    talk.answers = ["allow_once"]
    told = await talk.turn("/demo edit")
    assert "The new line is there." in told.text
    assert "the turn is shorter" in str(talk.asked[0])
    assert talk.asked[0]["subject"]["toolCall"]["status"] == "pending"


async def test_a_plan_gets_done(talk: Talk) -> None:
    told = await talk.turn("/demo plan")
    plans = [[entry["status"] for entry in each["plan"]["entries"]] for each in told.kinds("plan_update")]
    assert plans[0] == ["in_progress", "pending", "pending"]
    assert plans[-1] == ["completed"] * 3


async def test_a_thought_is_no_part_of_the_answer(talk: Talk) -> None:
    told = await talk.turn("/demo thinking")
    assert "wants to see a thought" in told.thoughts()
    assert "wants to see a thought" not in told.text


async def test_a_long_answer_takes_its_time_and_can_be_cancelled(talk: Talk) -> None:
    short = await talk.turn("/demo long 10ms")
    assert short.text.endswith("Done.")
    turn = talk.session.prompt("/demo long 120s")
    await talk.until(lambda update: "for 120 seconds" in str(update))
    await talk.session.cancel()
    with anyio.fail_after(WAIT_S):
        assert (await turn).stop_reason == "cancelled"
    assert "at most an hour" in await talk.failure("/demo long ago")


async def test_a_commands_output_comes_as_it_is_written(talk: Talk) -> None:
    talk.answers = ["allow_once"]
    told = await talk.turn("/demo command")
    assert "exit code 3" in told.text
    chunks = [base64.b64decode(each["data"]).decode() for each in told.kinds("terminal_output_chunk")]
    assert "".join(chunks) == "one\ntwo\nthree\nto stderr\n"
    assert len(chunks) >= 3


async def test_a_form_is_filled_in(talk: Talk) -> None:
    talk.forms = [{"action": "accept", "content": {"name": "Ada", "colour": "blue"}}]
    assert "colour: blue, name: Ada" in (await talk.turn("/demo elicit")).text
    talk.forms = [{"action": "decline"}]
    assert "did not fill it in" in (await talk.turn("/demo elicit")).text


async def test_usage_is_told_with_the_end_and_for_the_context(talk: Talk) -> None:
    told = await talk.turn("/demo usage")
    assert (told.usage["inputTokens"], told.usage["outputTokens"]) == (1200, 34)
    [context] = told.kinds("usage_update")
    assert context["used"] == 1234


@pytest.mark.parametrize(("name", "reason"), [("refusal", "refusal"), ("max-tokens", "max_tokens")])
async def test_each_way_to_stop_has_its_reason(talk: Talk, name: str, reason: str) -> None:
    assert (await talk.turn(f"/demo {name}")).stop_reason == reason


async def test_an_error_ends_the_turn_and_the_next_one_works(talk: Talk) -> None:
    assert "cannot be reached" in await talk.failure("/demo error")
    assert "built into turnwire" in (await talk.turn("hello")).text


async def test_a_picture_is_shown(talk: Talk) -> None:
    told = await talk.turn("/demo image")
    chunks = [each["content"] for each in told.kinds("agent_message_chunk")]
    [picture] = [each for each in chunks if each["type"] == "image"]
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")


async def test_words_from_the_background_belong_to_no_turn(talk: Talk) -> None:
    told = await talk.turn("/demo background")
    assert "belongs to no turn" in told.text
    await talk.until(lambda update: "from the background" in str(update))
    assert "from the background" in str(talk.background)


async def test_the_agent_begins_a_turn_by_itself(talk: Talk) -> None:
    await talk.turn("/demo agent-turn")
    await talk.until(lambda update: "nobody asked for" in str(update))


async def test_a_flood_arrives_whole_and_in_order(talk: Talk) -> None:
    told = await talk.turn("/demo flood 3000")
    assert told.text.split() == [str(number) for number in range(1, 3001)]
    assert "how many" in await talk.failure("/demo flood -1")


async def test_the_mode_is_changed_and_changed_back(talk: Talk) -> None:
    told = await talk.turn("/demo modes")
    assert [_mode(each) for each in told.kinds("config_option_update")] == ["accept_edits", "ask"]


def _mode(update: dict[str, Any]) -> str:
    [mode] = [each for each in update["configOptions"] if each["configId"] == "mode"]
    return mode["currentValue"]


async def test_markdown_is_said_as_it_is(talk: Talk) -> None:
    assert "| --- | ---: |" in (await talk.turn("/demo markdown")).text


async def test_what_changes_something_is_not_done_in_plan_mode(talk: Talk, tmp_path: Path) -> None:
    await talk.turn("/mode plan")
    for name in ("edit", "permission", "command"):
        assert "In plan mode" in (await talk.turn(f"/demo {name}")).text
    assert not talk.asked


async def test_a_folder_that_cannot_be_written_is_told(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    assert "cannot be made" in await talk.failure("/demo tools")
    (tmp_path / FOLDER).unlink()
