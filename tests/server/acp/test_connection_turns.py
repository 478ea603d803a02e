"""Turns over ACP: every dialect of clients with every kind of agent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.acp import DIALECTS, LIFECYCLE, V1, Client, Json, acp_daemon, connected, reason_of
from tests.support.driving import events_of

from turnwire.session.events import PromptAccepted
from turnwire_testing import Profile

pytestmark = pytest.mark.anyio

PROFILES: tuple[Profile, ...] = ("v1", "v1plus", "v2")


def script(*lines: str) -> str:
    return "\n".join(lines)


async def run(client: Client, session_id: str, text: str) -> Any:
    """Send a prompt and wait for the end, in any form; return the answer."""
    ends = client.ends()
    answer = await client.answer(await client.prompt(session_id, text))
    if client.answers_early and "result" in answer:
        await client.idle(ends + 1)
    return answer


def marks(client: Client) -> list[dict[str, Any]]:
    return [each for each in client.updates() if each["sessionUpdate"] == "turn_complete"]


async def test_a_running_prompt_can_be_taken_back() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, script("say 1 begun", "never"))
        await client.update("agent_message_chunk")
        await client.notify("$/cancel_request", requestId=request_id)
        assert (await client.answer(request_id))["result"]["stopReason"] == "cancelled"


async def test_an_id_that_is_open_cannot_be_used_again() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        block = [{"type": "text", "text": "never"}]
        await client.ask("session/prompt", request_id="p", sessionId=session_id, prompt=block)
        await client.ask("session/prompt", request_id="p", sessionId=session_id, prompt=block)
        assert (await client.answer("p"))["error"]["code"] == -32600


@pytest.mark.parametrize("answer", ["unoffered", "error", "cancelled"])
async def test_what_is_no_approval_does_not_approve(answer: str) -> None:
    async with acp_daemon("v2") as place, connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "ask t1 yes,no")
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        assert asked["params"]["toolCall"]["toolCallId"] == "t1"
        said: dict[str, Any] = {"result": {"outcome": {"outcome": "cancelled"}}}
        if answer == "unoffered":
            said = {"result": {"outcome": {"outcome": "selected", "optionId": "maybe"}}}
        elif answer == "error":
            said = {"error": {"code": -32603, "message": "broken"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], **said})
        await client.answer(request_id)
        assert "says cancelled" in client.kinds()


# -- the lifecycle draft on v1 -------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "wish",
    [{"session": {"lifecycle": {}}}, {"_meta": {"turnwire": {"lifecycle": True}}}, {"_meta": {"lifecycle": {}}}],
    ids=["session", "ours", "meta"],
)
async def test_a_client_of_the_lifecycle_is_answered_at_acceptance_and_told_the_rest(
    profile: Profile, wish: Json
) -> None:
    hello = {**LIFECYCLE, "clientCapabilities": wish}
    async with acp_daemon(profile) as place, connected(place, hello) as client:
        client.lifecycle = True
        session_id = await client.new()
        answer = await client.answer(await client.prompt(session_id, "ask t1 yes,no\nusage 3 9\nsay 1 x"))
        assert answer["result"] == {}
        question = await client.until(lambda each: each.get("method") == "session/request_permission")
        chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await client.send({"jsonrpc": "2.0", "id": question["id"], "result": chosen})
        await client.idle()
        told = [each for each in client.kinds() if each.startswith(("user_message", "state_change"))]
        assert told == [
            "user_message",
            "state_change running",
            "state_change requires_action",
            "state_change running",
            "state_change idle",
        ]
        [message] = [each for each in client.updates() if each["sessionUpdate"] == "user_message"]
        assert message["content"][0]["type"] == "text"
        assert message["messageId"]
        idle = client.updates()[-1]
        assert idle["stop_reason"] == "end_turn"
        assert not marks(client), "it has an end already"
        answers = [each for each in client.frames if "method" not in each and each["id"] == answer["id"]]
        assert answers == [answer], "and no answer at the end"


async def test_a_client_of_the_lifecycle_gets_the_marker_if_it_asks_for_it_too() -> None:
    wishes: Json = {"session": {"lifecycle": {}, "turnComplete": {}}}
    async with acp_daemon() as place, connected(place, {**LIFECYCLE, "clientCapabilities": wishes}) as client:
        client.lifecycle = True
        answer = await run(client, await client.new(), "say 1 x")
        mark = await client.update("turn_complete")
        assert mark["params"]["update"]["promptRequestId"] == answer["id"]
        assert client.kinds()[-2:] == ["state_change idle", "turn_complete"]


async def test_a_prompt_of_the_lifecycle_that_never_entered_the_conversation_is_refused() -> None:
    async with acp_daemon() as place, connected(place, LIFECYCLE) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 begun\nnever"))
        waiting = await client.prompt(session_id, "say 1 unsaid")
        await client.until(lambda _: "says begun" in client.kinds())
        await client.notify("$/cancel_request", requestId=waiting)
        assert (await client.answer(waiting))["error"]["code"] == -32800
        await client.notify("session/cancel", sessionId=session_id)
        await client.idle()
        assert reason_of(client.updates()[-1]) == "cancelled"
        assert client.kinds().count("user_message") == 1


async def test_who_loads_a_session_in_the_lifecycle_hears_messages_ends_and_where_it_stands() -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 1 one"))
        await first.prompt(session_id, "say 1 two\ngate g")
        await first.until(lambda _: "says two" in first.kinds())
        async with connected(place, LIFECYCLE) as client:
            await client.open("session/load", session_id)
            told = [each for each in client.kinds() if not each.startswith("says")]
            turn = ["user_message", "state_change running"]
            assert told == [*turn, "state_change idle", *turn, "state_change running"]
            place.source.gates.open("g")
            await client.idle(2)


async def test_a_prompts_meta_reaches_the_agent() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 x", _meta={"mine": 7}))
        accepted = [
            each for each in await events_of(place.daemon.log, session_id) if isinstance(each, PromptAccepted)
        ]
        assert b'"mine":7' in bytes(accepted[0].meta)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_operator_may_let_a_prompt_be_refused_while_a_turn_runs(dialect: str) -> None:
    async with acp_daemon(when_busy="reject") as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "say 1 begun\ngate g")
        await client.update("agent_message_chunk")
        refused = await client.answer(await client.prompt(session_id, "say 1 second"))
        assert refused["error"]["data"]["code"] == "busy"
        place.source.gates.open("g")
        assert "result" in await client.answer(first)
        events = await events_of(place.daemon.log, session_id)
        assert len([each for each in events if isinstance(each, PromptAccepted)]) == 1
