"""The marker of a turn's end: once and in order for clients that are offered it, never for others."""

from __future__ import annotations

import pytest
from tests.fan.clients import Client, Json, kinds
from tests.fan.harness import Harness
from tests.fan.matrix import AGENTS, fan

pytestmark = pytest.mark.anyio


def marks(client: Client, session_id: str, start: int = 0) -> list[Json]:
    return [each for each in client.updates(session_id, start) if each["sessionUpdate"] == "turn_complete"]


@fan(dialects=["v1plus"], agents=AGENTS)
async def test_each_turn_is_marked_once_behind_all_of_it_and_before_the_answer(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for request_id, reason in ((11, "end_turn"), ("11", "max_tokens"), (f"p {harness.word}", "refusal")):
            begun = len(client.frames)
            await client.prompt(
                session_id, "think hm", "flood 9", "tool t1", f"stop {reason}", request_id=request_id
            )
            end = await client.end(session_id, request_id, begun)
            [mark] = marks(client, session_id, begun)
            assert mark == {
                "sessionUpdate": "turn_complete",
                "promptRequestId": request_id,
                "stopReason": end.stop_reason,
                "_meta": {"turnwire": {"promptId": mark["_meta"]["turnwire"]["promptId"], "own": True}},
            }
            assert (type(mark["promptRequestId"]), end.stop_reason) == (type(request_id), reason)
            assert kinds(client.updates(session_id, begun, end.place))[-1] == "turn_complete"
        await client.echo()
        assert len(marks(client, session_id)) == 3


@fan(dialects=["v1plus"], agents=AGENTS)
async def test_prompts_that_wait_are_marked_each_with_its_own_request(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, gate = await client.new(), harness.gate()
        first = await client.prompt(session_id, f"gate {gate}", "say 1 one")
        second = await client.prompt(session_id, "say 1 two")
        gate.touch()
        await client.end(session_id, second)
        assert [each["promptRequestId"] for each in marks(client, session_id)] == [first, second]


@fan(dialects=["v1plus"], agents=AGENTS)
async def test_a_cancelled_turn_is_marked_as_cancelled(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "on-cancel say 1 late", "say 1 begun", "never")
        await client.says(session_id, "begun")
        await client.notify("session/cancel", sessionId=session_id)
        end = await client.end(session_id, request_id)
        [mark] = marks(client, session_id)
        assert (mark["stopReason"], mark["promptRequestId"], end.stop_reason) == (
            "cancelled",
            request_id,
            "cancelled",
        )
        assert kinds(client.updates(session_id, 0, end.place))[-1] == "turn_complete"


@fan(dialects=["v1plus"], agents=AGENTS)
async def test_a_turn_that_fails_is_marked_with_its_error_and_a_rejected_prompt_is_not(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "say 1 x", "error -32050 no more fuel")
        end = await client.end(session_id, request_id)
        assert end.error is not None
        assert end.error["code"] == -32050
        [mark] = marks(client, session_id)
        assert mark["promptRequestId"] == request_id
        assert (mark["stopReason"], mark["error"]["code"]) == ("refusal", -32050)
        assert client.updates(session_id, 0, end.place)[-1] is mark
        # Malformed, empty, of a kind that the agent does not accept, and to a session that does not exist.
        sound = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
        text = {"type": "text", "text": "x"}
        for named, prompt in ((session_id, "x"), (session_id, []), (session_id, [sound]), ("s_none", [text])):
            answer = await client.answer(await client.ask("session/prompt", sessionId=named, prompt=prompt))
            assert "error" in answer
        await client.echo()
        assert len(marks(client, session_id)) == 1


@fan(dialects=["v1", "v2"], agents=AGENTS)
async def test_who_lacks_it_is_neither_offered_the_marker_nor_sent_it(harness: Harness) -> None:
    async with harness.client() as client:
        assert "turnComplete" not in str(client.agreed)
        session_id = await client.new()
        end = await client.run(session_id, "say 1 x", "stop max_tokens")
        assert not marks(client, session_id)
        if harness.pair.version == 1:
            named = end.frame["result"]["_meta"]["turnwire"]["turnComplete"]
            assert (named["promptRequestId"], named["stopReason"]) == (end.frame["id"], "max_tokens")
            assert client.texts(session_id, 0, end.place)[-1] == "x"
            assert kinds(client.updates(session_id, 0, end.place))[-1] == "agent_message_chunk"
