"""The inbox: one order, two bounds, and no accepted input is dropped."""

from __future__ import annotations

import anyio
import pytest
from msgspec import Raw

from turnwire.errors import LimitExceeded, LogUnavailable, SessionClosed
from turnwire.ids import ClientId, PromptId
from turnwire.limits import Limits
from turnwire.runtime.session import Barrier, Entry, Inbox
from turnwire.session.events import CancelRung
from turnwire.session.inputs import AgentPieces, Attach, Cancel, DeadlinePassed, Detach
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

LIMITS = Limits(agent_inputs=16, client_inputs=4, batch_inputs=8)


def fact(number: int) -> DeadlinePassed:
    return DeadlinePassed(at=number, prompt_id=PromptId("p"), rung=CancelRung.NOTIFY)


def wish(number: int) -> Attach:
    return Attach(at=number, client_id=ClientId("c"))


def times(batch: list[Entry]) -> list[int]:
    return [given.at for given, *_ in batch if not isinstance(given, Barrier)]


async def test_inputs_of_agent_and_clients_come_out_in_one_order() -> None:
    inbox = Inbox(LIMITS)
    inbox.put(fact(1))
    inbox.ask(wish(2))
    inbox.put(fact(3))
    batch = await inbox.take()
    assert times(batch) == [1, 2, 3]
    assert [reply is None for _, reply, _ in batch] == [True, False, True]
    assert len(inbox) == 0


async def test_a_batch_is_bounded_and_the_rest_waits_in_order() -> None:
    inbox = Inbox(LIMITS)
    for number in range(20):
        inbox.put(fact(number))
    assert [times(await inbox.take()) for _ in range(3)] == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert inbox.take_nowait() == []


def pieces(count: int) -> AgentPieces:
    return AgentPieces(at=0, kind="agent_message_chunk", updates=[Raw(b"{}")] * count)


async def test_pieces_count_one_by_one_and_pass_a_bound_by_less_than_one_input_of_them() -> None:
    inbox = Inbox(LIMITS)
    for count in (3, 3, 3, 1, 8, 1):
        inbox.put(pieces(count))
    inbox.ask(wish(1))
    taken = [[type(given) for given, *_ in inbox.take_nowait()] for _ in range(3)]
    assert taken == [[AgentPieces] * 3, [AgentPieces] * 2, [AgentPieces, Attach]]
    assert inbox.take_nowait() == []


@pytest.mark.parametrize("counts", [(15, 1), (16,), (30,)])
async def test_pieces_hold_the_agent_back_as_single_updates_do(counts: tuple[int, ...]) -> None:
    inbox = Inbox(LIMITS)
    for count in counts:
        with anyio.fail_after(WAIT_S):
            await inbox.room()
        inbox.put(pieces(count))
    with anyio.move_on_after(0) as full:
        await inbox.room()
    assert full.cancelled_caught
    while inbox.take_nowait():
        pass
    with anyio.fail_after(WAIT_S):
        await inbox.room()


async def test_take_waits_for_the_first_input() -> None:
    inbox, taken = Inbox(LIMITS), list[int]()

    async def take() -> None:
        taken.extend(times(await inbox.take()))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await quiet()
            assert taken == []
            inbox.put(fact(7))
    assert taken == [7]


async def test_a_cancelled_take_loses_nothing() -> None:
    inbox, taken = Inbox(LIMITS), list[int]()

    async def take() -> None:
        taken.extend(times(await inbox.take()))

    for number, is_late in enumerate((False, True)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await quiet()
            if is_late:
                inbox.put(fact(number))
            tasks.cancel_scope.cancel()
            if not is_late:
                inbox.put(fact(number))
        await take() if len(inbox) else None
    assert taken == [0, 1]


async def test_clients_beyond_their_share_are_refused_and_the_agent_is_not() -> None:
    inbox = Inbox(LIMITS)
    for number in range(4):
        inbox.ask(wish(number))
    with pytest.raises(LimitExceeded) as refused:
        inbox.ask(wish(4))
    assert refused.value.context["limit"] == "client_inputs"
    inbox.put(fact(5))
    assert times(inbox.take_nowait()) == [0, 1, 2, 3, 5]
    inbox.ask(wish(6))


async def test_everybody_may_leave_at_once() -> None:
    inbox = Inbox(LIMITS)
    for number in range(100):
        inbox.ask(Detach(at=number, client_id=ClientId(f"c{number}")))
    with pytest.raises(LimitExceeded):
        inbox.ask(wish(100))
    left = [given for _ in range(13) for given in times(inbox.take_nowait())]
    assert left == list(range(100))


async def test_a_cancel_gets_in_while_the_agent_floods() -> None:
    inbox = Inbox(LIMITS)
    for number in range(1000):
        inbox.put(fact(number))
    reply = inbox.ask(Cancel(at=1000))
    assert not reply.done()
    assert len(inbox) == 1001


async def test_the_agent_waits_for_room_and_clients_take_none_of_it() -> None:
    inbox = Inbox(LIMITS)
    for number in range(15):
        inbox.put(fact(number))
    for number in range(4):
        inbox.ask(wish(number))
    with anyio.fail_after(WAIT_S):
        await inbox.room()
    inbox.put(fact(15))
    is_free = anyio.Event()

    async def wait() -> None:
        await inbox.room()
        is_free.set()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await quiet()
            assert not is_free.is_set()
            inbox.take_nowait()


async def test_one_waiter_for_room_can_be_cancelled_without_the_other() -> None:
    inbox, got = Inbox(LIMITS), list[str]()
    for number in range(16):
        inbox.put(fact(number))

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await inbox.room()
            got.append(name)

    scopes = [anyio.CancelScope(), anyio.CancelScope()]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "first", scopes[0])
            tasks.start_soon(wait, "second", scopes[1])
            await quiet()
            scopes[0].cancel()
            await quiet()
            inbox.take_nowait()
    assert got == ["second"]


async def test_closing_lets_nobody_wait_and_no_client_in() -> None:
    inbox = Inbox(LIMITS)
    for number in range(16):
        inbox.put(fact(number))
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inbox.room)
            await quiet()
            inbox.close()
    with pytest.raises(SessionClosed):
        inbox.ask(Detach(at=1, client_id=ClientId("c")))
    assert len(inbox) == 16


async def test_clients_are_refused_at_once_and_what_the_agent_said_stays() -> None:
    inbox = Inbox(LIMITS)
    inbox.put(fact(1))
    replies = [inbox.ask(wish(number)) for number in range(2, 6)]
    inbox.put(fact(6))
    inbox.refuse_clients(LogUnavailable("the log is away"))
    for reply in replies:
        with pytest.raises(LogUnavailable):
            await reply
    inbox.ask(wish(7))
    assert times(await inbox.take()) == [1, 6, 7]
