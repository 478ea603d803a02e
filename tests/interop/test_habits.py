"""Behaviour of released agents that no specification foresees, played by small agents over real pipes."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import cast

import pytest
from tests.interop.node_session import host, spoken, updates
from tests.interop.peers import raw_agent, scripted
from tests.support.driving import Terminal, check_ends, of

from turnwire.projections.view.transcript import ToolCall
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

ORDERS = [",".join(order) for order in permutations(("user_message", "response", "running"))]


@pytest.mark.guarantee("G4", "G3")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_metadata_right_behind_the_end_is_late_and_belongs_to_no_turn(profile: str) -> None:
    async with host(scripted("--profile", profile)) as opened:
        talk = await opened.talk()
        ended = await talk.turn("say 1 done\nafter title 'A title'\nafter usage 10 200000")
        await talk.until(lambda event: isinstance(event, ev.SessionUpdated) and event.kind == "usage_update")
        events = await talk.events()
    check_ends(events)
    late = [*updates(events, "session_info_update"), *updates(events, "usage_update")]
    assert [(each.prompt_id, each.after) for each in late] == [(None, ended.prompt_id)] * 2
    assert spoken(events, ended.prompt_id) == ["done"]


@pytest.mark.guarantee("G4")
async def test_an_update_long_after_the_end_is_late_and_nobody_waits_for_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with host(scripted()) as opened:
        talk = await opened.talk()
        ended = await talk.turn(f"say 1 done\nidle-speak gate {gate}\nidle-speak title late")
        assert not updates(await talk.events(), "session_info_update"), "the end came without it"
        gate.touch()
        came = await talk.until(
            lambda event: isinstance(event, ev.SessionUpdated) and event.kind == "session_info_update"
        )
        assert cast("ev.SessionUpdated", came).after == ended.prompt_id
        assert await talk.said("hello") == "hello"
        check_ends(await talk.events())


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_what_is_said_before_the_answer_to_session_new_is_kept_behind_it(profile: str) -> None:
    early = ("commands plan,review", "usage 0 200000", 'notify _auth/status_update {"authStatus": {}}')
    arguments = [word for command in early for word in ("--before", command)]
    async with host(scripted("--profile", profile, *arguments)) as opened:
        talk = await opened.talk()
        assert await talk.said("hello") == "hello"
        events = await talk.events()
    kinds = [each.kind for each in of(events, ev.SessionUpdated)]
    assert kinds[:2] == ["available_commands_update", "usage_update"]
    started = events.index(of(events, ev.AgentStarted)[0])
    assert started < events.index(of(events, ev.SessionUpdated)[0])
    check_ends(events)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("order", ORDERS)
async def test_a_v2_prompt_may_be_acknowledged_in_any_order(order: str) -> None:
    async with host(scripted("--profile", "v2", "--order", order)) as opened:
        talk = await opened.talk()
        for text in ("first", "second"):
            ended = await talk.turn(text)
            assert isinstance(ended, ev.TurnCompleted)
            assert (ended.stop_reason, ended.ending) == ("end_turn", "idle")
            assert "".join(spoken(await talk.events(), ended.prompt_id)) == text
        events = await talk.events()
    check_ends(events)
    echoes = updates(events, "user_message")
    assert [each.echo for each in echoes] == [True, True], "the agent's copies of the prompts are known as such"


async def test_a_repeated_idle_is_not_a_second_end() -> None:
    async with host(scripted("--profile", "v2", "--repeat-idle", "3")) as opened:
        talk = await opened.talk()
        for number in range(5):
            assert await talk.said(f"number {number}") == f"number {number}"
        events = await talk.events()
    check_ends(events)
    assert len([each for each in events if isinstance(each, Terminal)]) == 5


async def test_a_tool_call_left_pending_does_not_hold_the_end_and_is_marked_as_left_open() -> None:
    async with host(scripted()) as opened:
        talk = await opened.talk()
        ended = await talk.turn("tool-open search\ntool read\nsay 1 done")
        assert isinstance(ended, ev.TurnCompleted)
        view = await opened.node.view(talk.session_id)
        assert await talk.said("hello") == "hello"
        check_ends(await talk.events())
    calls = {each.tool_call_id: each for each in view.items if isinstance(each, ToolCall)}
    assert (calls["search"].status, calls["search"].open_at_end) == ("pending", True)
    assert (calls["read"].status, calls["read"].open_at_end) == ("completed", False)


async def test_an_agent_that_says_2_in_the_shape_of_v1_is_spoken_to_in_v1() -> None:
    async with host(raw_agent("says_two")) as opened:
        talk = await opened.talk()
        assert await talk.said("hello") == "one two"
        events = await talk.events()
    assert of(events, ev.AgentStarted)[0].protocol_version == 1
    assert [each.ending for each in of(events, ev.TurnCompleted)] == ["response"]
