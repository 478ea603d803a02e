"""The ring: bounded, shared, and independent of its readers; it knows the participants from before its start."""

from __future__ import annotations

import anyio
import pytest

from turnwire.ids import AgentSessionId, Epoch, PromptId
from turnwire.limits import KiB, Limits
from turnwire.projections.envelope import Parties, Prompter
from turnwire.runtime.tail import Tail
from turnwire.session import events as ev
from turnwire.session.codec import encode_all
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

LIMITS = Limits(ring_events=16, ring_bytes=64 * KiB)
MANY, MUCH = 1000, 1 << 30


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def ring(head: int = 0, limits: Limits = LIMITS) -> Tail:
    return Tail(limits, Epoch("e"), head)


def test_a_slice_is_what_lies_behind_the_cursor() -> None:
    tail = ring(head=10)
    tail.publish(bodies(11, 15))
    assert (tail.first, tail.head) == (11, 15)
    assert tail.frames(10, MANY, MUCH) == bodies(11, 15)
    assert tail.frames(13, MANY, MUCH) == bodies(14, 15)
    assert tail.frames(15, MANY, MUCH) == []
    assert tail.frames(20, MANY, MUCH) == []
    assert tail.frames(9, MANY, MUCH) is None


def test_a_page_is_bounded_by_events_and_bytes_and_is_never_empty_while_there_is_more() -> None:
    tail = ring()
    tail.publish([b"x" * 100, b"y" * 50, b"z" * 50, b"w"])
    assert tail.frames(0, 2, MUCH) == [b"x" * 100, b"y" * 50]
    assert tail.frames(1, MANY, 100) == [b"y" * 50, b"z" * 50]
    assert tail.frames(1, MANY, 99) == [b"y" * 50]
    assert tail.frames(0, MANY, 10) == [b"x" * 100], "one event that is larger than a page is a page"


def test_the_ring_keeps_between_one_and_two_times_its_events() -> None:
    tail = ring()
    for number in range(1, 1001):
        tail.publish([b"%d" % number])
        assert 16 <= tail.head - tail.first + 1 <= 32 or number < 16
        kept = tail.frames(tail.first - 1, MANY, MUCH)
        assert kept == bodies(tail.first, number)


def test_the_ring_is_bounded_by_bytes_too() -> None:
    tail = ring()
    for number in range(200):
        tail.publish([b"%d" % number + b"x" * 10 * KiB])
        kept = tail.frames(tail.first - 1, MANY, MUCH)
        assert kept is not None
        assert sum(map(len, kept)) <= 2 * LIMITS.ring_bytes + 11 * KiB
    tail.publish([b"y" * 1000 * KiB])
    assert tail.first == tail.head + 1, "one event larger than the ring is read from the log"
    assert tail.frames(tail.head, MANY, MUCH) == []
    assert tail.frames(tail.head - 1, MANY, MUCH) is None


def test_a_log_that_is_further_starts_the_ring_over_behind_it() -> None:
    tail = ring()
    tail.publish(bodies(1, 5))
    tail.frames(0, MANY, MUCH)
    tail.reopen(3, Parties())
    assert tail.head == 5, "a ring never goes back"
    tail.reopen(9, Parties(2))
    assert tail.parties.agent_version == 2
    assert (tail.first, tail.head) == (10, 9)
    assert tail.frames(5, MANY, MUCH) is None
    tail.publish(bodies(10, 11))
    assert tail.frames(9, MANY, MUCH) == bodies(10, 11)


def test_what_the_ring_drops_leaves_who_prompted_the_turns_that_are_open() -> None:

    def accepted(number: int) -> ev.AnyEvent:
        return ev.PromptAccepted(at=1, prompt_id=PromptId(f"p{number}"), after_offset=0, author=f"a{number}")

    def ended(number: int) -> ev.AnyEvent:
        return ev.TurnFailed(at=1, prompt_id=PromptId(f"p{number}"), code="x", message="y")

    started = ev.AgentStarted(
        at=1, agent_session_id=AgentSessionId("a"), protocol_version=2, turn_end=ev.TurnEnd.IDLE
    )
    tail = ring()
    tail.publish(encode_all([started, accepted(1), accepted(2), ended(1), accepted(3)]))
    assert tail.parties == Parties()
    tail.publish(bodies(6, 19))
    tail.publish(bodies(20, 33))
    assert tail.first == 18
    assert tail.parties == Parties(2, {PromptId("p2"): Prompter("a2"), PromptId("p3"): Prompter("a3")})


async def test_waiting_ends_when_there_is_more_or_when_there_will_be_none() -> None:
    tail, heard = ring(), list[bool]()

    async def wait(after: int) -> None:
        heard.append(await tail.wait(after))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 0)
            await quiet()
            tail.publish([b"1"])
            await quiet()
            assert heard == [True]
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 1)
            await quiet()
            tail.end()
        assert heard == [True, False, False]
        assert await tail.wait(0), "what was published is still to be read"
        assert not await tail.wait(1)


async def test_a_cancelled_waiter_leaves_the_others_waiting() -> None:
    tail, woken = ring(), list[str]()

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await tail.wait(0)
            woken.append(name)

    scopes = [anyio.CancelScope() for _ in range(2)]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for name, scope in zip("ab", scopes, strict=True):
                tasks.start_soon(wait, name, scope)
            await quiet()
            scopes[0].cancel()
            await quiet()
            assert woken == []
            tail.publish([b"1"])
    assert woken == ["b"]
