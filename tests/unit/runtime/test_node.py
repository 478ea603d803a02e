"""A node: sessions are loaded and unloaded by themselves, each alone, and nothing sent or accepted is lost."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from tests.support.agents import HandSource
from tests.support.driving import (
    IDLE_S,
    check_ends,
    content,
    events_of,
    fall_idle,
    of,
    open_world,
    prompt,
    texts,
)

from turnwire.errors import (
    LinkBroken,
    LogCorrupt,
    LogFull,
    LogUnavailable,
    SessionExists,
    SessionNotFound,
)
from turnwire.hosting.source import LinkedAgent
from turnwire.ids import ClientId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.runtime.follow import start_of
from turnwire.runtime.node import open_node
from turnwire.runtime.session import STATE
from turnwire.session import events as ev
from turnwire.session.codec import encode_state
from turnwire.session.inputs import Attach, Rename
from turnwire.session.queue import Accepted
from turnwire_testing import AgentOptions, ManualClock
from turnwire_testing.faults import Delay, Fail, FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")
# -- opening -------------------------------------------------------------------------------------------------


async def test_a_session_is_created_once_and_others_are_not_found() -> None:
    async with open_world(MemoryEventLog()) as world:
        with pytest.raises(SessionExists):
            await world.node.create("/work", session_id=S1)
        for _ in range(3):
            with pytest.raises(SessionNotFound):
                await world.node.submit(S2, prompt("x"))
        with pytest.raises(SessionNotFound):
            await anext(world.node.follow(S2, start_of((await world.log.head(S1)).epoch)))
        assert world.node.loaded.keys() == {S1}


async def test_ids_are_made_for_those_who_give_none() -> None:
    async with open_world(MemoryEventLog()) as world:
        made = {await world.node.create("/work") for _ in range(5)}
        assert len(made | {S1}) == 6


async def test_a_session_is_opened_when_first_touched_and_only_once_at_a_time() -> None:
    log = FaultyLog(MemoryEventLog(), [])
    async with open_world(log):
        pass
    async with open_world(log, created=False) as world:
        assert world.node.loaded.keys() == frozenset()
        loads = log.calls["load_snapshot"]
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(world.node.submit, S1, prompt("hello", f"p{number}"))
        assert world.node.loaded.keys() == {S1}
        assert log.calls["load_snapshot"] == loads + 1
        await world.end("p9")
        check_ends(await world.events())


@pytest.mark.guarantee("G3")
async def test_what_an_owner_left_open_is_paid_once_per_process() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.node.submit(S1, Attach(at=1, client_id=ClientId("c")))
        await world.prompt("never")
        await world.until_kind(ev.AgentStarted)
    async with open_world(log, created=False) as world:
        await fall_idle(world.clock)
        assert world.node.loaded.keys() == frozenset()
        await world.prompt("hello", "p2")
        await world.end("p2")
        await fall_idle(world.clock)
        await world.prompt("hello", "p3")
        await world.end("p3")
        events = await world.events()
    assert of(events, ev.ClientDetached) == [], "a restart is no leaving"
    [failed] = of(events, ev.TurnFailed)
    assert (failed.prompt_id, failed.code) == ("p1", "daemon_restarted")
    assert len(of(events, ev.AgentExited)) == 1, "an agent that serves a session put away is not lost"
    check_ends(events)


@pytest.mark.guarantee("G3")
async def test_an_unsettled_session_is_recovered_at_start_without_anybody_asking() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("never")
        await world.prompt("second", "p2")
        await world.create("s2")
    async with open_world(log, created=False) as world:
        await world.node.recovered()
        assert world.node.loaded.keys() == {S1}, "what owes nothing is not opened"
        assert [each.code for each in of(await world.events(), ev.TurnFailed)] == ["daemon_restarted"]
        assert await world.end("p2")
        check_ends(await world.events())


@pytest.mark.guarantee("G3")
async def test_a_recovery_that_could_not_be_stored_is_tried_by_the_next_who_asks() -> None:
    inner = MemoryEventLog()
    async with open_world(inner) as world:
        await world.prompt("never")
    log = FaultyLog(inner, [Fail(call="append", at=1, error=LogFull("the disk is full"))])
    async with open_world(log, created=False) as world:
        assert not of(await events_of(inner, S1), ev.TurnFailed)
        await quiet()
        await world.prompt("hello", "p2")
        await world.end("p2")
        check_ends(await world.events())


async def test_who_leaves_while_a_session_is_opened_leaves_it_whole() -> None:
    inner = MemoryEventLog()
    async with open_world(inner) as world:
        await world.node.submit(S1, Attach(at=1, client_id=ClientId("c")))
        await world.until_kind(ev.AgentStarted)
    gate = anyio.Event()
    log = FaultyLog(inner, [Delay(at=1, until=gate)])
    async with open_world(log, created=False) as world:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.node.submit, S1, prompt("left", "p0"))
            await quiet()
            tasks.cancel_scope.cancel()
            gate.set()
        await world.prompt("hello", "p1")
        await world.end("p1")
        await fall_idle(world.clock)
        assert world.node.loaded.keys() == frozenset()
        await world.prompt("hello again", "p2")
        await world.end("p2")
        events = await world.events()
    assert of(events, ev.ClientDetached) == [], "a restart is no leaving"
    assert len(of(events, ev.AgentExited)) == 1
    check_ends(events)


async def test_a_session_whose_creation_was_cut_off_before_its_first_event_can_be_created() -> None:
    log = MemoryEventLog()
    await log.create(S1)
    async with open_world(log, created=False) as world:
        with pytest.raises(SessionNotFound):
            await world.node.submit(S1, prompt("too early"))
        await world.create(S1)
        with pytest.raises(SessionExists):
            await world.create(S1)
        await world.prompt("hello")
        await world.end("p1")
        check_ends(await world.events())


async def test_whoever_reads_a_session_that_was_left_open_waits_for_its_end_and_others_do_not_wait() -> None:
    inner = MemoryEventLog()
    async with open_world(inner) as world:
        await world.prompt("never")
        await world.create("s2")
        await world.prompt("never", "p2")
    gate, read = anyio.Event(), anyio.Event()

    class Slow(FaultyLog):
        async def append(self, session_id: SessionId, *args: Any, **kwargs: Any) -> int:
            if session_id == S1:
                await gate.wait()
            return await super().append(session_id, *args, **kwargs)

    async with open_world(Slow(inner, []), created=False) as world, anyio.create_task_group() as tasks:

        async def look() -> None:
            assert (await world.node.view(S1)).turns[PromptId("p1")].outcome is not None
            read.set()

        assert world.node.is_recovering
        tasks.start_soon(look)
        with anyio.fail_after(WAIT_S):
            assert (await world.node.view(S2)).turns[PromptId("p2")].outcome is not None
        await quiet()
        assert (read.is_set(), world.node.is_recovering) == (False, True)
        gate.set()
        with anyio.fail_after(WAIT_S):
            await world.node.recovered()
            await read.wait()
        assert not world.node.is_recovering


async def test_a_session_that_cannot_be_recovered_does_not_keep_the_others_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("never")
        await world.create("s2")
        await world.prompt("never", "p2")
    head = (await log.head(S1)).head
    await log.append(S1, [b"damaged"], expected=head, unsettled=True, durable=True)
    async with open_world(log, created=False) as world:
        await world.node.recovered()
        assert world.node.loaded.keys() == {S2}
        assert "could not be recovered" in caplog.text
        with pytest.raises(LogCorrupt):
            await world.node.submit(S1, prompt("x"))


@pytest.mark.guarantee("G7")
async def test_an_idle_agent_stays_for_a_prompt_that_is_being_stored() -> None:
    gate = anyio.Event()
    gate.set()

    class Held(FaultyLog):
        async def append(self, *args: Any, **kwargs: Any) -> int:
            await gate.wait()
            return await super().append(*args, **kwargs)

    limits = Limits(agent_idle_s=60.0, idle_unload_s=600.0)
    options = AgentOptions(history="say 1 x")
    async with open_world(Held(MemoryEventLog(), []), options=options, limits=limits) as world:
        await world.prompt("hello")
        await world.end("p1")
        gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.prompt, "hello", "p2")
            for _ in range(3):
                await quiet()
                world.clock.advance(30.0)
            await quiet()
            gate.set()
        assert isinstance(await world.end("p2"), ev.TurnCompleted)
        # It is not used now, so it is unloaded.
        for _ in range(3):
            await quiet()
            world.clock.advance(30.0)
        assert (await world.until_kind(ev.AgentExited)).reason == "agent_recycled"


@pytest.mark.guarantee("G7")
async def test_a_node_that_ends_leaves_turns_and_queue_to_the_next_one() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("never")
        await world.prompt("hello", "p2")
        await world.until_kind(ev.AgentStarted)
        session = await world.node.session(S1)
        before = len(await world.events())
        # The loop is awake when the node ends: it must not live to see the end of its agent.
        session.inbox.put(Rename(at=1, title="last"))
    assert [type(each) for each in (await events_of(log, S1))[before:]] in ([], [ev.SessionRenamed])
    async with open_world(log, created=False) as world:
        assert isinstance(await world.end("p2"), ev.TurnCompleted)


# -- putting away --------------------------------------------------------------------------------------------


async def test_an_idle_session_is_put_away_with_a_snapshot_and_comes_back_as_it_was() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("hello", key="k")
        await world.end()
        before = encode_state((await world.node.session(S1)).state)
        await fall_idle(world.clock)
        assert world.node.loaded.keys() == frozenset()
        snapshot = await log.load_snapshot(S1, STATE)
        assert snapshot is not None
        assert snapshot.offset == (await log.head(S1)).head
        assert encode_state((await world.node.session(S1)).state) == before
        repeated = await world.prompt("hello", "p9", key="k")
        assert (repeated.prompt_id, repeated.repeated) == ("p1", True)


async def test_a_session_with_a_turn_or_a_touch_stays() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.create("s2")
        await world.prompt("never")
        for _ in range(6):
            await world.node.submit(S1, Attach(at=1, client_id=ClientId("c")))
            await quiet()
            world.clock.advance(IDLE_S / 2)
        assert world.node.loaded.keys() == {S1, S2}
        await fall_idle(world.clock)
        assert world.node.loaded.keys() == {S2}, "its turn is not over"


async def test_submits_racing_with_being_put_away_are_all_taken() -> None:
    async with open_world(MemoryEventLog()) as world:
        names = [f"title {number}" for number in range(60)]
        async with anyio.create_task_group() as tasks:

            async def rename(title: str) -> None:
                for _ in range(len(title) % 7):
                    await anyio.lowlevel.checkpoint()
                await world.node.submit(S1, Rename(at=1, title=title))

            for title in names:
                tasks.start_soon(rename, title)
                session = await world.node.session(S1)
                await anyio.lowlevel.checkpoint()
                if session.is_idle:
                    world.clock.advance(IDLE_S * 2)
                    await anyio.lowlevel.checkpoint()
        renamed = [each.title for each in of(await world.events(), ev.SessionRenamed)]
    assert sorted(cast("list[str]", renamed)) == sorted(names)


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_an_agent_that_speaks_brings_its_session_back_with_every_word_in_order(profile: str) -> None:
    async with open_world(MemoryEventLog(), profile) as world:  # pyright: ignore[reportArgumentType]
        await world.prompt("idle-speak gate late\nidle-speak flood 300")
        await world.end()
        await world.source.gates.reached("late")
        await fall_idle(world.clock)
        assert world.node.loaded.keys() == frozenset()
        world.source.gates.open("late")
        await world.until_update('"299"')
        assert world.node.loaded.keys() == {S1}
        events = await world.events()
        assert texts(events) == [str(number) for number in range(300)]
        late = [each for each in of(events, ev.SessionUpdated) if each.kind == "agent_message_chunk"]
        assert {(each.prompt_id, each.after) for each in late} == {(None, "p1")}
        assert len(of(events, ev.AgentStarted)) == 1


async def test_words_wait_until_the_log_can_open_the_session_and_hold_the_agent_back() -> None:
    down = [Fail(call="load_snapshot", at=at, error=LogUnavailable("no answer")) for at in (1, 2)]
    log, source = FaultyLog(MemoryEventLog(), down), HandSource(max_frames=8)
    clock = ManualClock()
    async with open_node(log, source, clock=clock) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await fall_idle(clock)
        assert node.loaded.keys() == frozenset()
        for number in range(3):
            agent.update(str(number))
        await quiet()
        for number in range(3, 11):
            agent.update(str(number))
        await quiet()
        assert node.loaded.keys() == frozenset()
        for _ in down:
            clock.advance(Limits().log_retry_s)
            await quiet()
        assert node.loaded.keys() == {S1}
        assert texts(await events_of(log, S1)) == [str(number) for number in range(11)]


async def test_a_session_that_cannot_be_opened_for_its_agent_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log, source, clock = MemoryEventLog(), HandSource(), ManualClock()
    async with open_node(log, source, clock=clock) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await fall_idle(clock)
        await log.delete(S1)
        agent.update("anybody there?")
        await quiet()
        assert "could not be opened for its agent" in caplog.text
        await node.create("/work", session_id=S2)
        await agent.answer("session/new", {"sessionId": "a2"})
        agent.update("hello", "a2")
        await quiet()
        assert texts(await events_of(log, S2)) == ["hello"]


# -- one session's failure is its own ------------------------------------------------------------------------


async def test_a_loop_that_fails_disturbs_no_other_and_its_session_is_opened_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FaultyLog(MemoryEventLog(), [Fail(call="append", at=5, error=LogCorrupt("damaged"))])
    async with open_world(log) as world:
        await world.create("s2")
        await quiet()
        with pytest.raises(LogUnavailable):
            await world.node.submit(S1, prompt("hello"))
        assert log.calls["append"] == 5
        assert "a session's loop failed" in caplog.text
        assert world.node.loaded.keys() == {S2}
        await world.prompt("hello", "p2")
        await world.end("p2")
        await world.node.submit(S1, prompt("again", "p3"))
        await world.end("p3", S1)
        for session_id in (S1, S2):
            check_ends(await events_of(world.log, session_id))
        restarted = await events_of(world.log, S1)
    assert len(of(restarted, ev.AgentStarted)) == 2


async def test_an_agent_whose_session_failed_is_not_heard_into_the_void() -> None:
    log, source = MemoryEventLog(), HandSource()
    async with open_node(log, source, clock=ManualClock()) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await quiet()
        session = await node.session(S1)
        head = (await log.head(S1)).head
        await log.append(S1, [b"{}"], expected=head, unsettled=False, durable=False)
        agent.update("conflict")
        await quiet()
        agent.update("after")
        await quiet()
        assert session.inbox.is_closed
        assert len(session.inbox) == 0


# -- clients -------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G7")
async def test_one_key_is_one_prompt_however_often_it_comes() -> None:
    async with open_world(MemoryEventLog()) as world:
        first = await world.prompt("hello", "p1", key="k")
        again = cast("Accepted", await world.node.submit(S1, prompt("hello", "p2", key="k")))
        assert (again.prompt_id, again.after_offset) == (first.prompt_id, first.after_offset)
        await world.end()
        assert len(of(await world.events(), ev.PromptAccepted)) == 1


async def test_a_node_without_an_agent_ends_each_turn_with_the_reason() -> None:
    class Nobody:
        async def connect(self) -> LinkedAgent:
            raise LinkBroken("no program")

    log = MemoryEventLog()
    async with open_node(log, Nobody(), clock=ManualClock()) as node:
        await node.create("/work", session_id=S1)
        await node.submit(S1, prompt("x", "p1"))
        await node.submit(S1, prompt("y", "p2"))
        await quiet()
        events = await events_of(log, S1)
    assert [(each.prompt_id, each.code) for each in of(events, ev.TurnFailed)] == [
        ("p1", "agent_launch_failed"),
        ("p2", "agent_launch_failed"),
    ]
    assert content("x") == of(events, ev.UserMessage)[0].content
