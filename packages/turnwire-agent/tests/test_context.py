"""A summary takes the place of a conversation only if there is a whole one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_kit.talk import openai_model, talking
from test_agent import Small
from turnwire_testing.models import FakeOpenAI, Reply, Say, Spend, Stop, Think

pytestmark = pytest.mark.anyio

NONE: dict[str, Reply] = {
    "half of one": [Say("The user is called"), Stop("length"), Spend(40, 4)],
    "a refusal": [Say("No, I will not."), Stop("refusal"), Spend(40, 4)],
    "a refusal by the model": [Stop("refusal", "I cannot do that."), Spend(40, 4)],
    "only spaces": [Say(" \n\t "), Spend(40, 4)],
    "only thoughts": [Think("Hm."), Spend(40, 4)],
}


@pytest.mark.parametrize("given", NONE.values(), ids=NONE)
async def test_what_is_no_whole_summary_leaves_the_conversation_as_it_was(given: Reply, tmp_path: Path) -> None:
    replies: list[Reply] = [[Say("noted"), Spend(100, 10)], given, [Say("Ada"), Spend(100, 10)]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        await talk.turn("my name is Ada")
        told = await talk.turn("/compact")
        await talk.turn("what is my name?")
        used = (await talk.turn("/usage")).text
    assert "kept as it is" in told.text
    assert "now it has" not in told.text
    kept = server.requests[2]["messages"]
    assert [each["role"] for each in kept] == ["system", "user", "assistant", "user"]
    assert "my name is Ada" in json.dumps(kept)
    assert (told.usage["inputTokens"], told.usage["outputTokens"]) == (40, 4)
    assert "input: 240 tokens" in used
    assert "output: 24 tokens" in used


async def test_without_a_whole_summary_a_full_conversation_goes_on_and_the_user_is_told(tmp_path: Path) -> None:
    replies: list[Reply] = [
        [Say("noted"), Spend(800, 90)],
        [Say("The user is"), Stop("length"), Spend(700, 1)],
        [Say("Ada"), Spend(860, 1)],
        [Say("The user is called Ada."), Spend(700, 9)],
        [Say("Ada again"), Spend(50, 1)],
    ]
    async with FakeOpenAI(replies) as server, talking(tmp_path, Small(openai_model(server))) as talk:
        await talk.turn("my name is Ada")
        told = await talk.turn("what is my name?")
        again = await talk.turn("and again?")
    assert told.text == "Ada"
    assert "kept as it is" in told.thoughts()
    assert "my name is Ada" in json.dumps(server.requests[2]["messages"])
    assert told.usage["inputTokens"] == 700 + 860
    [full] = told.kinds("usage_update")
    assert full["used"] == 861, "how long the summary's request was says nothing of the conversation"
    assert "kept as it is" not in again.thoughts()
    assert "my name is Ada" not in json.dumps(server.requests[4]["messages"])
