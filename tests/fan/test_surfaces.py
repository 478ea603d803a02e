"""The daemon around `/acp`: responses to POSTs, REST's view, accepted spellings, effects of a loss."""

from __future__ import annotations

import json

import pytest
from tests.fan.harness import Harness
from tests.fan.matrix import SERVED, fan
from tests.fan.transports import HttpClient
from tests.server.reading import is_end, reading

pytestmark = pytest.mark.anyio


@fan(transports=["http"], agents=["v1"])
async def test_a_prompt_is_taken_with_202_and_answered_on_the_stream(harness: Harness) -> None:
    async with harness.client() as client:
        assert isinstance(client, HttpClient)
        session_id, gate = await client.new(), harness.gate()
        request_id = await client.prompt(session_id, f"gate {gate}", "say 1 x")
        # The turn cannot have ended, and the POST has: all of it was sent before the gate opened.
        assert (client.posts[-1].status, client.posts[-1].body) == (202, b"")
        gate.touch()
        end = await client.end(session_id, request_id)
        assert client.on(session_id, end.frame)
        assert client.on(session_id, await client.answer(request_id))


@fan(transports=SERVED)
async def test_both_surfaces_see_the_prompts_of_both(harness: Harness) -> None:
    async with harness.client() as client, harness.rest() as rest:
        session_id = await client.new()
        path = f"/session/{session_id}"
        async with reading(rest, f"{path}/events") as events:
            await client.run(session_id, f"say 1 {harness.word}", "stop max_tokens")
            seen = await events.until(is_end)
            assert seen[-1].data["stopReason"] == "max_tokens"
            assert harness.word in json.dumps([each.data for each in seen if each.type == "session_update"])
            begun = len(client.frames)
            blocks = [{"type": "text", "text": "say 1 by-rest\nstop refusal"}]
            posted = (await rest.post(f"{path}/prompt", json={"prompt": blocks})).json()
            await client.says(session_id, "by-rest")
            assert (await events.until(is_end))[-1].envelope["promptId"] == posted["promptId"]
            if harness.pair.version == 2:
                await client.update(session_id, "state_update", begun, state="idle", stopReason="refusal")
            elif harness.pair.dialect == "v1plus":
                mark = await client.update(session_id, "turn_complete", begun, stopReason="refusal")
                assert mark["promptRequestId"] == posted["promptId"], "it was no request of JSON-RPC"
                assert mark["_meta"]["turnwire"] == {"promptId": posted["promptId"], "own": False}
            shown = [each for each in client.updates(session_id, begun) if "user_message" in each["sessionUpdate"]]
            assert len(shown) == 1


@fan()
async def test_an_agent_may_say_stop_reason_and_we_never_do(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, f"say 1 {harness.word}", "# bend old-words", "stop max_tokens")
        assert end.stop_reason == "max_tokens"
        assert "stop_reason" not in json.dumps(
            [each for each in client.frames if "result" in each or "params" in each]
        )
        said = json.dumps([each.frame for each in harness.recorded() if each.sender == "agent"])
        assert "stop_reason" in said
        assert "max_tokens" in said


@fan(transports=SERVED, agents=["v1"])
async def test_a_lost_stream_or_socket_cancels_nothing_and_misses_nothing(harness: Harness) -> None:
    async with harness.client() as client, harness.client() as other:
        session_id, gate = await client.new(), harness.gate()
        request_id = await client.prompt(session_id, "say 1 begun", f"gate {gate}", "flood 30", "say 1 last")
        await client.says(session_id, "begun")
        await other.load(session_id)
        await other.ready(session_id)
        await client.lose()
        gate.touch()
        # It ends while no client receives it there.
        await other.says(session_id, "last")
        await client.come_back()
        end = await client.end(session_id, request_id)
        assert end.stop_reason == "end_turn"
        told = client.texts(session_id, 0, end.place)
        assert told == ["begun", *(str(number) for number in range(30)), "last"]
