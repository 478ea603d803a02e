"""Receipts of running sessions: whatever happens to a session, its log can be verified."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest
from tests.support.driving import World, open_world, prompt
from tests.support.loop import SESSION, Rigs, answered, ready

from turnwire.errors import LogFull, LogUnavailable
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import Position
from turnwire.runtime.folds import open_state
from turnwire.session import events as ev
from turnwire.session.stored_file import Head, Report, StoredFile, check
from turnwire_testing.faults import Fail

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rigs() -> AsyncGenerator[Rigs]:
    async with anyio.create_task_group() as tasks:
        yield Rigs(tasks)
        tasks.cancel_scope.cancel()


async def verified(log: EventLog) -> Report:
    """Return the report on a file of the session's log."""
    head = await log.head(SESSION)
    stored = await log.read(SESSION, Position(head.epoch, head.first - 1), max_events=100_000, max_bytes=1 << 30)
    start = Head(session_id=SESSION, epoch=head.epoch, first=head.first)
    file = StoredFile(start)
    content = file.head + file.lines(each.body for each in stored) + file.last_line()
    report = check(start, content.splitlines(keepends=True))
    assert report.problem is None
    return report


@pytest.mark.guarantee("G1")
async def test_turns_that_end_in_every_way_have_right_receipts_also_over_restarts() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("say 3 a", "p1")
        await world.end("p1")
        await world.prompt("error -32000 no", "p2")
        await world.end("p2")
        await world.prompt("never", "p3")
        await world.prompt("say 1 b", "p4")
        await world.prompt("say 1 c", "p5")
        await world.until_kind(ev.PromptSent)
        await world.cancel("p5")
        await world.cancel("p3")
        await world.end("p4")
        await world.prompt("say 1 d\nnever", "p6")
        await world.until_update("d")
        await world.prompt("say 1 e", "p7")
    async with open_world(log, created=False) as world:
        await world.end("p7")
        events = await world.events()
    ends = [each for each in events if isinstance(each, ev.TurnCompleted | ev.TurnFailed)]
    assert len(ends) == 7
    report = await verified(log)
    assert report.turns == 7
    assert ends[-1].receipt == ev.Receipt(report.hash or "")


@pytest.mark.parametrize("at", [4, 5], ids=["words", "end"])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_receipt_is_of_what_the_log_took_and_of_nothing_that_it_refused(
    rigs: Rigs, at: int, stored: bool
) -> None:
    error = LogUnavailable("no answer") if stored else LogFull("the disk is full")
    rig = await rigs.open(Fail(call="append", at=at, error=error, stored=stored))
    rig.session.inbox.put(ready())
    await rig.quiet()
    await rig.submit(prompt("hello"))
    rig.says("a", "b")
    await rig.quiet()
    rig.session.inbox.put(answered())
    await rig.quiet()
    if not stored:
        await rig.retry()
        await rig.quiet()
    assert isinstance((await rig.events())[-1], ev.TurnCompleted)
    report = await verified(rig.inner)
    assert (report.turns, list(report.unproven)) == (1, [])


async def test_who_looks_on_hears_of_the_receipt_that_is_stored(rigs: Rigs) -> None:
    rig = await rigs.open()
    seen: list[ev.AnyEvent] = []
    rig.session.watch = lambda session_id, events: seen.extend(events)
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    rig.session.inbox.put(answered())
    await rig.quiet()
    end = (await rig.events())[-1]
    assert isinstance(end, ev.TurnCompleted)
    assert end.receipt is not None
    assert seen[-1] == end


async def test_a_session_opened_from_its_snapshot_in_the_middle_of_a_turn_continues_the_hash(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    rig.says(*map(str, range(40)))
    await rig.quiet()
    await rig.session.save_snapshot()
    rig.says("one more")
    await rig.quiet()
    opened = await open_state(rig.inner, SESSION, Limits(page_events=16))
    assert opened.chain.offset == opened.head
    assert opened.state == rig.session.state
    assert opened.chain.close().mark == rig.session.chain.close().mark


async def test_a_trimmed_log_is_proven_from_its_first_complete_turn_on() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        for number in range(1, 4):
            await world.prompt("say 9 word", f"p{number}")
            await world.end(f"p{number}")
        first = await world.node.retain(SESSION, keep_events=20)
        assert first > 1
    async with open_world(log, created=False) as world:
        await world.prompt("say 1 word", "p9")
        await world.end("p9")
    report = await verified(log)
    assert report.turns == 2
    assert report.unproven[0][0] == first


async def test_what_the_next_receipt_needs_is_not_forgotten() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await _talk_on(world)
        first = await world.node.retain(SESSION, keep_events=2)
        chain = (await open_state(log, SESSION, Limits())).chain
        assert first == chain.first == 1, "no turn has ended, so all of it waits for a receipt"
        await world.cancel("p1")
        await world.end("p1")
        assert list((await verified(log)).unproven) == []
        assert await world.node.retain(SESSION, keep_events=2) > 1


async def _talk_on(world: World) -> None:
    await world.prompt("say 9 word\nsay 1 last\nnever")
    await world.until_update("last")
