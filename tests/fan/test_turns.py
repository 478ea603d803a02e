"""Our behaviour as any client's agent during a turn: tool calls, permission requests, stop reasons, cancelling."""

from __future__ import annotations

import pytest
from tests.fan.clients import Client, Json, kinds, tool_call_of
from tests.fan.harness import Harness
from tests.fan.matrix import OF_V1, fan

pytestmark = pytest.mark.anyio

FIVE = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")


def statuses(updates: list[Json], tool_call_id: str) -> list[str]:
    """Return the statuses of a tool call, in order."""
    return [each["status"] for each in updates if each.get("toolCallId") == tool_call_id and "status" in each]


async def is_open(client: Client, request_id: int | str) -> bool:
    """Return True if a request has no answer yet, after all our frames have arrived."""
    await client.echo()
    return not any("method" not in each and each["id"] == request_id for each in client.frames)


@fan(dialects=OF_V1)
async def test_a_prompt_is_answered_when_no_tool_call_is_pending(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "ask t1 allow_once,reject_once", "tool t2")
        question = await client.question(session_id)
        assert await is_open(client, request_id)
        await client.choose(question, "allow_once")
        end = await client.end(session_id, request_id)
        assert end.stop_reason == "end_turn"
        told = client.updates(session_id, 0, end.place)
        assert statuses(told, "t1")[-1] == statuses(told, "t2")[-1] == "completed"


@fan(dialects=OF_V1)
async def test_only_the_five_stop_reasons_are_said(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for reason in FIVE:
            end = await client.run(session_id, "say 1 x", f"stop {reason}")
            assert end.frame["result"]["stopReason"] == reason
        # One of a later ACP is an end; one of the agent's own is no success.
        assert (await client.run(session_id, "stop out_of_patience")).stop_reason == "end_turn"
        own = await client.run(session_id, "stop _bored")
        assert own.error is not None
        assert own.error["code"] == -32603


@fan()
async def test_a_tool_call_is_announced_then_runs_then_has_one_final_status(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, "tool t1 read Look", "tool t2 edit Change")
        told = client.updates(session_id, 0, end.place)
        assert statuses(told, "t1") == statuses(told, "t2") == ["pending", "in_progress", "completed"]
        calls = [each for each in told if each.get("toolCallId") == "t1"]
        assert calls[0]["sessionUpdate"] == ("tool_call_update" if harness.pair.version == 2 else "tool_call")
        assert (calls[0]["title"], calls[0]["kind"]) == ("Look", "read")


@fan()
async def test_a_tool_does_not_run_before_it_is_allowed(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        for name, option, last in (("yes", "allow_once", "completed"), ("no", "reject_once", "failed")):
            begun = len(client.frames)
            request_id = await client.prompt(session_id, f"ask {name} allow_once,reject_once")
            question = await client.until(
                lambda each, named=name: (
                    each.get("method") == "session/request_permission" and tool_call_of(each)["toolCallId"] == named
                ),
                begun,
            )
            await client.echo()
            assert set(statuses(client.updates(session_id, begun), name)) <= {"pending"}
            await client.choose(question, option)
            end = await client.end(session_id, request_id, begun)
            after = statuses(client.updates(session_id, begun, end.place), name)
            assert after[-1] == last
            assert ("in_progress" in after) == (option == "allow_once")


@fan()
async def test_a_cancel_stops_at_once_and_what_comes_until_the_end_is_told(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        # It has no normal end, so only the cancel can be the reason.
        lines = ("on-cancel say 2 late", "on-cancel tool t1", "tool-open t1", "say 1 begun", "never")
        request_id = await client.prompt(session_id, *lines)
        await client.says(session_id, "begun")
        await client.notify("session/cancel", sessionId=session_id)
        end = await client.end(session_id, request_id)
        assert (end.stop_reason, end.error) == ("cancelled", None)
        told = client.updates(session_id, 0, end.place)
        assert client.texts(session_id, 0, end.place) == ["begun", "late", "late"]
        assert statuses(told, "t1")[-1] == "completed"
        assert (await client.run(session_id, "say 1 again")).stop_reason == "end_turn"


@fan(dialects=["v1plus"])
async def test_an_agent_that_fails_while_it_is_cancelled_is_still_cancelled(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "error -32050 torn", "say 1 begun", "never")
        await client.says(session_id, "begun")
        await client.notify("session/cancel", sessionId=session_id)
        end = await client.end(session_id, request_id)
        assert (end.stop_reason, end.error) == ("cancelled", None)


@fan()
async def test_no_update_of_a_turn_comes_behind_its_end(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new()
        end = await client.run(session_id, "flood 40", "plan a b", "tool t1", "say 1 last", "after say 1 behind")
        assert client.texts(session_id, 0, end.place)[-1] == "last"
        # Updates after the end are delivered outside of any turn; the next turn is complete again.
        await client.says(session_id, "behind")
        begun = len(client.frames)
        again = await client.run(session_id, "say 1 x", "tool t2")
        told = client.updates(session_id, begun, again.place)
        assert [each for each in kinds(told) if each == "agent_message_chunk"] == ["agent_message_chunk"]
        await client.echo()
        rest = {each.get("toolCallId") for each in client.updates(session_id, again.place + 1)}
        assert rest <= {None}
