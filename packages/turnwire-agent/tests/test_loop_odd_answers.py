"""Answers that no provider would take back, tools that break: the turn and the session continue."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_kit.talk import anthropic_model, openai_model, talking
from turnwire_agent.loop import NOT_TAKEN
from turnwire_agent.tool_calls import BROKEN
from turnwire_agent.tools.files import Read
from turnwire_testing.models import CallTool, Fail, FakeAnthropic, FakeOpenAI, Reply, Say, Think

pytestmark = pytest.mark.anyio

LOOK = CallTool("list", {"path": "."})
ODD: dict[str, Reply] = {
    "twice the same id": [CallTool("list", {"path": "."}, id="c1"), CallTool("list", {"path": "src"}, id="c1")],
    "an id that another would get": [
        CallTool("list", id="c"),
        CallTool("list", id="c_2"),
        CallTool("list", id="c"),
    ],
    "a dot in the name": [Think("I read."), CallTool("functions.read", {"path": "a"})],
    "spaces in the name": [CallTool("read the file", {"path": "a"})],
    "a name without end": [CallTool("read" * 50, {"path": "a"})],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_odd_ids_and_names_of_tool_calls_do_not_spoil_the_session(
    provider: str, odd: Reply, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    replies: list[Reply] = [odd, [Say("I see.")], [Say("still here")]]
    kind = FakeOpenAI if provider == "openai" else FakeAnthropic
    async with kind(replies) as server:
        model = openai_model(server) if isinstance(server, FakeOpenAI) else anthropic_model(server)
        async with talking(tmp_path, model) as talk:
            assert (await talk.turn("look")).text == "I see."
            assert (await talk.turn("and now?")).text == "still here"
    assert [each.refused for each in server.exchanges] == [None] * 3


async def test_what_a_provider_does_not_take_in_the_middle_of_a_turn_is_left_out(tmp_path: Path) -> None:
    replies: list[Reply] = [[LOOK], [Say("I go on."), LOOK], [Fail(400)], [Say("hello")]]
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        assert "did not take the request" in await talk.failure("look around")
        assert (await talk.turn("and now?")).text == "hello"
    # It has the input of the second request and nothing later.
    kept = server.requests[3]["messages"]
    assert kept[: len(server.requests[1]["messages"])] == server.requests[1]["messages"]
    assert "I go on." not in json.dumps(kept)
    assert NOT_TAKEN in json.dumps(kept)


async def test_a_tool_that_breaks_is_told_to_the_model_and_to_the_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*given: Any) -> str:
        raise KeyError("a secret")

    monkeypatch.setattr(Read, "run", broken)
    replies: list[Reply] = [[CallTool("read", {"path": "a.txt"}), LOOK], [Say("I see.")]]
    (tmp_path / "a.txt").write_text("text")
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server)) as talk:
        with caplog.at_level(logging.ERROR, "turnwire_agent.tool_calls"):
            told = await talk.turn("read it")
    assert told.text == "I see."
    assert ("1", "failed") in told.statuses()
    assert ("2", "completed") in told.statuses()
    shown = json.dumps([told.updates, server.requests[1]])
    assert BROKEN in shown
    assert "a secret" not in shown
    assert "a secret" in caplog.text
