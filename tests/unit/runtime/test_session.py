"""The one loop: decide, append, publish, answer, perform, in this order and no other (S1 to S4, S6)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from tests.support.driving import check_ends, of, prompt, texts
from tests.support.loop import CREATE, SESSION, Rigs, answered, chunk, ready

from turnwire.errors import AppendConflict, LogCorrupt, LogFull, LogUnavailable, PromptNotFound, SessionClosed
from turnwire.ids import ClientId, PromptId
from turnwire.limits import KiB, Limits
from turnwire.runtime.session import STATE, Barrier
from turnwire.session import effects as fx
from turnwire.session import events as ev
from turnwire.session.inputs import AgentPieces, AnyInput, Attach, Cancel, RemovePrompt
from turnwire.session.queue import Accepted
from turnwire_testing.faults import Delay, Fail

pytestmark = pytest.mark.anyio

DOWN = LogFull("the disk is full")


@pytest.fixture
async def rigs() -> AsyncGenerator[Rigs]:
    async with anyio.create_task_group() as tasks:
        yield Rigs(tasks)
        tasks.cancel_scope.cancel()


# -- S1, S2: the order ---------------------------------------------------------------------------------------


@pytest.mark.guarantee("G2")
async def test_a_prompt_is_stored_then_shown_then_answered_then_done(rigs: Rigs) -> None:
    rig = await rigs.open()
    await rig.submit(prompt("hello"))
    assert rig.journal == ["append 3", "stored", "publish 3", "perform AskAgent", "answered"]


@pytest.mark.guarantee("G2")
async def test_nothing_is_shown_answered_or_done_while_the_log_has_not_stored_it(rigs: Rigs) -> None:
    stored = anyio.Event()
    rig = await rigs.open(Delay(at=2, until=stored))
    answers: list[object] = []

    async def submit() -> None:
        answers.append(await rig.submit(prompt("hello")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submit)
        await rig.quiet()
        assert rig.journal == ["append 3"]
        assert (answers, rig.effects, rig.session.tail.head, rig.session.state.turn) == ([], [], 1, None)
        stored.set()
    assert rig.journal == ["append 3", "stored", "publish 3", "perform AskAgent", "answered"]


async def test_replies_come_before_effects(rigs: Rigs) -> None:
    rig = await rigs.open()
    reply = rig.session.inbox.ask(prompt("hello"))
    done_when_performed: list[bool] = []
    rig.session.perform = lambda effect: done_when_performed.append(reply.done())
    await rig.quiet()
    assert done_when_performed == [True]
    assert cast("Accepted", reply.result()).prompt_id == "p1"


async def test_what_waits_is_one_append_and_one_publish(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.session.inbox.put(ready())
    reply = rig.session.inbox.ask(prompt("hello"))
    rig.says("a", "b", "c")
    rig.session.inbox.put(answered())
    await rig.quiet()
    assert reply.done()
    assert rig.journal[:3] == ["append 8", "stored", "publish 8"]
    assert rig.log.calls["append"] == 2
    assert texts(await rig.events(), "p1") == ["a", "b", "c"]


async def test_an_input_without_consequences_appends_nothing(rigs: Rigs) -> None:
    rig = await rigs.open()
    await rig.submit(Cancel(at=1))
    assert rig.journal == ["answered"]


# -- S3: refused alone ---------------------------------------------------------------------------------------


async def test_a_refused_input_leaves_its_neighbours_alone(rigs: Rigs) -> None:
    rig = await rigs.open()
    first = rig.session.inbox.ask(prompt("one", "p1"))
    wrong = rig.session.inbox.ask(RemovePrompt(at=1, prompt_id=PromptId("nobody")))
    second = rig.session.inbox.ask(prompt("two", "p2"))
    await rig.quiet()
    assert rig.log.calls["append"] == 2
    with pytest.raises(PromptNotFound):
        wrong.result()
    assert [cast("Accepted", each.result()).prompt_id for each in (first, second)] == ["p1", "p2"]
    assert cast("Accepted", second.result()).after_offset == 4
    assert [each.prompt_id for each in of(await rig.events(), ev.PromptAccepted)] == ["p1", "p2"]


async def test_a_refused_word_of_the_agent_is_reported_and_skipped(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await rigs.open(created=False)
    rig.says("too early")
    await rig.submit(CREATE)
    assert [type(each) for each in await rig.events()] == [ev.SessionCreated]
    assert "AgentUpdate" in caplog.text


# -- S4: the log is the truth --------------------------------------------------------------------------------


@pytest.mark.guarantee("G7")
async def test_clients_hear_that_the_log_failed_and_nothing_has_changed(rigs: Rigs) -> None:
    rig = await rigs.open(Fail(call="append", at=2, error=DOWN))
    with pytest.raises(LogFull):
        await rig.submit(prompt("hello"))
    assert rig.effects == []
    assert rig.session.state.turn is None
    await rig.retry()
    await rig.submit(prompt("again"))
    assert [each.after_offset for each in of(await rig.events(), ev.PromptAccepted)] == [1]


async def test_what_the_agent_said_is_stored_in_order_once_the_log_is_back(rigs: Rigs) -> None:
    rig = await rigs.open(*(Fail(call="append", at=at, error=DOWN) for at in (4, 5, 6)))
    await rig.submit(prompt("hello"))
    rig.session.inbox.put(ready())
    await rig.quiet()
    rig.says("a", "b")
    refused = rig.session.inbox.ask(prompt("two", "p2"))
    await rig.quiet()
    with pytest.raises(LogFull):
        refused.result()
    rig.says("c")
    await rig.retry()
    await rig.clock.wait_for_sleepers(1)
    rig.says("d")
    rig.session.inbox.put(answered())
    taken = rig.session.inbox.ask(prompt("three", "p3"))
    await rig.retry()
    await rig.clock.wait_for_sleepers(1)
    with pytest.raises(LogFull):
        taken.result()
    await rig.retry()
    await rig.quiet()
    events = await rig.events()
    assert texts(events, "p1") == ["a", "b", "c", "d"]
    assert [each.prompt_id for each in of(events, ev.TurnCompleted)] == ["p1"]
    check_ends(events)


async def test_a_lost_acknowledgement_is_recognised(rigs: Rigs) -> None:
    rig = await rigs.open(Fail(call="append", at=2, error=LogUnavailable("no answer"), stored=True))
    accepted = cast("Accepted", await rig.submit(prompt("hello")))
    assert accepted.prompt_id == "p1"
    assert [type(each) for each in rig.effects] == [fx.AskAgent]
    assert rig.session.tail.head == rig.session.head == 4
    rig.says("after")
    await rig.quiet()
    assert len(await rig.events()) == 5


async def test_a_log_that_cannot_say_what_it_holds_is_asked_again(rigs: Rigs) -> None:
    rig = await rigs.open(
        Fail(call="append", at=2, error=LogUnavailable("no answer"), stored=True),
        Fail(call="head", at=1, error=LogUnavailable("no answer")),
        Fail(call="read", at=1, error=LogUnavailable("no answer")),
    )
    reply = rig.session.inbox.ask(prompt("hello"))
    await rig.retry()
    await rig.retry()
    await rig.quiet()
    assert cast("Accepted", reply.result()).prompt_id == "p1"
    assert rigs.failures == []


async def test_another_owner_stops_the_session_and_everybody_who_waits_is_refused(rigs: Rigs) -> None:
    rig = await rigs.open(limits=Limits(batch_inputs=1))
    await rig.inner.append(SESSION, [b"{}"], expected=1, unsettled=False, durable=False)
    replies = [rig.session.inbox.ask(prompt("x", f"p{n}")) for n in range(5)]
    await rig.quiet()
    assert [type(each) for each in rigs.failures] == [AppendConflict]
    for reply in replies:
        assert isinstance(reply.exception(), LogUnavailable)
    assert rig.session.inbox.is_closed
    assert (rig.effects, rig.session.tail.head) == ([], 1)


async def test_a_client_that_came_during_a_retry_is_refused_when_the_loop_ends(rigs: Rigs) -> None:
    rig = await rigs.open(
        Fail(call="append", at=2, error=DOWN), Fail(call="append", at=3, error=LogCorrupt("damaged"))
    )
    rig.says("a")
    await rig.clock.wait_for_sleepers(1)
    reply = rig.session.inbox.ask(prompt("hello"))
    await rig.retry()
    await rig.quiet()
    assert [type(each) for each in rigs.failures] == [LogCorrupt]
    assert isinstance(reply.exception(), LogUnavailable)


# -- who comes and goes --------------------------------------------------------------------------------------


@pytest.mark.guarantee("G8")
async def test_a_submitter_that_leaves_takes_nothing_with_it(rigs: Rigs) -> None:
    stored = anyio.Event()
    rig = await rigs.open(Delay(at=2, until=stored))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.session.submit, prompt("hello"))
        await rig.quiet()
        tasks.cancel_scope.cancel()
    other = rig.session.inbox.ask(prompt("two", "p2"))
    stored.set()
    await rig.quiet()
    assert cast("Accepted", other.result()).prompt_id == "p2"
    assert [each.prompt_id for each in of(await rig.events(), ev.PromptAccepted)] == ["p1", "p2"]
    assert [type(each) for each in rig.effects] == [fx.AskAgent]


async def test_an_idle_session_can_be_stopped_and_refuses_what_comes_then(rigs: Rigs) -> None:
    rig = await rigs.open()
    assert rig.session.is_idle
    rig.session.stop()
    with pytest.raises(SessionClosed):
        await rig.submit(prompt("hello"))
    assert rigs.failures == []


async def test_who_waits_when_the_loop_is_stopped_is_refused(rigs: Rigs) -> None:
    rig = await rigs.open(Delay(at=2, until=anyio.Event()))
    waiting = rig.session.inbox.ask(prompt("hello"))
    await rig.quiet()
    assert not rig.session.is_idle
    rig.session.stop()
    await rig.quiet()
    assert isinstance(waiting.exception(), LogUnavailable)
    assert rig.effects == []


async def test_a_session_that_owes_something_is_not_idle(rigs: Rigs) -> None:
    rig = await rigs.open()
    await rig.submit(prompt("hello"))
    await rig.quiet()
    assert not rig.session.is_idle
    rig.session.inbox.put(ready())
    rig.session.inbox.put(answered())
    await rig.quiet()
    assert rig.session.is_idle


# -- durability and snapshots --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "durable"),
    [
        pytest.param(prompt("hello"), True, id="prompt"),
        pytest.param(Attach(at=1, client_id=ClientId("c")), False, id="attach"),
        pytest.param(chunk("x"), False, id="update"),
        pytest.param(ready(), True, id="agent"),
    ],
)
async def test_only_what_may_be_relaxed_is_not_synced(rigs: Rigs, given: AnyInput, durable: bool) -> None:
    rig = await rigs.open()
    rig.session.inbox.put(given)
    await rig.quiet()
    assert [each for _, each in rig.log.durable[1:]] == [durable]


async def test_terminals_and_permissions_are_synced_and_so_is_what_shares_their_batch(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    rig.says("a")
    await rig.quiet()
    rig.says("b")
    rig.session.inbox.put(answered())
    await rig.quiet()
    assert rig.log.durable[-2:] == [
        (("SessionUpdated",), False),
        (("SessionUpdated", "TurnCompleted"), True),
    ]


async def test_a_snapshot_is_kept_each_time_so_many_events_have_come(rigs: Rigs) -> None:
    rig = await rigs.open(limits=Limits(snapshot_events=100))
    for _ in range(35):
        rig.says(*("x" for _ in range(10)))
        await rig.quiet()
    assert rig.log.snapshots == [101, 201, 301]
    assert rig.session.head == 351


async def test_a_snapshot_that_cannot_be_kept_is_only_time_lost(rigs: Rigs) -> None:
    rig = await rigs.open(Fail(call="save_snapshot", at=1, error=DOWN), limits=Limits(snapshot_events=100))
    rig.says(*("x" for _ in range(150)))
    await rig.quiet()
    assert await rig.inner.load_snapshot(SESSION, STATE) is None
    rig.says(*("y" for _ in range(100)))
    await rig.quiet()
    kept = await rig.inner.load_snapshot(SESSION, STATE)
    assert kept is not None
    assert kept.offset == rig.session.head == 251


async def test_time_of_the_last_work_is_taken_from_the_clock(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.clock.advance(7)
    assert rig.session.busy_at == 0
    rig.says("x")
    await rig.quiet()
    assert rig.session.busy_at == 7


async def test_a_cancel_is_decided_while_thousands_of_updates_wait(rigs: Rigs) -> None:
    rig = await rigs.open(limits=Limits(agent_inputs=16, batch_inputs=1024, page_bytes=64 * KiB))
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    rig.says(*(str(number) for number in range(3000)))
    reply = rig.session.inbox.ask(Cancel(at=2))
    rig.says(*(str(number) for number in range(3000, 6000)))
    await rig.quiet()
    assert reply.done()
    events = await rig.events()
    place = next(i for i, each in enumerate(events) if isinstance(each, ev.CancelAsked))
    assert texts(events) == [str(number) for number in range(6000)]
    assert len(texts(events[:place])) == 3000
    assert fx.CancelAgent(PromptId("p1"), ev.CancelRung.NOTIFY) in rig.effects


async def test_others_get_a_turn_between_batches_also_when_the_log_stores_without_a_pause(rigs: Rigs) -> None:
    rig = await rigs.open(limits=Limits(batch_inputs=16))
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    first, seen = rig.session.head, set[int]()
    rig.says(*map(str, range(160)))
    while rig.session.head < first + 160:
        seen.add(rig.session.head)
        await anyio.lowlevel.checkpoint()
    assert {first + count for count in range(16, 160, 16)} <= seen


async def test_pieces_in_one_input_are_stored_and_shown_as_one_event_each(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.session.inbox.put(ready())
    await rig.submit(prompt("hello"))
    updates = [chunk(str(number)).update for number in range(5)]
    rig.says("before")
    rig.session.inbox.put(AgentPieces(at=1, kind="agent_message_chunk", updates=updates))
    rig.says("behind")
    await rig.quiet()
    assert texts(await rig.events()) == ["before", *map(str, range(5)), "behind"]
    assert rig.session.tail.head == len(await rig.events())


# -- S6: a place ---------------------------------------------------------------------------------------------


async def test_a_place_is_reached_when_what_is_before_it_is_seen_and_knows_where_it_is(rigs: Rigs) -> None:
    stored = anyio.Event()
    rig = await rigs.open(Delay(at=2, until=stored))
    reached: list[tuple[int, int]] = []

    def look(offset: int) -> None:
        reached.append((offset, rig.session.tail.head))

    rig.session.inbox.put(ready())
    rig.session.inbox.ask(prompt("hello"))
    for text in ("a", "b"):
        rig.says(text)
        rig.session.inbox.put(Barrier(look))
    await rig.quiet()
    assert reached == []
    stored.set()
    await rig.quiet()
    events = await rig.events()
    last = len(events)
    assert reached == [(last - 1, last), (last, last)]
    assert texts(events[: reached[0][0]]) == ["a"]


async def test_a_place_waits_until_the_log_has_taken_what_is_before_it(rigs: Rigs) -> None:
    rig = await rigs.open(Fail(call="append", at=2, error=DOWN))
    reached: list[int] = []
    rig.session.inbox.put(ready())
    rig.says("a")
    rig.session.inbox.put(Barrier(reached.append))
    await rig.quiet()
    assert reached == []
    await rig.retry()
    await rig.quiet()
    assert reached == [len(await rig.events())]
