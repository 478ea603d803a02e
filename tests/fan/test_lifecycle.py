"""The v2 lifecycle: acceptance, states, turns started by the agent, queues, and clients that join later."""

from __future__ import annotations

import pytest
from tests.fan.agent import USAGE
from tests.fan.clients import Client, End, Json, kinds, states
from tests.fan.harness import Harness
from tests.fan.matrix import ASKING, SERVED, fan

pytestmark = pytest.mark.anyio


def user_messages(updates: list[Json]) -> list[Json]:
    return [each for each in updates if each["sessionUpdate"] == "user_message"]


@fan(dialects=["v2"])
async def test_a_prompt_is_answered_when_its_message_is_in_the_conversation(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, gate = await client.new(), harness.gate()
        begun = len(client.frames)
        lines = (f"gate {gate}", "say 1 x")
        request_id = await client.prompt(session_id, *lines)
        answer = await client.answer(request_id)
        assert answer["result"].keys() == {"messageId"}, "it was answered before the work began"
        gate.touch()
        end = await client.end(session_id, request_id)
        told = client.updates(session_id, begun, end.place + 1)
        assert kinds(told) == ["user_message", "state_update", "agent_message_chunk", "state_update"]
        assert told[0]["messageId"] == answer["result"]["messageId"]
        assert told[0]["content"] == [{"type": "text", "text": "\n".join(lines)}]
        assert states(told) == ["running", "idle"]


@fan(dialects=["v2"])
async def test_a_refused_prompt_is_an_error_and_no_message_and_an_accepted_one_is_never_an_error(
    harness: Harness,
) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        begun = len(client.frames)
        sound = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
        for prompt in ([], "x", [sound], [{"type": "hologram"}]):
            answer = await client.answer(await client.ask("session/prompt", sessionId=session_id, prompt=prompt))
            assert answer["error"]["code"] == -32602
        await client.echo()
        assert client.updates(session_id, begun) == []
        for lines in (("error -32050 late",), ("say 1 x", "error -32050 late")):
            request_id = await client.prompt(session_id, *lines)
            assert (await client.end(session_id, request_id)).stop_reason == "error"
            assert "result" in await client.answer(request_id)


@pytest.mark.odd_frames("the agent has a stop reason of its own")
@fan(dialects=["v2"])
async def test_idle_says_why_behind_everything_and_a_failure_with_its_details(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for reason in ("end_turn", "max_tokens", "refusal", "_bored"):
            end = await client.run(session_id, "flood 20", "say 1 last", f"stop {reason}")
            assert end.stop_reason == reason
            assert client.texts(session_id, 0, end.place)[-1] == "last"
        failed = await client.run(session_id, "say 1 x", "error -32050 no more fuel")
        assert failed.stop_reason == "error"
        assert failed.error is not None
        assert (failed.error["code"], failed.error["message"]) == (-32050, "no more fuel")
        await client.echo()
        assert states(client.updates(session_id)) == ["running", "idle"] * 5


@fan(dialects=["v2"])
async def test_a_turn_that_waits_for_its_user_says_so(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "ask t1 allow_once,reject_once")
        question = await client.question(session_id)
        await client.update(session_id, "state_update", state="requires_action")
        await client.choose(question, "allow_once")
        end = await client.end(session_id, request_id)
        told = states(client.updates(session_id, 0, end.place + 1))
        assert told == ["running", "requires_action", "running", "idle"]


@fan()
async def test_what_a_turn_has_used_is_told_with_its_end(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for lines, usage in ((("say 1 x", "# bend usage"), USAGE), (("say 1 x",), None)):
            end = await client.run(session_id, *lines)
            told = end.frame["result"] if harness.pair.version == 1 else end.frame["params"]["update"]
            assert told.get("usage") == usage


@fan(dialects=["v2"], agents=["v2"])
async def test_an_agent_begins_and_ends_a_turn_of_its_own(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, "say 1 asked", "agent-turn 2")

        def is_idle(frame: Json) -> bool:
            return frame.get("params", {}).get("update", {}).get("state") == "idle"

        await client.until(is_idle, end.place + 1)
        own = client.updates(session_id, end.place + 1)
        assert states(own) == ["running", "idle"]
        assert own[0]["state"] == "running"
        assert own[-1]["stopReason"] == "end_turn"
        assert client.texts(session_id, end.place) == ["of my own accord 1", "of my own accord 2"]
        assert user_messages(own) == []


@fan()
async def test_what_is_said_while_idle_is_told_and_begins_and_ends_nothing(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, "say 1 asked", "idle-speak usage 5 9", "idle-speak title Later")
        await client.update(session_id, "session_info_update", title="Later")
        await client.echo()
        assert kinds(client.updates(session_id, end.place + 1)) == ["usage_update", "session_info_update"]
        assert ends(client, session_id) == 1
        assert (await client.run(session_id, "say 1 x")).stop_reason == "end_turn"


def ends(client: Client, session_id: str, start: int = 0) -> int:
    """Return the number of turn ends that the client received, in its form."""
    if client.pair.version == 2:
        return states(client.updates(session_id, start)).count("idle")
    if client.pair.dialect == "v1plus":
        return kinds(client.updates(session_id, start)).count("turn_complete")
    return sum("stopReason" in each.get("result", {}) for each in client.frames[start:])


@fan()
async def test_a_second_prompt_needs_no_cancel_and_the_order_is_to_be_seen(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, gate = await client.new(), harness.gate()
        first = await client.prompt(session_id, "say 1 one", f"gate {gate}")
        second = await client.prompt(session_id, "say 1 two")
        await client.says(session_id, "one")
        await client.echo()
        assert not any("method" not in each and each["id"] == second for each in client.frames)
        gate.touch()
        found: list[End] = [await client.end(session_id, each) for each in (first, second)]
        assert [each.stop_reason for each in found] == ["end_turn", "end_turn"]
        assert found[0].place < found[1].place
        assert client.texts(session_id) == ["one", "two"]
        if harness.pair.version == 2:
            ids = [each["messageId"] for each in user_messages(client.updates(session_id))]
            assert ids == [(await client.answer(each))["result"]["messageId"] for each in (first, second)]


@pytest.mark.parametrize("how", ["$/cancel_request", "session/cancel"])
@fan(dialects=["v2"])
async def test_a_prompt_that_waits_can_be_taken_back_until_it_is_accepted(harness: Harness, how: str) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        running = await client.prompt(session_id, "say 1 begun", "never")
        waiting = await client.prompt(session_id, "say 1 unsaid")
        await client.says(session_id, "begun")
        # An accepted prompt cannot be withdrawn any more.
        await client.notify("$/cancel_request", requestId=running)
        named = {"requestId": waiting} if how == "$/cancel_request" else {"sessionId": session_id}
        await client.notify(how, **named)
        assert (await client.answer(waiting))["error"]["code"] == -32800
        if how == "$/cancel_request":
            await client.echo()
            assert ends(client, session_id) == 0
            await client.notify("session/cancel", sessionId=session_id)
        assert (await client.end(session_id, running)).stop_reason == "cancelled"
        assert len(user_messages(client.updates(session_id))) == 1


@fan(dialects=["v2"], transports=SERVED)
async def test_a_prompt_that_waits_can_be_edited_until_it_is_accepted(harness: Harness) -> None:
    async with harness.client() as client, harness.rest() as rest:
        session_id, gate = await client.new(), harness.gate()
        await client.prompt(session_id, "say 1 begun", f"gate {gate}")
        # A v2 agent would have it at once, and be the one to edit it.
        waiting = await client.prompt(session_id, "say 1 old", meta={"turnwire": {"whenBusy": "queue"}})
        await client.says(session_id, "begun")
        path = f"/session/{session_id}/queue"
        [entry] = (await rest.get(path)).json()["prompts"]
        edited = {"prompt": [{"type": "text", "text": "say 1 edited"}]}
        where = f"{path}/{entry['promptId']}"
        assert (await rest.patch(where, json=edited)).status_code == 200
        gate.touch()
        await client.end(session_id, waiting)
        assert client.texts(session_id) == ["begun", "edited"]
        assert (await rest.patch(where, json=edited)).is_client_error
        assert (await rest.delete(where)).is_client_error


@fan()
async def test_who_comes_while_a_turn_runs_learns_of_it_and_of_its_end(harness: Harness) -> None:
    async with harness.client() as first, harness.another(first) as client:
        session_id, gate = await first.new(), harness.gate()
        request_id = await first.prompt(session_id, "say 1 begun", f"gate {gate}", "say 1 more")
        await first.says(session_id, "begun")
        begun = len(client.frames)
        answer = await client.load(session_id)
        before = client.updates(session_id, begun, client.place(answer))
        assert client.texts(session_id, begun, client.place(answer)) == ["begun"]
        if harness.pair.version == 2:
            assert before[-1] == {"sessionUpdate": "state_update", "state": "running"}
        await client.ready(session_id)
        gate.touch()
        assert (await first.end(session_id, request_id)).stop_reason == "end_turn"
        if harness.pair.dialect in ASKING:
            await client.until(lambda _: ends(client, session_id) == 1)
        else:
            # A client that lacks the drafts has no word for the end of another's turn.
            await client.says(session_id, "more")
        assert client.texts(session_id, begun) == ["begun", "more"]


@fan()
async def test_the_history_has_messages_and_ends_and_none_of_it_is_a_new_end(harness: Harness) -> None:
    async with harness.client() as first, harness.another(first) as client:
        session_id = await first.new()
        for text in ("one", "two"):
            await first.run(session_id, f"say 1 {text}")
        begun = len(client.frames)
        answer = await client.load(session_id)
        history = client.updates(session_id, begun, client.place(answer))
        assert client.texts(session_id, begun) == ["one", "two"]
        users = [each for each in kinds(history) if each.startswith("user_message")]
        assert len(users) == 2
        if harness.pair.version == 2:
            assert states(history) == ["running", "idle", "running", "idle", "idle"], "and where it stands now"
        else:
            assert ends(client, session_id, begun) == (2 if harness.pair.dialect == "v1plus" else 0)
        # A prompt that is sent now ends with its own end, not with one of these.
        await client.ready(session_id)
        gate = harness.gate()
        request_id = await client.prompt(session_id, "say 1 three", f"gate {gate}")
        await client.says(session_id, "three")
        told = len(client.frames)
        gate.touch()
        assert (await client.end(session_id, request_id)).place >= told
