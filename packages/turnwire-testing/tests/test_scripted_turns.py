"""Beginnings and ends of the scripted agent's turns: order, cancel, failure, late output."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest

from turnwire_testing import AgentOptions, BareClient, Gates, Profile, scripted_agent
from turnwire_testing.scripted.client import prompt_params
from turnwire_testing.scripted.options import ORDER, PROFILES, Step
from turnwire_testing.scripted.shapes import member

pytestmark = pytest.mark.anyio

ALL = pytest.mark.parametrize("profile", PROFILES)
BOTH_V1 = pytest.mark.parametrize("profile", ["v1", "v1plus"])
WISHES: list[dict[str, Any]] = [
    {"_meta": {"turnwire": {"turnComplete": {}}}},
    {"_meta": {"turnwire": {"turnComplete": True}}},
    {"session": {"turnComplete": {}}},
]


@asynccontextmanager
async def session(
    profile: Profile,
    options: AgentOptions | None = None,
    *,
    gates: Gates | None = None,
    capabilities: dict[str, Any] | None = None,
) -> AsyncGenerator[tuple[BareClient, str]]:
    async with scripted_agent(profile, options, gates=gates) as link:
        client = BareClient(link)
        await client.initialize(2 if profile == "v2" else 1, capabilities)
        yield client, await client.new_session()


def words(client: BareClient, request_id: int | str | None = None) -> list[str]:
    """The received messages as short words: kinds of updates, states, and `answer`."""
    found: list[str] = []
    for frame in client.seen:
        update = member(frame, "params", "update")
        if update is not None:
            found.append(update.get("state") or update["sessionUpdate"])
        elif "method" not in frame and (request_id is None or frame.get("id") == request_id):
            found.append("answer")
    return found


async def say_and_reach(client: BareClient, session_id: str, gates: Gates, script: str) -> int | str:
    """Start a prompt that stops at the gate `g`."""
    request_id = await client.request("session/prompt", prompt_params(session_id, script))
    await gates.reached("g")
    return request_id


async def answer_to(client: BareClient, request_id: int | str) -> dict[str, Any]:
    return await client.until(lambda frame: "method" not in frame and frame.get("id") == request_id)


@pytest.mark.parametrize("capabilities", WISHES)
@pytest.mark.parametrize("request_id", [7, "7"])
async def test_turn_complete_is_the_last_update_and_before_the_answer(
    capabilities: dict[str, Any], request_id: int | str
) -> None:
    async with session("v1plus", capabilities=capabilities) as (client, session_id):
        params = prompt_params(session_id, "say 2 x\ntool t\nstop max_tokens")
        await client.request("session/prompt", params, request_id)
        answer = await answer_to(client, request_id)
        assert words(client, request_id)[-2:] == ["turn_complete", "answer"]
        assert words(client).count("turn_complete") == 1
        marker = client.updates()[-1]
        assert marker == {
            "sessionUpdate": "turn_complete",
            "promptRequestId": request_id,
            "stopReason": "max_tokens",
        }
        assert type(marker["promptRequestId"]) is type(request_id)
        assert answer["result"] == {"stopReason": "max_tokens"}


@pytest.mark.parametrize("wish", [{}, {"session": {"turnComplete": None}}])
async def test_turn_complete_is_sent_to_a_client_that_was_offered_it_and_says_nothing(wish: dict[str, Any]) -> None:
    async with session("v1plus", capabilities=wish) as (client, session_id):
        await client.prompt(session_id, "hello")
        assert words(client).count("turn_complete") == 1


async def test_turn_complete_is_neither_offered_nor_sent_to_a_client_that_refuses_it() -> None:
    async with session("v1plus", capabilities={"session": {"turnComplete": False}}) as (client, session_id):
        await client.prompt(session_id, "hello")
        assert "turn_complete" not in words(client)
        assert "turnComplete" not in str(client.seen[0]["result"])


async def test_plain_v1_has_no_turn_complete_even_if_asked() -> None:
    async with session("v1", capabilities=WISHES[0]) as (client, session_id):
        await client.prompt(session_id, "hello")
        assert "turn_complete" not in words(client)


async def test_a_failed_turn_is_complete_without_a_stop_reason_and_a_rejected_prompt_is_not() -> None:
    async with session("v1plus", capabilities=WISHES[0]) as (client, session_id):
        failed = await client.prompt(session_id, "error -32603 out of order\nsay 1 x")
        assert failed["error"] == {"code": -32603, "message": "out of order"}
        assert "stopReason" not in client.updates()[-1]
        seen = len(client.seen)
        rejected = await client.prompt(session_id, "reject -32602 not like this")
        assert rejected["error"] == {"code": -32602, "message": "not like this"}
        assert client.seen[seen:] == [rejected]


@BOTH_V1
async def test_a_second_prompt_is_refused_as_busy_in_v1(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates) as (client, session_id):
        first = await say_and_reach(client, session_id, gates, "gate g")
        busy = await client.call("session/prompt", prompt_params(session_id, "hello"))
        assert busy["error"]["code"] == -32600
        gates.open("g")
        assert (await answer_to(client, first))["result"] == {"stopReason": "end_turn"}


@pytest.mark.parametrize("order", list(permutations(ORDER)))
async def test_a_v2_agent_acknowledges_in_the_order_it_is_told(order: tuple[Step, ...]) -> None:
    async with session("v2", AgentOptions(order=order)) as (client, session_id):
        seen = len(client.seen)
        await client.prompt(session_id, "say 1 x")
        names = ["response" if word == "answer" else word for word in words(client)[seen:]]
        assert names == [*order, "agent_message_chunk", "idle"]


async def test_a_v2_prompt_is_answered_with_the_id_of_its_user_message() -> None:
    async with session("v2") as (client, session_id):
        answer = await client.call("session/prompt", prompt_params(session_id, "hello"))
        [message] = [each for each in client.updates() if each["sessionUpdate"] == "user_message"]
        assert answer["result"] == {"messageId": message["messageId"]}
        assert message["content"] == [{"type": "text", "text": "hello"}]


async def test_a_v2_agent_repeats_its_idle_as_told() -> None:
    async with session("v2", AgentOptions(repeat_idle=2)) as (client, session_id):
        await client.prompt(session_id, "stop refusal")
        await client.update("state_update")
        await client.update("state_update")
        assert [each for each in client.updates() if each.get("state") == "idle"] == [
            {"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal"}
        ] * 3


async def test_a_v2_turn_requires_action_while_it_asks() -> None:
    async with session("v2") as (client, session_id):
        client.answers["session/request_permission"] = {"outcome": {"outcome": "cancelled"}}
        await client.prompt(session_id, "ask t allow_once")
        states = [each["state"] for each in client.updates() if each["sessionUpdate"] == "state_update"]
        assert states == ["running", "requires_action", "running", "idle"]


async def test_a_failed_v2_turn_ends_idle_with_the_error_and_a_rejected_prompt_leaves_no_trace() -> None:
    async with session("v2") as (client, session_id):
        end = await client.prompt(session_id, "error -32603 out of order")
        assert end["params"]["update"] == {
            "sessionUpdate": "state_update",
            "state": "idle",
            "stopReason": "error",
            "error": {"code": -32603, "message": "out of order"},
        }
        seen = len(client.seen)
        rejected = await client.prompt(session_id, "reject -32602 no")
        assert client.seen[seen:] == [rejected]


async def test_a_second_v2_prompt_is_inserted_when_the_first_has_ended(gates: Gates) -> None:
    async with session("v2", gates=gates) as (client, session_id):
        await say_and_reach(client, session_id, gates, "gate g")
        second = await client.request("session/prompt", prompt_params(session_id, "say 1 second"))
        await client.call("_echo", {})
        assert words(client).count("user_message") == 1
        gates.open("g")
        await answer_to(client, second)
        await client.update("agent_message_chunk")
        after = words(client, second)
        assert after.index("idle") < after.index("answer")
        assert after.count("user_message") == 2


@ALL
async def test_a_cancel_ends_the_turn_as_cancelled_after_its_last_updates(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates, capabilities=WISHES[0]) as (client, session_id):
        script = "on-cancel say 1 'late '\non-cancel tool t\nstop refusal\nerror 1 no\ngate g"
        request_id = await say_and_reach(client, session_id, gates, script)
        await client.notify("session/cancel", {"sessionId": session_id})
        if profile == "v2":
            end = await client.until(lambda frame: member(frame, "params", "update", "state") == "idle")
            assert end["params"]["update"]["stopReason"] == "cancelled"
        else:
            assert (await answer_to(client, request_id))["result"] == {"stopReason": "cancelled"}
            if profile == "v1plus":
                assert client.updates()[-1]["stopReason"] == "cancelled"
        assert client.text() == "late "
        assert [each["status"] for each in client.updates() if "status" in each][-1] == "completed"


@ALL
async def test_a_cancel_withdraws_what_was_asked_and_ignores_the_late_answer(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        await client.request("session/prompt", prompt_params(session_id, "ask t allow_once"))
        asked = await client.until(lambda frame: frame.get("method") == "session/request_permission")
        await client.notify("session/cancel", {"sessionId": session_id})
        withdrawn = await client.until(lambda frame: frame.get("method") == "$/cancel_request")
        assert withdrawn["params"] == {"requestId": asked["id"]}
        await client.until(lambda frame: "cancelled" in str(frame))
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}})
        assert (await client.call("_echo", {"a": 1}))["result"] == {"a": 1}
        assert client.text() == ""


@ALL
async def test_an_ignored_cancel_leaves_the_turn_as_it_is(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates) as (client, session_id):
        await say_and_reach(client, session_id, gates, "ignore-cancel\ngate g\nsay 1 unmoved\nstop refusal")
        await client.notify("session/cancel", {"sessionId": session_id})
        await client.call("_echo", {})
        gates.open("g")
        await client.until(lambda frame: "refusal" in str(frame))
        assert client.text() == "unmoved"


async def test_a_cancel_drops_v2_prompts_that_were_not_inserted(gates: Gates) -> None:
    async with session("v2", gates=gates) as (client, session_id):
        await say_and_reach(client, session_id, gates, "gate g")
        held = await client.request("session/prompt", prompt_params(session_id, "never seen"))
        await client.notify("session/cancel", {"sessionId": session_id})
        assert (await answer_to(client, held))["error"]["code"] == -32800
        await client.until(lambda frame: member(frame, "params", "update", "state") == "idle")
        assert words(client).count("user_message") == 1


@BOTH_V1
@pytest.mark.parametrize(("named", "is_cancelled"), [(9, True), ("9", False), (8, False)])
async def test_cancelling_a_request_compares_ids_by_type(
    profile: Profile, named: int | str, is_cancelled: bool, gates: Gates
) -> None:
    async with session(profile, gates=gates) as (client, session_id):
        await client.request("session/prompt", prompt_params(session_id, "gate g"), 9)
        await gates.reached("g")
        await client.notify("$/cancel_request", {"requestId": named})
        await client.notify("session/cancel", {"sessionId": "unknown"})
        await client.call("_echo", {})
        gates.open("g")
        reason = (await client.until(lambda frame: "result" in frame and frame.get("id") == 9))["result"][
            "stopReason"
        ]
        assert reason == ("cancelled" if is_cancelled else "end_turn")


async def test_cancelling_a_held_v2_request_drops_only_that_one(gates: Gates) -> None:
    async with session("v2", gates=gates) as (client, session_id):
        first = await say_and_reach(client, session_id, gates, "gate g")
        held = await client.request("session/prompt", prompt_params(session_id, "held"))
        await client.notify("$/cancel_request", {"requestId": first})
        await client.notify("$/cancel_request", {"requestId": held})
        assert (await answer_to(client, held))["error"]["code"] == -32800
        gates.open("g")
        end = await client.until(lambda frame: member(frame, "params", "update", "state") == "idle")
        assert end["params"]["update"]["stopReason"] == "end_turn"


@ALL
async def test_after_comes_behind_the_end_and_idle_speech_behind_that(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates) as (client, session_id):
        script = "idle-speak gate g\nidle-speak say 1 idle\nafter say 1 after\nsay 1 during"
        await client.prompt(session_id, script)
        assert client.text().startswith("during")
        await gates.reached("g")
        end = "idle" if profile == "v2" else "answer"
        gates.open("g")
        while client.text() != "duringafteridle":
            await client.update("agent_message_chunk")
        assert words(client)[-3:] == [end, "agent_message_chunk", "agent_message_chunk"]


async def test_a_v2_agent_starts_a_turn_of_its_own() -> None:
    async with session("v2") as (client, session_id):
        await client.prompt(session_id, "agent-turn 2")
        await client.until(lambda frame: member(frame, "params", "update", "state") == "idle")
        assert words(client)[-4:] == ["running", "agent_message_chunk", "agent_message_chunk", "idle"]


@BOTH_V1
async def test_a_v1_agent_just_speaks_of_its_own_accord(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        await client.prompt(session_id, "agent-turn 2")
        await client.update("agent_message_chunk")
        await client.update("agent_message_chunk")
        assert words(client)[-3:] == ["answer", "agent_message_chunk", "agent_message_chunk"]


@ALL
async def test_prompts_of_different_sessions_run_at_the_same_time(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates) as (client, first):
        second = await client.new_session()
        await say_and_reach(client, first, gates, "gate g")
        await client.prompt(second, "say 1 second")
        assert client.text() == "second"
        gates.open("g")


@ALL
async def test_a_script_of_the_options_is_done_for_every_prompt(profile: Profile) -> None:
    async with session(profile, AgentOptions(script="say 1 scripted")) as (client, session_id):
        await client.prompt(session_id, "say 1 prompted")
        await client.prompt(session_id, "anything")
        assert client.text() == "scriptedscripted"


async def test_a_rejection_that_is_not_the_first_command_is_said_to_be_impossible() -> None:
    async with session("v1") as (client, session_id):
        await client.prompt(session_id, "say 1 x\nreject -1 no")
        assert "only possible as the first command" in client.text()
