"""L12 as checks against engines that several nodes open at once: only the node that claimed a session last can
write to it.

The argument, `FencedLogs`, opens one log several times at once, each time as a different node. Only the engine's
own test can make a node lose its sessions or break its connections. A failure is an `AssertionError`.

    @pytest.mark.parametrize("check", FENCED_CHECKS, ids=str)
    async def test_my_log_keeps_its_fences(check, ...):
        await check(MyLogs(...))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple, Protocol

import anyio

from turnwire.errors import AppendConflict, LogUnavailable, NotOwner, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, Stored
from turnwire.log.owners import Owners

__all__ = ["FENCED_CHECKS", "FencedCheck", "FencedLogs", "HeldUp", "OwnedLog"]

DEADLINE_S = 120
RACES, CUTS, CLAIMERS = 300, 60, 4

A = SessionId("a")


class HeldUp(Protocol):
    """A session whose appends are blocked."""

    async def reached(self) -> None:
        """Return once an append waits."""
        ...

    async def end(self) -> None:
        """Unblock the appends."""
        ...


class OwnedLog(EventLog, Protocol):
    """A log as one of several nodes sees it."""

    @property
    def owners(self) -> Owners: ...


class FencedLogs(Protocol):
    """One log, opened by several nodes of one zone."""

    def open(self, place: str = "here") -> AbstractAsyncContextManager[OwnedLog]:
        """Another node. Those that are open stay as they are."""
        ...

    async def lose_others(self, log: OwnedLog) -> None:
        """Let this node be the one that lives: all others are gone, and do not know of it."""
        ...

    async def hold_up(self, session_id: SessionId, *, claiming: bool) -> HeldUp:
        """Block appends to a session in the engine; meanwhile `claiming` assigns it to no known node."""
        ...

    async def cut(self, log: OwnedLog) -> None:
        """Break the connections over which this node appends, including those in use."""
        ...


class FencedCheck(NamedTuple):
    """One check. Call it with an empty log."""

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


async def taken(logs: FencedLogs, log: OwnedLog) -> int:
    """Claim the session as if its owner were gone, and return the head that the new owner finds."""
    await logs.lose_others(log)
    return (await log.owners.claim(A)).head.head


async def an_append_under_an_old_fence_is_refused_though_its_place_is_right(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        assert await put(one, b"1", 0) == 1
        assert await taken(logs, two) == 1
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


async def claim_refused(log: OwnedLog) -> object:
    """The owner that the refusal names."""
    try:
        await log.owners.claim(A)
    except NotOwner as refusal:
        return refusal.context["owner"]
    raise AssertionError("a claim was granted")


async def what_a_living_node_owns_no_other_one_claims_or_appends_to(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        await put(one, b"1", 0)
        assert await claim_refused(two) == one.owners.life
        await refused(two, b"x", 1)
        assert await two.owners.steal(one.owners.life, 9) == []
        assert await two.owners.adopt(9) == []
        assert await two.owners.owner(A) == one.owners.life
        assert await put(one, b"2", 1) == 2


async def what_nobody_claimed_nobody_appends_to(logs: FencedLogs) -> None:
    async with logs.open() as one:
        await one.create(A)
        await one.owners.release(A)
        await refused(one, b"x", 0)
        assert await one.owners.owner(A) is None
        assert (await one.owners.claim(A)).head.head == 0
        assert await put(one, b"1", 0) == 1


async def a_release_lets_the_next_one_in(logs: FencedLogs) -> None:
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        await put(one, b"1", 0)
        await one.owners.release(A)
        await refused(one, b"stale", 1)
        assert [each.head.session_id for each in await two.owners.adopt(9)] == [A]
        assert await put(two, b"2", 1) == 2
        await one.owners.release(A)
        assert await claim_refused(one) == two.owners.life
        assert await put(two, b"3", 2) == 3


async def a_node_that_leaves_lets_the_next_one_in(logs: FencedLogs) -> None:
    async with logs.open() as two:
        async with logs.open() as one:
            await one.create(A)
            await put(one, b"1", 0)
        assert (await two.owners.claim(A)).head.head == 1
        assert await put(two, b"2", 1) == 2
        assert [each.body for each in await kept(two)] == [b"1", b"2"]


async def of_many_claims_one_wins(logs: FencedLogs) -> None:
    async with AsyncExitStack() as stack:
        async with logs.open() as first:
            await first.create(A)
        many = [await stack.enter_async_context(logs.open()) for _ in range(CLAIMERS)]
        won: list[OwnedLog] = []

        async def attempt(log: OwnedLog) -> None:
            try:
                await log.owners.claim(A)
            except NotOwner:
                return
            won.append(log)

        async with anyio.create_task_group() as tasks:
            for each in many:
                tasks.start_soon(attempt, each)
        assert len(won) == 1
        assert await put(won[0], b"mine", 0) == 1
        for each in many:
            if each is not won[0]:
                await refused(each, b"not mine", 1)


async def a_session_is_hosted_at_its_place_and_settled_anywhere(logs: FencedLogs) -> None:
    async with logs.open("there") as far:
        async with logs.open() as one:
            await one.create(A)
            await put(one, b"1", 0)
            one_life = one.owners.life
        assert await claim_refused(far) is None
        assert await far.owners.adopt(9) == []
        async with logs.open() as near:
            assert await far.owners.steal(one_life, 9) == [], "a node of its place lives"
            assert await near.owners.gone_with_sessions() == [one_life]
            await near.owners.set_draining()
            (claim,) = await far.owners.steal(one_life, 9)
            assert claim.place == "here"
            assert await put(far, b"2", 1) == 2
            await far.owners.release(A)
            assert await far.owners.adopt(9) == []
            assert [each.head.head for each in await near.owners.adopt(9)] == [2]


async def race(logs: FencedLogs, take: Callable[[OwnedLog, OwnedLog], Awaitable[int]]) -> None:
    """Let one node append while the other claims the session, repeatedly."""
    async with logs.open() as one, logs.open() as two:
        await one.create(A)
        head, first = await put(one, b"begin", 0), 0
        owner, other = one, two
        for number in range(RACES):
            stored: list[int] = []
            found: list[int] = []
            await logs.lose_others(other)

            async def append(owner: OwnedLog = owner, number: int = number, head: int = head) -> None:
                try:
                    stored.append(await put(owner, b"o%d" % number, head))  # noqa: B023
                except NotOwner:
                    return

            async def claim(other: OwnedLog = other, owner: OwnedLog = owner) -> None:
                found.append(await take(other, owner))  # noqa: B023

            async with anyio.create_task_group() as tasks:
                for each in (append, claim) if number % 2 else (claim, append):
                    tasks.start_soon(each)
            assert found == [head + len(stored)], "the new owner did not see an append that was acknowledged"
            first += len(stored)
            owner, other = other, owner
            head = await put(owner, b"n%d" % number, found[0])
        assert 0 < first < RACES, "each of the two has to win sometimes"
        assert [each.offset for each in await kept(owner)] == [*range(1, head + 1)]


async def a_claim_and_an_append_at_one_instant_never_both_win(logs: FencedLogs) -> None:
    async def claim(taker: OwnedLog, _: OwnedLog) -> int:
        return (await taker.owners.claim(A)).head.head

    await race(logs, claim)


async def a_steal_and_an_append_at_one_instant_never_both_win(logs: FencedLogs) -> None:
    async def steal(taker: OwnedLog, owner: OwnedLog) -> int:
        # Sessions locked by an append at this moment are skipped.
        while not (taken := await taker.owners.steal(owner.owners.life, 32)):
            pass
        return taken[0].head.head

    await race(logs, steal)


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
        what_a_living_node_owns_no_other_one_claims_or_appends_to,
        what_nobody_claimed_nobody_appends_to,
        a_release_lets_the_next_one_in,
        a_node_that_leaves_lets_the_next_one_in,
        of_many_claims_one_wins,
        a_session_is_hosted_at_its_place_and_settled_anywhere,
        a_claim_and_an_append_at_one_instant_never_both_win,
        a_steal_and_an_append_at_one_instant_never_both_win,
        an_append_that_waited_for_a_claim_is_refused,
        an_append_whose_connection_broke_is_settled_by_the_head,
    )
)
