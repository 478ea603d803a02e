"""Agents written with the official SDKs, hosted by a node: turns, permissions, cancels, deaths, two sessions."""

from __future__ import annotations

import os
import signal
from typing import cast

import pytest
from tests.interop.node_session import Host, Talk, spoken, updates
from tests.interop.peers import Peer
from tests.support.driving import check_ends, of

from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


@pytest.mark.guarantee("G3")
async def test_a_turn_has_one_end_and_all_its_updates_are_inside(talk: Talk, peer: Peer) -> None:
    ended = await talk.turn("hello there")
    assert isinstance(ended, ev.TurnCompleted)
    assert (ended.stop_reason, ended.ending) == ("end_turn", "idle" if peer.version == 2 else "response")
    events = await talk.events()
    check_ends(events)
    assert spoken(events, ended.prompt_id) == ["You said: ", "hello there", "."]
    assert of(events, ev.AgentStarted)[0].protocol_version == peer.version


async def test_many_turns_one_after_the_other_keep_their_own_updates(talk: Talk) -> None:
    for number in range(10):
        assert await talk.said(f"number {number}") == f"You said: number {number}."
    check_ends(await talk.events())


@pytest.mark.parametrize(
    ("option", "status", "text"), [("yes", "completed", "edited"), ("no", "failed", "left alone")]
)
async def test_a_permission_is_asked_and_its_answer_decides(
    talk: Talk, option: str, status: str, text: str
) -> None:
    prompt_id = await talk.prompt("edit the file")
    asked = await talk.until_asked(prompt_id)
    assert asked.options == ("yes", "no")
    await talk.answer(asked, option)
    assert isinstance(await talk.end(prompt_id), ev.TurnCompleted)
    events = await talk.events()
    check_ends(events)
    assert spoken(events, prompt_id) == [text]
    assert f'"status":"{status}"'.encode() in bytes(updates(events, "tool_call_update")[-1].update)


async def test_a_cancelled_turn_ends_as_cancelled_and_the_session_goes_on(talk: Talk) -> None:
    prompt_id = await talk.prompt("wait for me")
    await talk.until_said("waiting", prompt_id)
    await talk.cancel(prompt_id)
    ended = await talk.end(prompt_id)
    assert isinstance(ended, ev.TurnCompleted)
    assert ended.stop_reason == "cancelled"
    assert await talk.said("hello again") == "You said: hello again."
    check_ends(await talk.events())


async def test_a_cancel_answers_the_open_permission_and_ends_the_turn(talk: Talk) -> None:
    prompt_id = await talk.prompt("edit the file")
    await talk.until_asked(prompt_id)
    await talk.cancel(prompt_id)
    ended = await talk.end(prompt_id)
    assert isinstance(ended, ev.TurnCompleted)
    assert ended.stop_reason == "cancelled"
    assert [each.end for each in of(await talk.events(), ev.PermissionResolved)] == ["cancelled"]
    assert await talk.said("hello again") == "You said: hello again."


async def test_two_sessions_of_one_process_do_not_hear_each_other(peer_host: Host) -> None:
    one, other = await peer_host.talk(), await peer_host.talk()
    waiting = await one.prompt("wait for me")
    await one.until_said("waiting", waiting)
    assert await other.said("hello") == "You said: hello."
    assert await other.said("pid") == await (await peer_host.talk()).said("pid")
    await one.cancel(waiting)
    assert cast("ev.TurnCompleted", await one.end(waiting)).stop_reason == "cancelled"
    assert await one.said("count") == "2 prompts"
    assert spoken(await one.events(), waiting) == ["waiting"]


@pytest.mark.guarantee("G3")
async def test_a_killed_agent_ends_its_turn_within_a_second_and_comes_back_with_its_memory(
    talk: Talk, peer: Peer
) -> None:
    pid = int(await talk.said("pid"))
    waiting = await talk.prompt("wait for me")
    await talk.until_said("waiting", waiting)
    os.kill(pid, signal.SIGKILL)
    ended = await talk.end(waiting, within_s=1.0)
    assert isinstance(ended, ev.TurnFailed)
    assert (ended.code, ended.signal, ended.exit_code) == ("agent_exited", "SIGKILL", None)
    assert await talk.said("count") == "3 prompts"
    events = await talk.events()
    check_ends(events)
    started = of(events, ev.AgentStarted)
    assert started[-1].how in peer.brought_back
    assert started[-1].agent_session_id == started[0].agent_session_id
    assert len(spoken(events, waiting)) == 1, "what the agent replays is not stored a second time"
    assert int(await talk.said("pid")) != pid


async def test_an_agent_that_exits_in_a_turn_is_reported_with_its_code_and_its_last_words(
    talk: Talk, peer: Peer
) -> None:
    ended = await talk.turn("exit 7")
    assert isinstance(ended, ev.TurnFailed)
    assert (ended.code, ended.exit_code, ended.signal) == ("agent_exited", 7, None)
    assert f"{peer.name} gives up" in (ended.stderr_tail or "")
    assert await talk.said("hello again") == "You said: hello again."
    check_ends(await talk.events())
