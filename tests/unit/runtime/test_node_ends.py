"""Data that a node removes: deleted and closed sessions, and old events whose fold is stored."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest
from tests.support.driving import check_ends, fall_idle, open_world, texts

from turnwire.errors import (
    LogFull,
    PositionLost,
    SessionClosed,
    SessionNotFound,
)
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.log.base import Position
from turnwire.projections.view import encode_view
from turnwire.runtime.folds import open_state
from turnwire.runtime.follow import start_of
from turnwire.session import events as ev
from turnwire.session.codec import decode, encode_state
from turnwire.session.inputs import Close
from turnwire.session.state import Phase
from turnwire_testing import AgentOptions
from turnwire_testing.faults import Delay, Fail, FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")


# -- deleting ------------------------------------------------------------------------------------------------


async def test_deleting_ends_followers_after_the_last_event() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.prompt("never")
        seen: list[ev.AnyEvent] = []

        async def read() -> None:
            async for page in world.pages():
                seen.extend(map(decode, page.frames))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await world.until_kind(ev.AgentStarted)
                await world.node.delete(S1)
        assert isinstance(seen[-1], ev.SessionClosed)
        check_ends(seen)
        with pytest.raises(SessionNotFound):
            await world.log.head(S1)
        assert world.node.loaded.keys() == frozenset()


async def test_a_session_with_the_id_of_a_deleted_one_is_another_session() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.prompt("say 20 old")
        await world.end()
        old = (await world.log.head(S1)).epoch
        async with aclosing(world.pages()) as stalled:
            await anext(stalled)
            await world.node.delete(S1)
            await world.create("s1")
            await world.prompt("say 1 new")
            await world.end()
            assert texts(await world.events()) == ["new"]
            with pytest.raises(PositionLost):
                await anext(world.node.follow(S1, Position(old, 3)))


async def test_deleting_twice_at_once_deletes_once() -> None:
    async with open_world(MemoryEventLog()) as world:
        outcomes: list[str] = []

        async def delete() -> None:
            try:
                await world.node.delete(S1)
                outcomes.append("deleted")
            except SessionNotFound:
                outcomes.append("not found")

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(delete)
    assert sorted(outcomes) == ["deleted", "not found", "not found"]


async def test_deleting_while_its_agent_is_opened_or_cancelled_harms_nobody() -> None:
    options = AgentOptions(before="gate new")
    async with open_world(MemoryEventLog(), options=options) as world:
        await world.source.gates.reached("new")
        await world.node.delete(S1)
        world.source.gates.open("new")
        await world.create("s2")
        await world.prompt("ignore-cancel\nnever", "p2")
        await world.until_kind(ev.AgentStarted)
        await world.cancel()
        await world.node.delete(S2)
        await quiet()
        world.clock.advance(Limits().cancel_grace_s)
        await quiet()
        await world.create("s3")
        await world.prompt("hello", "p3")
        assert isinstance(await world.end("p3"), ev.TurnCompleted)


async def test_a_closed_session_says_so_and_is_still_read() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.node.submit(S1, Close(at=1))
        with pytest.raises(SessionClosed):
            await world.prompt("x")
        await fall_idle(world.clock)
        with pytest.raises(SessionClosed):
            await world.prompt("x")
        assert (await world.node.session(S1)).state.phase is Phase.CLOSED


# -- retention -----------------------------------------------------------------------------------------------


async def test_after_forgetting_state_and_view_are_still_right() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("say 30 hello\ntool t1", key="k")
        await world.end()
        session = await world.node.session(S1)
        state, view = encode_state(session.state), encode_view(await world.node.view(S1))
        first = await world.node.retain(S1, keep_events=5)
        head = await log.head(S1)
        assert (first, head.first) == (head.head - 4, head.head - 4)
        assert await world.node.retain(S1, keep_events=50) == first, "what is kept stays the oldest"
        assert encode_view(await world.node.view(S1)) == view
        assert encode_state((await open_state(log, S1, Limits())).state) == state
    async with open_world(log, created=False) as world:
        assert encode_view(await world.node.view(S1)) == view
        repeated = await world.prompt("x", "p9", key="k")
        assert repeated.repeated
        with pytest.raises(PositionLost):
            await anext(world.node.follow(S1, start_of(head.epoch)))


async def test_nothing_is_forgotten_that_no_snapshot_holds() -> None:
    inner = MemoryEventLog()
    log = FaultyLog(inner, [Fail(call="save_snapshot", at=1, error=LogFull("the disk is full"))])
    async with open_world(log) as world:
        await world.prompt("say 30 hello")
        await world.end()
        assert await world.node.retain(S1, keep_events=5) == 1
        assert (await open_state(inner, S1, Limits())).head == (await inner.head(S1)).head


async def test_a_busy_session_is_not_forgotten_further_than_its_snapshot() -> None:
    gate = anyio.Event()
    log = FaultyLog(MemoryEventLog(), [Delay(call="save_snapshot", at=1, until=gate)])
    async with open_world(log) as world:
        await world.prompt("gate go\nflood 200")
        await world.source.gates.reached("go")
        firsts: list[int] = []

        async def retain() -> None:
            firsts.append(await world.node.retain(S1, keep_events=5))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(retain)
                await quiet()
                world.source.gates.open("go")
                await world.end()
                gate.set()
        state = (await open_state(log, S1, Limits())).state
        assert encode_state(state) == encode_state((await world.node.session(S1)).state)
        assert firsts[0] <= 8
