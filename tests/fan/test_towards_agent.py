"""Our behaviour as the agent's client, for any client of ours: checked by the frames that the agent got."""

from __future__ import annotations

import json

import pytest
from tests.fan.agent import BETWEEN
from tests.fan.clients import Json, kinds
from tests.fan.harness import Harness, Recorded, tool_calls
from tests.fan.matrix import AGENTS, SERVED, fan
from tests.fan.programs import TOKEN

from turnwire.client import connect

pytestmark = pytest.mark.anyio


OWN = ["available_commands_update", "available_commands_update", "session_info_update", "usage_update"]
"""Unsolicited updates of an agent when a session is new."""


def methods(frames: list[Recorded]) -> list[str]:
    """Return the requests and notifications to the agent, in order."""
    return [each.method for each in frames if each.method is not None]


@fan(agents=AGENTS)
async def test_ready_is_sent_once_to_an_agent_that_offers_it_and_no_update_is_dropped(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        told = [each for each in kinds(client.updates(session_id)) if each in OWN]
        await client.run(session_id, f"say 1 {harness.word}")
        await client.run(session_id, "say 1 again")
        frames = harness.heard()
        heard = methods(frames)
        assert heard.count("session/ready") == (harness.pair.agent == "v1plus")
        assert heard[-2:] == ["session/prompt", "session/prompt"]
        said = [each.frame["params"]["update"] for each in frames if each.sender == "agent"]
        assert kinds(said)[:4] == OWN
        assert told[-4:] == OWN
        if harness.pair.agent == "v1plus":
            assert frames[0].method == "session/ready", "the agent held them back until then"


@fan(dialects=["v1plus"], agents=["v1plus"])
async def test_ready_is_said_once_to_the_agent_that_comes_after_one_that_died(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        await client.run(session_id, f"say 1 {harness.word}")
        before = len(harness.recorded())
        await client.run(session_id, "exit 3")
        await client.run(session_id, "say 1 again")
        after = methods(harness.recorded()[before:])
        assert after == ["session/prompt", "initialize", "session/resume", "session/ready", "session/prompt"]


@fan(transports=SERVED)
async def test_a_cancel_marks_open_tool_calls_and_what_the_agent_says_of_them_then_still_counts(
    harness: Harness,
) -> None:
    async with harness.client() as client, connect(harness.host().url, token=TOKEN) as sdk:
        session_id, gate = await client.new(), harness.gate()
        held = ("on-cancel say 1 stopping", f"on-cancel gate {gate}", "on-cancel tool t1")
        request_id = await client.prompt(session_id, *held, "tool-open t1", "tool-open t2", "say 1 begun", "never")
        await client.says(session_id, "begun")
        await client.notify("session/cancel", sessionId=session_id)
        await client.says(session_id, "stopping")
        session = await sdk.attach(session_id)
        assert await tool_calls(session) == {"t1": ("pending", True), "t2": ("pending", True)}
        gate.touch()
        end = await client.end(session_id, request_id)
        assert end.stop_reason == "cancelled"
        assert (await tool_calls(session))["t1"][0] == "completed"
        told = client.updates(session_id, 0, end.place)
        assert [each["status"] for each in told if each.get("toolCallId") == "t1"][-1] == "completed"


@fan(agents=AGENTS)
async def test_a_cancel_answers_every_open_question_of_the_agent(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        lines = (f"say 1 {harness.word}", "ask t1 allow_once,reject_once", "never")
        request_id = await client.prompt(session_id, *lines)
        question = await client.question(session_id)
        await client.notify("session/cancel", sessionId=session_id)
        assert (await client.end(session_id, request_id)).stop_reason == "cancelled"
        withdrawn = await client.until(lambda each: each.get("method") == "$/cancel_request")
        assert withdrawn["params"]["requestId"] == question["id"]
        # An answer that comes too late changes nothing.
        await client.choose(question, "allow_once")
        await client.run(session_id, "say 1 x")
        answers = [each.frame for each in harness.heard() if each.sender == "client" and "method" not in each.frame]
        assert [each["result"]["outcome"] for each in answers] == [{"outcome": "cancelled"}]


@fan()
async def test_content_that_the_agent_does_not_take_is_not_sent_to_it(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        word = {"type": "text", "text": f"say 1 {harness.word}"}
        sound = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
        answer = await client.answer(await client.ask("session/prompt", sessionId=session_id, prompt=[word, sound]))
        assert answer["error"]["code"] == -32602
        assert "audio" in answer["error"]["message"]
        image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
        request_id = await client.ask("session/prompt", sessionId=session_id, prompt=[word, image])
        assert (await client.end(session_id, request_id)).stop_reason == "end_turn"
        prompts = [each.frame["params"]["prompt"] for each in harness.heard() if each.method == "session/prompt"]
        assert prompts == [[word, image]]


@fan(agents=["v1plus"])
async def test_a_turn_ends_with_the_marker_of_its_own_request(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        foreign: Json = {"sessionUpdate": "turn_complete", "promptRequestId": "of-another", "stopReason": "refusal"}
        end = await client.run(session_id, "say 1 one", f"update {json.dumps(foreign)}", "say 1 two")
        assert (end.stop_reason, client.texts(session_id, 0, end.place)) == ("end_turn", ["one", "two"])
        # The answer comes before the last chunk, and the marker after it.
        begun = len(client.frames)
        late = await client.run(session_id, "say 1 three", "# bend marker-last", "stop max_tokens")
        assert client.texts(session_id, begun, late.place) == ["three", BETWEEN]
        assert late.stop_reason == "max_tokens"


@fan()
async def test_an_agent_without_drafts_neither_sends_markers_nor_receives_message_ids(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, f"say 1 {harness.word}", "stop max_tokens")
        assert end.stop_reason == "max_tokens"
        frames = harness.heard()
        assert "turn_complete" not in json.dumps([each.frame for each in frames if each.sender == "agent"])
        assert "messageId" not in json.dumps([each.frame for each in frames if each.sender == "client"])


@fan(agents=["v2"])
async def test_neither_the_answer_nor_a_repeated_idle_ends_a_turn(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, gate = await client.new(), harness.gate()
        # The agent sends each idle three times.
        await client.run(session_id, f"say 1 {harness.word}")
        request_id = await client.prompt(session_id, "say 1 begun", f"gate {gate}", "say 1 more", "stop refusal")
        await client.says(session_id, "begun")
        await client.echo()
        begun = len(client.frames)
        gate.touch()
        end = await client.end(session_id, request_id)
        assert (end.stop_reason, client.texts(session_id, begun, end.place)) == ("refusal", ["more"])
        assert end.place >= begun
        idles = [each for each in harness.heard() if "idle" in json.dumps(each.frame)]
        assert len(idles) >= 4


@fan()
async def test_a_prompt_of_ones_own_is_shown_once(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "say 1 x")
        await client.end(session_id, request_id)
        await client.echo()
        shown = [each for each in client.updates(session_id) if each["sessionUpdate"].startswith("user_message")]
        if harness.pair.version == 2:
            answer = await client.answer(request_id)
            assert [each["messageId"] for each in shown] == [answer["result"]["messageId"]]
        else:
            assert shown == [], "a v1 client shows what it sends by itself"


@fan(transports=SERVED)
async def test_a_prompt_of_another_client_is_shown(harness: Harness) -> None:
    async with harness.client() as first, harness.client() as second:
        session_id = await first.new()
        await second.load(session_id)
        await second.ready(session_id)
        lines = f"say 1 {harness.word}"
        await first.run(session_id, lines)
        await second.says(session_id, harness.word)
        shown = [each for each in second.updates(session_id) if each["sessionUpdate"].startswith("user_message")]
        assert len(shown) == 1
        content = shown[0]["content"]
        block = content[0] if harness.pair.version == 2 else content
        assert block == {"type": "text", "text": lines}
