"""Turns over ACP: every dialect of clients with every kind of agent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.acp import DIALECTS, V1, acp_daemon, connected
from tests.support.driving import events_of

from turnwire.session.events import PromptAccepted

pytestmark = pytest.mark.anyio


def script(*lines: str) -> str:
    return "\n".join(lines)


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
