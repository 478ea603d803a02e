"""The connection itself: first frames, ids, order, and input that must not disturb it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fan.clients import Json, kinds
from tests.fan.harness import Harness
from tests.fan.matrix import AGENTS, fan
from tests.support.acp_client import update_of

pytestmark = pytest.mark.anyio

REFUSED: dict[str, Json] = {"http": {"status": 400}}
"""A transport's own rejection of requests before `initialize`; on the others it is a JSON-RPC error."""


@fan(agents=["v1"])
async def test_a_session_before_initialize_is_refused(harness: Harness) -> None:
    async with harness.client(knocks=True) as client:
        refused = REFUSED.get(harness.pair.transport)
        assert client.early == refused if refused else client.early["error"]["code"] == -32600
        # And after it, it is not.
        assert await client.new()


@fan()
async def test_updates_come_in_the_order_in_which_the_agent_made_them(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for _ in range(2):
            begun = len(client.frames)
            end = await client.run(session_id, "flood 60", "say 1 last")
            told = client.texts(session_id, begun, end.place)
            assert told == [*(str(number) for number in range(60)), "last"], "all of it is before the end"


@fan(agents=AGENTS)
async def test_the_answer_to_a_new_session_comes_before_all_that_is_said_there(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        answer = next(each for each in client.frames if "method" not in each)
        assert answer["result"]["sessionId"] == session_id
        updates = [place for place, each in enumerate(client.frames) if update_of(each, session_id)]
        assert min(updates) > client.place(answer)
        # Sent before the answer, after it and later: no prompt was sent, and none of it is lost.
        told = client.updates(session_id)
        commands = [
            [each["name"] for each in one["availableCommands"]] for one in told if "availableCommands" in one
        ]
        assert commands[-2:] == [["early"], ["inside"]]
        assert kinds(told)[-2:] == ["session_info_update", "usage_update"]


@pytest.mark.odd_frames("the agent makes up a kind of update")
@fan(agents=["v2"])
async def test_an_update_of_an_unknown_kind_ends_nothing(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        unknown = 'update {"sessionUpdate":"hologram","depth":3}'
        end = await client.run(session_id, unknown, "say 1 on")
        assert (end.stop_reason, client.texts(session_id)) == ("end_turn", ["on"])
        assert (await client.run(session_id, "say 1 again")).stop_reason == "end_turn"


@fan(agents=AGENTS)
async def test_drafts_are_offered_to_every_client_that_does_not_decline_them(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        await client.run(session_id, "say 1 x")
        gets_marker = harness.pair.dialect == "v1plus"
        assert kinds(client.updates(session_id)).count("turn_complete") == gets_marker
        if harness.pair.dialect == "v1":
            assert not {"turnComplete", "ready"} & client.agreed["agentCapabilities"]["sessionCapabilities"].keys()
            assert "capabilities" not in client.agreed
            return
        mirror = client.agreed["capabilities"]["session"]
        assert mirror["ready"] is True
        if harness.pair.version == 2:
            assert "turnComplete" not in mirror, "idle says it"
        else:
            offered = client.agreed["agentCapabilities"]["sessionCapabilities"]
            assert (offered["turnComplete"], offered["ready"], mirror["turnComplete"]) == ({}, {}, {})


@fan(agents=["v1"])
async def test_ids_come_back_with_their_value_and_their_type(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, ids = await client.new(), (2, "2", 2**53, -5, "")
        for request_id in ids:
            after = len(client.frames)
            await client.ask("session/list", request_id)
            assert "result" in await client.answer(request_id, after)
        # Two prompts whose ids differ by type only are two prompts.
        gate, after = harness.gate(), len(client.frames)
        first = await client.prompt(session_id, f"gate {gate}", "stop max_tokens", request_id=7)
        second = await client.prompt(session_id, "stop refusal", request_id="7")
        gate.touch()
        ends = [(await client.end(session_id, each, after)).stop_reason for each in (first, second)]
        assert ends == ["max_tokens", "refusal"]


@fan(agents=["v1"])
async def test_ready_is_never_answered_and_repeated_or_astray_it_does_nothing(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        await client.echo()
        before = len(client.frames)
        wrong: tuple[Any, ...] = (session_id, "s_none", 7)
        for name in ("session/ready", "_session/ready"):
            for each in wrong:
                await client.notify(name, sessionId=each)
            await client.notify(name)
        await client.echo()
        assert len(client.frames) == before + 1
        assert (await client.run(session_id, "say 1 x")).stop_reason == "end_turn"


@fan()
async def test_a_cancel_overtakes_the_prompt_that_runs_and_those_that_wait(harness: Harness) -> None:
    async with harness.client() as client:
        session_id, other = await client.new(), await client.new()
        request_id = await client.prompt(session_id, "flood 200", "say 1 begun", "never")
        beside = await client.prompt(other, "never")
        await client.says(session_id, "begun")
        await client.notify("session/cancel", sessionId=session_id)
        assert (await client.end(session_id, request_id)).stop_reason == "cancelled"
        await client.notify("session/cancel", sessionId=other)
        assert (await client.end(other, beside)).stop_reason == "cancelled"
