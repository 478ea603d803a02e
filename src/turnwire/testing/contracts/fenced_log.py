"""L12 as checks against engines that several nodes open at once: only who claimed a session last writes to it.

Takes a way to open one log several times at once, each as a node of its own (`FencedLogs`): what makes a node lose
its sessions, and what breaks its connections, only the engine's own test can do. What fails is an `AssertionError`.

    @pytest.mark.parametrize("check", FENCED_CHECKS, ids=str)
    async def test_my_log_keeps_its_fences(check, ...):
        await check(MyLogs(...))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import anyio

from turnwire.errors import AppendConflict, LogUnavailable, NotOwner, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, Stored

__all__ = ["FENCED_CHECKS", "FencedCheck", "FencedLogs", "HeldUp"]

DEADLINE_S = 60
RACES, CUTS = 150, 40

A = SessionId("a")


class HeldUp(Protocol):
    """A session whose appends wait."""

    async def reached(self) -> None:
        """Return once an append waits."""
        ...

    async def end(self) -> None:
        """Let it go on."""
        ...


class FencedLogs(Protocol):
    """One log, opened by several nodes."""

    def open(self) -> AbstractAsyncContextManager[EventLog]:
        """Another node. Those that are open stay as they are."""
        ...

    async def claim(self, log: EventLog, session_id: SessionId) -> int:
        """Make the session this node's, as if its owner were gone; gives the head that the new owner finds."""
        ...

    async def hold_up(self, session_id: SessionId, *, claiming: bool) -> HeldUp:
        """Let appends to a session wait in the engine; `claiming` gives it to nobody known meanwhile."""
        ...

    async def cut(self, log: EventLog) -> None:
        """Break the connections over which this node appends, whatever they do now."""
        ...


class FencedCheck(NamedTuple):
    """One check. Call it with a log that is empty."""

    name: str
    run: Callable[[FencedLogs], Awaitable[None]]

    def __str__(self) -> str:
        return f"L12-{self.name}"

    async def __call__(self, logs: FencedLogs) -> None:
        try:
            with anyio.fail_after(DEADLINE_S):
                await self.run(logs)
        except (AssertionError, TurnwireError, TimeoutError, ExceptionGroup) as error:
            raise AssertionError(f"L12 {self.name}: {error!r}") from error


async def put(log: EventLog, body: bytes, expected: int) -> int:
    return await log.append(A, [body], expected=expected, unsettled=True, durable=True)


async def kept(log: EventLog) -> list[Stored]:
    position = Position((await log.head(A)).epoch, 0)
    return await log.read(A, position, max_events=100_000, max_bytes=1 << 30)


async def refused(log: EventLog, body: bytes, expected: int) -> None:
    try:
        await put(log, body, expected)
    except NotOwner:
        return
    raise AssertionError("an append by somebody who is no owner was taken")


async def an_append_under_an_old_fence_is_refused_though_its_place_is_right(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        assert await put(one, b"1", 0) == 1
        assert await logs.claim(two, A) == 1
        await refused(one, b"stale", 1)
        assert await put(two, b"2", 1) == 2
        await refused(one, b"stale", 2)
        assert [each.body for each in await kept(two)] == [b"1", b"2"]
        try:
            await put(two, b"fork", 1)
        except NotOwner:
            raise AssertionError("the owner was refused for its fence, and not for its place") from None
        except AppendConflict:
            return
        raise AssertionError("an append at the wrong place was taken")


async def what_a_living_node_owns_no_other_one_appends_to(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        await put(one, b"1", 0)
        await refused(two, b"x", 1)
        assert await put(one, b"2", 1) == 2


async def a_node_that_leaves_lets_the_next_one_in(logs: FencedLogs) -> None:
    async with logs.open() as two:
        async with logs.open() as one:
            await one.create(A)
            await put(one, b"1", 0)
        assert await put(two, b"2", 1) == 2
        assert [each.body for each in await kept(two)] == [b"1", b"2"]


async def of_many_who_append_to_what_nobody_owns_one_wins(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two, logs.open() as three:
        async with logs.open() as first:
            await first.create(A)
        won: list[EventLog] = []

        async def attempt(log: EventLog) -> None:
            try:
                await put(log, b"mine", 0)
            except AppendConflict:
                return
            won.append(log)

        async with anyio.create_task_group() as tasks:
            for each in (one, two, three):
                tasks.start_soon(attempt, each)
        assert len(won) == 1
        assert len(await kept(won[0])) == 1


async def a_claim_and_an_append_at_one_instant_never_both_win(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        head, first = 0, 0
        owner, other = one, two
        for number in range(RACES):
            stored: list[int] = []
            found: list[int] = []

            async def append(owner: EventLog = owner, number: int = number, head: int = head) -> None:
                try:
                    stored.append(await put(owner, b"o%d" % number, head))  # noqa: B023
                except NotOwner:
                    return

            async def claim(other: EventLog = other) -> None:
                found.append(await logs.claim(other, A))  # noqa: B023

            async with anyio.create_task_group() as tasks:
                for each in (append, claim) if number % 2 else (claim, append):
                    tasks.start_soon(each)
            assert found == [head + len(stored)], "the new owner did not see an append that was acknowledged"
            first += len(stored)
            owner, other = other, owner
            head = await put(owner, b"n%d" % number, found[0])
        assert 0 < first < RACES, "each of the two has to win sometimes"
        assert [each.offset for each in await kept(owner)] == [*range(1, head + 1)]


async def an_append_that_waited_for_a_claim_is_refused(logs: FencedLogs) -> None:
    async with logs.open() as one:
        await one.create(A)
        held_up = await logs.hold_up(A, claiming=True)
        refusals: list[str] = []

        async def append() -> None:
            await refused(one, b"late", 0)
            refusals.append("late")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await held_up.reached()
            assert not refusals, "it did not wait"
            await held_up.end()
        assert refusals
        assert await kept(one) == []


async def an_append_whose_connection_broke_is_settled_by_the_head(logs: FencedLogs) -> None:
    async with logs.open() as log:
        await log.create(A)
        head, unknown = await put(log, b"first", 0), 0
        for number in range(CUTS):
            stored: list[int] = []

            async def append(number: int = number, head: int = head) -> None:
                try:
                    stored.append(await put(log, b"%d" % number, head))  # noqa: B023
                except LogUnavailable:
                    return

            # Every other one is surely under way, the others are wherever they are.
            held_up = await logs.hold_up(A, claiming=False) if number % 2 else None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append)
                if held_up is not None:
                    await held_up.reached()
                await logs.cut(log)
            if held_up is not None:
                await held_up.end()
            found = (await log.head(A)).head
            assert found in ([head + 1] if stored else [head, head + 1]), f"{head} became {found}"
            unknown += not stored
            head = found
        assert unknown >= CUTS // 2, "connections did not break under an append"
        bodies = [each.body for each in await kept(log)]
        assert len(bodies) == head
        assert len(set(bodies)) == len(bodies), "an append is there twice"


FENCED_CHECKS = tuple(
    FencedCheck(run.__name__, run)
    for run in (
        an_append_under_an_old_fence_is_refused_though_its_place_is_right,
        what_a_living_node_owns_no_other_one_appends_to,
        a_node_that_leaves_lets_the_next_one_in,
        of_many_who_append_to_what_nobody_owns_one_wins,
        a_claim_and_an_append_at_one_instant_never_both_win,
        an_append_that_waited_for_a_claim_is_refused,
        an_append_whose_connection_broke_is_settled_by_the_head,
    )
)
