"""Faults on purpose: each one happens where the plan says, and nowhere else."""

from __future__ import annotations

import anyio
import pytest
from anyio import fail_after

from turnwire.errors import ConfigError, LimitExceeded, LinkBroken, LinkClosed, LogUnavailable
from turnwire.hosting.memory import memory_pair
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, Snapshot
from turnwire.log.memory import MemoryEventLog
from turnwire_testing.clock import ManualClock
from turnwire_testing.faults import Cut, Delay, Duplicate, Fail, FaultyLink, FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

FRAMES = [b"1", b"2", b"3", b"4"]
A = SessionId("a")


async def test_a_cut_lets_so_many_frames_through_and_breaks_both_ends() -> None:
    near, far = memory_pair()
    faulty = FaultyLink(far, [Cut(after=3)])
    for frame in FRAMES:
        near.send_nowait(frame)
    assert await faulty.receive() == FRAMES[:3]
    for _ in range(2):
        with fail_after(WAIT_S), pytest.raises(LinkBroken):
            await faulty.receive()
    with pytest.raises(LinkBroken):
        await faulty.send(b"back")
    with pytest.raises(LinkBroken):
        near.send_nowait(b"5")


async def test_a_cut_needs_no_further_frame_to_break() -> None:
    near, far = memory_pair()
    faulty = FaultyLink(far, [Cut(after=1)])
    near.send_nowait(b"1")
    assert await faulty.receive() == [b"1"]
    with fail_after(WAIT_S), pytest.raises(LinkBroken):
        await faulty.receive()


async def test_a_cut_by_bytes_never_gives_a_part_of_a_frame() -> None:
    near, far = memory_pair()
    faulty = FaultyLink(far, [Cut(after_bytes=5)])
    near.send_nowait(b"four")
    near.send_nowait(b"more")
    assert await faulty.receive() == [b"four"]
    with fail_after(WAIT_S), pytest.raises(LinkBroken):
        await faulty.receive()


async def test_a_cut_while_sending_sends_nothing_of_the_frame() -> None:
    near, far = memory_pair()
    faulty = FaultyLink(near, [Cut(after=1, call="send")])
    await faulty.send(b"1")
    with pytest.raises(LinkBroken):
        await faulty.send(b"2")
    assert await far.receive() == [b"1"]
    with pytest.raises(LinkBroken):
        await far.receive()


async def test_a_cut_met_without_waiting_refuses_from_then_on() -> None:
    near, _ = memory_pair()
    faulty = FaultyLink(near, [Cut(after=0, call="send")])
    for _ in range(2):
        with pytest.raises(LinkBroken):
            faulty.send_nowait(b"1")
    await faulty.aclose()
    with pytest.raises(LinkClosed):
        faulty.send_nowait(b"1")


async def test_a_delayed_frame_holds_up_what_follows_and_nothing_before_it() -> None:
    near, far = memory_pair()
    release = anyio.Event()
    faulty = FaultyLink(far, [Delay(at=2, until=release)])
    for frame in FRAMES:
        near.send_nowait(frame)
    assert await faulty.receive() == [b"1"]
    with anyio.move_on_after(0) as scope:
        await faulty.receive()
    assert scope.cancelled_caught
    release.set()
    with fail_after(WAIT_S):
        assert await faulty.receive() == FRAMES[1:]


async def test_a_delay_can_end_at_a_time_of_a_clock(manual_clock: ManualClock) -> None:
    near, far = memory_pair()
    faulty = FaultyLink(near, [Delay(at=1, until=10.0, clock=manual_clock, call="send")])
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faulty.send, b"1")
            await manual_clock.wait_for_sleepers(1)
            tasks.start_soon(faulty.send, b"2")
            await quiet()
            with pytest.raises(LimitExceeded):
                faulty.send_nowait(b"3")
            manual_clock.advance(10)
        assert await far.receive() == [b"1", b"2"]


@pytest.mark.parametrize("call", ["receive", "send"])
async def test_a_duplicate_comes_twice_in_its_place(call: str) -> None:
    near, far = memory_pair()
    plan = [Duplicate(at=2, call="send" if call == "send" else "receive")]
    sender = FaultyLink(near, plan)
    receiver = FaultyLink(far, plan)
    await sender.send(b"1")
    sender.send_nowait(b"2")
    await sender.send(b"3")
    with fail_after(WAIT_S):
        assert await receiver.receive() == [b"1", b"2", b"2", b"3"]


def test_a_fault_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError):
        Cut()
    with pytest.raises(ConfigError):
        Cut(after=1, after_bytes=1)
    with pytest.raises(ConfigError):
        Delay(at=1, until=1.0)


async def append(log: EventLog, body: bytes, expected: int) -> int:
    return await log.append(A, [body], expected=expected, unsettled=False, durable=True)


async def test_a_failed_append_stored_nothing() -> None:
    log = FaultyLog(MemoryEventLog(), [Fail(call="append", at=2, error=LogUnavailable("no disk"))])
    await log.create(A)
    assert await append(log, b"1", 0) == 1
    with pytest.raises(LogUnavailable, match="no disk"):
        await append(log, b"2", 1)
    assert (await log.head(A)).head == 1
    assert await append(log, b"2", 1) == 2
    assert log.calls["append"] == 3
    await log.aclose()


async def test_a_lost_acknowledgement_leaves_the_event_stored() -> None:
    log = FaultyLog(MemoryEventLog(), [Fail(call="append", at=1, error=LogUnavailable("gone"), stored=True)])
    await log.create(A)
    with pytest.raises(LogUnavailable):
        await append(log, b"1", 0)
    head = await log.head(A)
    assert head.head == 1
    events = await log.read(A, Position(head.epoch, 0), max_events=10, max_bytes=1000)
    assert [event.body for event in events] == [b"1"]
    await log.aclose()


async def test_a_delayed_append_waits_for_its_event() -> None:
    release = anyio.Event()
    log = FaultyLog(MemoryEventLog(), [Delay(at=1, until=release)])
    await log.create(A)
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, log, b"1", 0)
            await quiet()
            assert (await log.head(A)).head == 0
            release.set()
    assert (await log.head(A)).head == 1
    await log.aclose()


async def test_every_call_without_a_fault_reaches_the_log() -> None:
    log = FaultyLog(MemoryEventLog(), [])
    assert isinstance(log, EventLog)
    await log.create(A)
    await append(log, b"1", 0)
    await append(log, b"2", 1)
    await log.save_snapshot(A, Snapshot("view", 1, 1, b"folded"))
    assert await log.load_snapshot(A, "view") == Snapshot("view", 1, 1, b"folded")
    assert await log.trim(A, upto=1) == 2
    assert [head.session_id for head in await log.sessions()] == [A]
    await log.delete(A)
    assert await log.sessions() == []
    await log.aclose()
