"""Ends of turns, in every dialect: once, after all their updates, and never by themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias, cast

import anyio
import pytest
from tests.support.driving import World, check_ends, events_of, of, prompt, texts

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session.inputs import WhenBusy
from turnwire.session.permissions import PermissionAnswer
from turnwire_testing import AgentOptions, Profile
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

OpenWorld: TypeAlias = Callable[..., AbstractAsyncContextManager[World]]

ENDING = {"v1": ev.Ending.RESPONSE, "v1plus": ev.Ending.MARKER, "v2": ev.Ending.IDLE}


@pytest.mark.guarantee("G3")
async def test_a_turn_ends_once_after_all_that_belongs_to_it(world: OpenWorld, profile: Profile) -> None:
    async with world() as w:
        await w.prompt("say 3 hello\ntool t1\nplan a; b\nthink hm\nstop max_tokens")
        end = await w.end()
        await quiet()
        events = await w.events()
    assert isinstance(end, ev.TurnCompleted)
    assert (end.stop_reason, end.ending) == ("max_tokens", ENDING[profile])
    check_ends(events)
    assert texts(events, "p1") == ["hello"] * 3
    assert not [each for each in of(events, ev.SessionUpdated) if each.after is not None]
    assert type(events[-1]) is ev.TurnCompleted


@pytest.mark.guarantee("G3")
async def test_an_error_of_the_agent_ends_the_turn_with_that_error(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 1 before\nerror -32001 overloaded")
        end = await w.end()
        assert isinstance(end, ev.TurnFailed)
        assert end.code == "agent_error"
        assert b"overloaded" in bytes(cast("bytes", end.agent_error))
        await w.prompt("hello", "p2")
        await w.end("p2")
        await quiet()
        events = await w.events()
    check_ends(events)
    assert texts(events, "p1") == ["before"]


async def test_a_rejected_prompt_ends_and_the_session_goes_on(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("reject -32602 no images")
        assert isinstance(await w.end(), ev.TurnFailed)
        await w.prompt("hello", "p2")
        assert isinstance(await w.end("p2"), ev.TurnCompleted)
        check_ends(await w.events())


@pytest.mark.guarantee("G5")
async def test_silence_ends_nothing_and_one_word_of_a_person_settles_it(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 1 final\nnever")
        await w.until_update("final")
        w.clock.advance(86_400)
        await quiet()
        assert not of(await w.events(), ev.TurnCompleted)
        await w.settle()
        await w.settle()
        end = await w.end()
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.ending) == ("end_turn", ev.Ending.SETTLED)
        check_ends(await w.events())


@pytest.mark.guarantee("G8")
async def test_a_cancel_ends_the_turn_as_cancelled_and_says_who(world: OpenWorld, profile: Profile) -> None:
    async with world() as w:
        await w.prompt("on-cancel say 1 stopping\nsay 1 working\nnever")
        await w.until_update("working")
        assert (await w.cancel()).prompt_id == "p1"
        end = await w.end()
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by, end.ending) == ("cancelled", "ann", ENDING[profile])
        assert (await w.cancel("p1")).prompt_id is None, "a cancel that names an ended turn does nothing"
        await quiet()
        events = await w.events()
    check_ends(events)
    assert texts(events, "p1") == ["working", "stopping"]
    assert not of(events, ev.CancelEscalated)


@pytest.mark.guarantee("G8", "G3")
async def test_a_cancel_that_is_not_heard_climbs_until_the_agent_is_cut(world: OpenWorld) -> None:
    limits = Limits()
    async with world() as w:
        await w.prompt("ignore-cancel\nsay 1 deaf\nnever")
        await w.prompt("hello", "p2")
        await w.until_update("deaf")
        await w.cancel()
        for wait_s, rung in ((limits.cancel_grace_s, "cancel_request"), (limits.cancel_rung_s, "terminate")):
            await w.clock.wait_for_sleepers(2)
            w.clock.advance(wait_s)
            await w.until(lambda event, rung=rung: isinstance(event, ev.CancelEscalated) and event.rung == rung)
        end = await w.end()
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.ending) == ("cancelled", ev.Ending.CANCELLED)
        assert isinstance(await w.end("p2"), ev.TurnCompleted)
        events = await w.events()
        assert w.source.started == 2
    check_ends(events)
    assert [each.rung for each in of(events, ev.CancelEscalated)] == ["cancel_request", "terminate"]
    assert [each.reason for each in of(events, ev.AgentExited)] == ["agent_exited"]


@pytest.mark.guarantee("G3")
async def test_an_agent_that_is_cut_ends_the_turn_and_the_next_prompt_gets_a_fresh_one(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 2 half\ngate cut")
        await w.source.gates.reached("cut")
        await w.until_update("half")
        await w.source.cut()
        end = await w.end()
        assert isinstance(end, ev.TurnFailed)
        assert end.code == "agent_exited"
        await w.prompt("say 1 fresh", "p2")
        assert isinstance(await w.end("p2"), ev.TurnCompleted)
        assert w.source.started == 2
        events = await w.events()
    check_ends(events)
    assert len(of(events, ev.AgentStarted)) == 2
    assert texts(events) == ["half", "half", "fresh"]


@pytest.mark.guarantee("G4")
async def test_what_comes_after_the_end_is_kept_and_marked_and_in_no_turn(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 1 inside\nafter say 2 late")
        await w.end()
        await w.until_update("late")
        await quiet()
        events = await w.events()
    check_ends(events)
    late = [each for each in of(events, ev.SessionUpdated) if b'"text":"late"' in bytes(each.update)]
    assert [(each.after, each.prompt_id) for each in late] == [("p1", None)] * 2


async def test_an_agent_that_speaks_while_idle_begins_no_turn(world: OpenWorld) -> None:
    async with world(AgentOptions(after="usage 1 100\ntitle Work")) as w:
        await w.until_update("Work")
        await w.prompt("idle-speak usage 7 100")
        await w.end()
        await w.until_update('"used":7')
        events = await w.events()
        session = await w.node.session(w.session_id)
    assert session.state.turn is None
    assert [each.prompt_id for each in of(events, ev.TurnStarted)] == ["p1"]


async def test_an_agent_may_begin_a_turn_of_its_own_where_its_dialect_says_so(
    world: OpenWorld, profile: Profile
) -> None:
    async with world() as w:
        await w.prompt("agent-turn 3")
        await w.end()
        await w.until_update("accord 3")
        if profile == "v2":
            await w.until(
                lambda event: isinstance(event, ev.TurnCompleted) and event.prompt_id.startswith("agent-")
            )
        await quiet()
        events = await w.events()
    check_ends(events)
    own = [each for each in of(events, ev.TurnStarted) if each.origin is ev.Origin.AGENT]
    assert len(own) == (1 if profile == "v2" else 0)
    said = [each for each in of(events, ev.SessionUpdated) if b"accord" in bytes(each.update)]
    if own:
        assert {each.prompt_id for each in said} == {own[0].prompt_id}
    else:
        assert {(each.prompt_id, each.after) for each in said} == {(None, "p1")}


async def test_a_question_is_answered_by_the_first_and_the_second_is_told(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("ask t1 allow_once,reject_once")
        asked = await w.until_kind(ev.PermissionRequested)
        assert asked.options == ("allow_once", "reject_once")
        first = cast("PermissionAnswer", await w.answer(asked.request_id, "allow_once", "c1"))
        second = cast("PermissionAnswer", await w.answer(asked.request_id, "reject_once", "c2"))
        assert (first.won, second.won, second.client_id) == (True, False, "c1")
        await w.end()
        events = await w.events()
    check_ends(events)
    assert texts(events, "p1") == ["selected allow_once"]
    assert len(of(events, ev.PermissionResolved)) == 1
    kinds = [type(each) for each in events]
    assert kinds.index(ev.TurnBlocked) < kinds.index(ev.TurnUnblocked) < kinds.index(ev.TurnCompleted)


async def test_a_cancel_answers_the_open_question(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("ask t1 allow_once")
        await w.until_kind(ev.PermissionRequested)
        await w.cancel()
        end = await w.end()
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "cancelled"
        await quiet()
        events = await w.events()
    check_ends(events)
    assert [each.end for each in of(events, ev.PermissionResolved)] == [ev.PermissionEnd.CANCELLED]


async def test_steering_goes_into_the_running_turn_and_ends_with_it(world: OpenWorld) -> None:
    async with world(AgentOptions(steering=True)) as w:
        await w.prompt("gate steer\nsay 1 done")
        await w.source.gates.reached("steer")
        await w.prompt("to the left", "p2", WhenBusy.STEER)
        await w.until_kind(ev.PromptInjected)
        w.source.gates.open("steer")
        end = await w.end("p2")
        events = await w.events()
    assert isinstance(end, ev.TurnCompleted)
    assert end.ending is ev.Ending.JOINED
    check_ends(events)
    assert [each.into for each in of(events, ev.PromptInjected)] == ["p1"]
    assert "steered to the left" in texts(events, "p1")


async def test_an_interrupt_cancels_what_runs_and_goes_next(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 1 one\nnever")
        await w.prompt("say 1 waits", "p2")
        await w.until_update("one")
        await w.prompt("say 1 first", "p3", WhenBusy.INTERRUPT)
        await w.end("p2")
        events = await w.events()
    check_ends(events)
    assert [each.prompt_id for each in of(events, ev.TurnStarted)] == ["p1", "p3", "p2"]
    assert [each.stop_reason for each in of(events, ev.TurnCompleted)] == ["cancelled", "end_turn", "end_turn"]


async def test_two_sessions_on_one_agent_do_not_mix(world: OpenWorld) -> None:
    async with world() as w:
        await w.create("s2")
        ids = [SessionId("s1"), SessionId("s2")]
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                for session_id in ids:
                    tasks.start_soon(w.node.submit, session_id, prompt(f"gate go\nsay 50 {session_id}"))
        w.source.gates.open("go")
        for session_id in ids:
            await w.end("p1", session_id)
        assert w.source.started == 1
        for session_id in ids:
            events = await events_of(w.log, session_id)
            check_ends(events)
            assert texts(events, "p1") == [session_id] * 50


async def test_garbage_unknown_kinds_and_answers_to_nobody_end_nothing(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt('garbage\nanswer-unknown-id\nupdate {"sessionUpdate":"brand_new","x":[1]}\nduplicate-answer')
        assert isinstance(await w.end(), ev.TurnCompleted)
        await w.prompt("say 1 alive", "p2")
        await w.end("p2")
        events = await w.events()
    check_ends(events)
    assert [bytes(each.update) for each in of(events, ev.SessionUpdated) if each.kind == "brand_new"] == [
        b'{"sessionUpdate":"brand_new","x":[1]}'
    ]
    assert texts(events, "p2") == ["alive"]
