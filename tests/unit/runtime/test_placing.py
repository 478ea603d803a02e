"""Nodes that share a log: each session has one of them, and losing it loses nothing but the turn that ran."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from tests.support.agents import HandSource
from tests.support.driving import World, check_ends, events_of, fall_idle, of, open_world, prompt
from tests.support.owners import Cluster, FencedLog, MemoryOwners

from turnwire.errors import (
    AgentUnavailable,
    LifeOver,
    LinkBroken,
    LogUnavailable,
    NotOwner,
    SessionExists,
    ShuttingDown,
)
from turnwire.ids import SessionId
from turnwire.log.base import Snapshot
from turnwire.log.owners import Claim
from turnwire.runtime.draining import drain
from turnwire.runtime.node import open_node
from turnwire.runtime.placing import LOOKED_EVERY_S
from turnwire.session import events as ev
from turnwire.wire.jsonrpc import Request
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")


@asynccontextmanager
async def member(owners: MemoryOwners, *, created: bool = False) -> AsyncGenerator[World]:
    """Run a node of a cluster. Its end is a crash: nothing is released."""
    async with open_world(owners.log, created=created, owners=owners) as world:
        world.session_id = S1
        yield world


async def look_around(world: World) -> None:
    """Advance the time until orphaned sessions are found."""
    await quiet()
    world.clock.advance(LOOKED_EVERY_S)
    await quiet()


async def left_open(cluster: Cluster, *texts: str, name: str = "a", place: str | None = None) -> MemoryOwners:
    """Let a node die while the first prompt runs and the others wait."""
    owners = cluster.join(name, place)
    async with member(owners, created=True) as world:
        for number, text in enumerate(("never", *texts), 1):
            await world.prompt(text, f"p{number}")
        await world.until_kind(ev.PromptSent)
    return owners


# -- who has a session -----------------------------------------------------------------------------------------


async def test_a_session_is_its_makers_until_that_puts_it_away_and_its_agent_has_left() -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    async with member(a, created=True) as here, member(b) as there:
        await here.prompt("hello")
        await here.end()
        with pytest.raises(NotOwner) as refused:
            await there.prompt("hello", "p2")
        assert refused.value.context["owner"] == a.life
        with pytest.raises(SessionExists):
            await there.create("s1")
        await fall_idle(here.clock)
        assert here.node.loaded.keys() == frozenset()
        assert cluster.owner_of("s1") == a.life, "its agent still has it"
        here.clock.advance(here.node.limits.agent_idle_s)
        for _ in range(3):
            await fall_idle(here.clock)
        assert cluster.owner_of("s1") is None
        before = len(await here.events())
        await there.node.session(S1)
        assert cluster.owner_of("s1") == b.life
        assert len(await here.events()) == before, "nothing was owed"
        await there.prompt("hello", "p2")
        await there.end("p2")
        with pytest.raises(NotOwner):
            await here.prompt("hello", "p3")
        check_ends(await here.events())


async def test_of_two_nodes_that_make_the_same_session_one_does() -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    async with member(a) as here, member(b) as there:
        await a.log.create(S1)
        with pytest.raises(SessionExists):
            await there.create("s1")
        await here.create("s1")
    cluster.lose(a)
    async with member(b) as there:
        await b.log.create(S2)
        await there.create("s2")


async def test_a_session_of_another_place_is_refused_and_names_no_owner() -> None:
    cluster = Cluster()
    a = cluster.join("a")
    async with member(a, created=True):
        await quiet()
    cluster.lose(a)
    async with member(cluster.join("b")) as there:
        with pytest.raises(NotOwner) as refused:
            await there.prompt("hello")
        assert "owner" not in refused.value.context


async def test_a_session_that_is_used_again_while_it_is_being_released_stays() -> None:
    cluster = Cluster()
    a = cluster.join("a")
    gate = anyio.Event()
    release = a.release

    async def slow(session_id: SessionId) -> None:
        await gate.wait()
        await release(session_id)

    a.release = slow
    async with member(a, created=True) as world:
        await quiet()
        world.clock.advance(world.node.limits.agent_idle_s)
        for _ in range(3):
            await fall_idle(world.clock)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.prompt, "hello")
            await quiet()
            gate.set()
        await world.end()
        assert cluster.owner_of("s1") == a.life


async def test_an_agent_that_speaks_while_its_session_is_let_go_brings_nothing_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    a = cluster.join("a")
    gate = anyio.Event()
    save = a.log.save_snapshot

    async def slow(session_id: SessionId, snapshot: Snapshot) -> None:
        await gate.wait()
        await save(session_id, snapshot)

    async with member(a, created=True) as world:
        await world.prompt("idle-speak gate late\nidle-speak say 1 late")
        await world.end()
        await world.source.gates.reached("late")
        await world.node.leave()
        a.log.save_snapshot = slow
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.node.let_go, S1)
            await quiet()
            world.source.gates.open("late")
            await quiet()
            gate.set()
        await quiet()
        assert cluster.owner_of("s1") is None
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


# -- taking over -----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
async def test_what_a_lost_node_left_open_ends_with_node_lost_and_its_queue_goes_on() -> None:
    cluster = Cluster()
    async with member(cluster.join("b", "x")) as there:
        a = await left_open(cluster, "hello", place="x")
        await look_around(there)
        assert cluster.owner_of("s1") == a.life, "nobody has said that it is gone"
        cluster.lose(a)
        await there.node.inherit(a.life)
        assert isinstance(await there.end("p2"), ev.TurnCompleted)
        events = await there.events()
    [failed] = of(events, ev.TurnFailed)
    assert (failed.prompt_id, failed.code) == ("p1", "node_lost")
    assert failed.message == "the node that had the session was lost while the turn ran"
    check_ends(events)


async def test_a_node_finds_by_itself_what_was_lost_before_it_began_and_since() -> None:
    cluster = Cluster()
    cluster.lose(await left_open(cluster, place="x"))
    async with member(cluster.join("b", "x")) as there:
        await there.node.recovered()
        await there.end("p1")
        a = cluster.join("a", "x")
        async with open_world(a.log, owners=a, created=False) as again:
            await again.create("s2")
            await again.prompt("never", "p2")
        cluster.lose(a)
        await look_around(there)
        assert isinstance(await there.end("p2", S2), ev.TurnFailed)
        assert cluster.owner_of("s2") == 2


async def test_a_node_that_comes_back_ends_its_own_turns_with_daemon_restarted() -> None:
    cluster = Cluster()
    await left_open(cluster, "hello")
    async with member(cluster.join("a")) as again:
        assert isinstance(await again.end("p2"), ev.TurnCompleted)
        events = await again.events()
    assert [each.code for each in of(events, ev.TurnFailed)] == ["daemon_restarted"]
    check_ends(events)


@pytest.mark.guarantee("G3", "G7")
async def test_the_nodes_that_are_left_share_what_a_lost_one_had_and_each_turn_has_one_end() -> None:
    cluster = Cluster()
    a = cluster.join("a", "x")
    async with member(a) as world:
        for number in range(100):
            await world.create(f"n{number}")
            await world.prompt("never", "p1")
    async with member(cluster.join("b", "x")) as b, member(cluster.join("c", "x")) as c:
        cluster.lose(a)
        async with anyio.create_task_group() as tasks:
            for each in (b, c, b):
                tasks.start_soon(each.node.inherit, a.life)
        for number in range(100):
            events = await events_of(cluster.log, SessionId(f"n{number}"))
            assert [each.code for each in of(events, ev.TurnFailed)] == ["node_lost"]
            check_ends(events)
        assert {each.owner for each in cluster.rows.values()} == {2, 3}


@pytest.mark.guarantee("G3")
async def test_a_trustee_records_the_end_and_holds_the_queue_until_a_node_of_the_place_is_there() -> None:
    cluster = Cluster()
    a = await left_open(cluster, "hello")
    cluster.lose(a)
    async with member(cluster.join("b")) as trustee:
        await trustee.node.recovered()
        events = await trustee.events()
        assert [each.code for each in of(events, ev.TurnFailed)] == ["node_lost"]
        assert [each.reason for each in of(events, ev.QueueHeld)] == ["place_gone"]
        assert cluster.owner_of("s1") is None
        assert trustee.node.loaded.keys() == frozenset()
        assert trustee.source.started == 0, "it has no agent for it"
        await look_around(trustee)
        assert await trustee.events() == events
        async with member(cluster.join("a")) as again:
            assert isinstance(await again.end("p2"), ev.TurnCompleted)
            check_ends(await again.events())


async def test_a_trustee_that_dies_is_followed_by_another() -> None:
    cluster = Cluster()
    cluster.lose(await left_open(cluster, "hello"))
    first = cluster.join("b")
    assert await first.steal(1, 10)
    cluster.lose(first)
    async with member(cluster.join("c")) as second:
        await second.node.recovered()
        assert cluster.owner_of("s1") is None
        assert [each.code for each in of(await second.events(), ev.TurnFailed)] == ["node_lost"]


async def test_a_trustee_that_could_not_record_what_is_owed_tries_again() -> None:
    cluster = Cluster()
    cluster.lose(await left_open(cluster, "hello"))
    b = cluster.join("b")
    append, tries = b.log.append, iter([True])

    async def away(*given: Any, **named: Any) -> int:
        if next(tries, False):
            raise LogUnavailable("the database is away")
        return await append(*given, **named)

    b.log.append = away
    async with member(b) as trustee:
        await trustee.node.recovered()
        assert cluster.owner_of("s1") == b.life
        await look_around(trustee)
        assert cluster.owner_of("s1") is None
        events = await trustee.events()
    assert [each.code for each in of(events, ev.TurnFailed)] == ["node_lost"]
    assert [each.reason for each in of(events, ev.QueueHeld)] == ["place_gone"]


class Unanswered(MemoryOwners):
    """A database that executes its statements, and loses the first answers."""

    lost = 1

    async def steal(self, life: int, limit: int) -> list[Claim]:
        claims = await super().steal(life, limit)
        if claims and self.lost:
            self.lost -= 1
            raise LogUnavailable("the connection broke")
        return claims


@pytest.mark.parametrize("place", ["a", "b"])
async def test_what_was_taken_over_without_hearing_of_it_is_found(place: str) -> None:
    cluster = Cluster()
    cluster.lose(await left_open(cluster, "hello", place=place))
    cluster.join("b")
    async with member(Unanswered(cluster, 2)) as there:
        await quiet()
        assert cluster.owner_of("s1") == 2
        await look_around(there)
        if place == "b":
            assert isinstance(await there.end("p2"), ev.TurnCompleted)
        else:
            assert cluster.owner_of("s1") is None, "a node of its place does the rest"


# -- losing ----------------------------------------------------------------------------------------------------


async def test_a_session_that_another_node_has_taken_ends_here_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    source = HandSource()
    caplog.set_level(logging.INFO)
    async with open_node(a.log, source, owners=a, clock=ManualClock()) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await node.submit(S1, prompt("hello"))
        await agent.next("session/prompt")
        tail = await node.tail(S1)
        cluster.lose(a)
        await b.steal(a.life, 1)
        cluster.lives[a.life].gone = False
        before = await events_of(cluster.log, S1)
        agent.update("too late")
        await agent.next("session/cancel")
        with pytest.raises(NotOwner) as refused:
            await node.submit(S1, prompt("hello", "p2"))
        assert refused.value.context["owner"] == b.life
        agent.update("much too late")
        await quiet()
        assert node.loaded.keys() == frozenset()
        assert await events_of(cluster.log, S1) == before
        assert not tail.is_over, "it goes on elsewhere"
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []


async def test_what_is_asked_while_a_session_moves_is_refused_with_its_owner() -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    async with member(a, created=True) as here:
        await quiet()
        await a.release(S1)
        await b.claim(S1)
        with pytest.raises(NotOwner) as refused:
            await here.prompt("hello")
        assert refused.value.context["owner"] == b.life


@pytest.mark.guarantee("G14")
async def test_a_node_that_is_lost_hangs_up_on_its_agents_and_says_no_word_to_the_log() -> None:
    cluster = Cluster()
    a = cluster.join("a")
    source = HandSource()
    async with open_node(a.log, source, owners=a, clock=ManualClock()) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await node.submit(S1, prompt("hello"))
        await agent.next("session/prompt")
        await quiet()
        before = await events_of(cluster.log, S1)
        node.lose()
        await agent.next("session/cancel")
        with anyio.fail_after(WAIT_S), pytest.raises(LinkBroken):
            await agent.link.receive()
        await quiet()
        assert await events_of(cluster.log, S1) == before
        assert node.loaded.keys() == frozenset()
        for _ in range(2):
            with pytest.raises(LifeOver):
                await node.submit(S1, prompt("hello", "p2"))
        with pytest.raises(LifeOver):
            await node.create("/work")
        with pytest.raises(AgentUnavailable):
            await node.agents.call(None, "x/y", {})
        assert cluster.owner_of("s1") == a.life, "it lets nothing go: others take it"


async def test_an_append_of_a_life_that_is_over_loses_the_node() -> None:
    cluster = Cluster()
    a = cluster.join("a")
    async with member(a, created=True) as world:
        await world.create("s2")
        await quiet()
        log = a.log

        async def over(*_: object, **__: object) -> int:
            raise LifeOver("this life was declared gone")

        log.append = over
        with pytest.raises(LifeOver):
            await world.prompt("hello")
        assert world.node.loaded.keys() == frozenset()


# -- stopping --------------------------------------------------------------------------------------------------


async def test_a_drain_hands_idle_sessions_over_at_once_and_others_when_their_turn_has_ended() -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    async with member(a) as here, member(b) as there:
        await here.create("s2")
        await here.prompt("hello", "p0")
        await here.end("p0")
        await here.create("s1")
        await here.prompt("gate go", "p1")
        await here.prompt("hello", "p2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, here.node, here.clock, 30.0)
            await quiet()
            assert cluster.owner_of("s2") is None
            assert cluster.owner_of("s1") == a.life
            assert cluster.lives[a.life].draining
            with pytest.raises(ShuttingDown):
                await here.node.session(S2)
            with pytest.raises(ShuttingDown):
                await here.node.create("/work")
            await here.cancel()
        assert cluster.owner_of("s1") is None
        await look_around(there)
        assert isinstance(await there.end("p2"), ev.TurnCompleted), "its queue goes on"
        check_ends(await there.events())


@pytest.mark.guarantee("G3")
async def test_a_turn_that_does_not_end_in_time_is_ended_and_its_session_stays_until_its_agent_has_gone() -> None:
    cluster = Cluster()
    a, b = cluster.join("a", "x"), cluster.join("b", "x")
    async with member(b) as there:
        async with member(a, created=True) as here:
            await here.prompt("never", "p1")
            await here.prompt("hello", "p2")
            await here.until_kind(ev.PromptSent)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain, here.node, here.clock, 30.0)
                await quiet()
                here.clock.advance(30)
            await look_around(there)
            assert cluster.owner_of("s1") == a.life
        await a.log.aclose()
        await look_around(there)
        assert isinstance(await there.end("p2"), ev.TurnCompleted)
        events = await there.events()
    assert [each.code for each in of(events, ev.TurnFailed)] == ["daemon_stopped"]
    check_ends(events)


class SlowLog(FencedLog):
    """A log that accepts appends, and acknowledges them on command."""

    def __init__(self, owners: MemoryOwners) -> None:
        super().__init__(owners)
        self.told = anyio.Event()
        self.told.set()
        self.stored = anyio.Event()

    async def append(self, *given: Any, **more: Any) -> int:
        head = await super().append(*given, **more)
        self.stored.set()
        await self.told.wait()
        return head


async def test_a_drain_leaves_a_session_alone_for_which_a_prompt_is_just_being_stored() -> None:
    """A loop that is ended then shows events that its final state does not include."""
    cluster = Cluster()
    a = cluster.join("a", "x")
    log = a.log = SlowLog(a)
    async with member(a, created=True) as here:
        await here.prompt("hello", "p0")
        await here.end("p0")
        await quiet()
        log.told, log.stored = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.prompt, "gate go", "p1")
            await log.stored.wait()
            assert here.node.loaded[S1].state.turn is None
            tasks.start_soon(drain, here.node, here.clock, 30.0)
            await quiet()
            assert S1 in here.node.loaded
            log.told.set()
            await here.until(lambda event: isinstance(event, ev.PromptSent) and event.prompt_id == "p1")
            here.clock.advance(1)
            await quiet()
            assert cluster.owner_of("s1") == a.life, "its turn runs, and is waited for"
            await here.cancel()
        assert cluster.owner_of("s1") is None
        check_ends(await here.events())


async def test_a_drain_keeps_a_session_whose_agent_is_at_work_in_the_background() -> None:
    cluster = Cluster()
    a = cluster.join("a")
    source, clock = HandSource(), ManualClock()
    async with open_node(a.log, source, owners=a, clock=clock) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await node.submit(S1, prompt("hello"))
        request = cast("Request", await agent.next("session/prompt"))
        call = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "build", "status": "in_progress"}
        agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": call}})
        agent.send({"id": request.id, "result": {"stopReason": "end_turn"}})
        await quiet()
        assert not node.loaded[S1].state.unsettled
        await drain(node, clock, 30.0)
        assert cluster.owner_of("s1") == a.life
