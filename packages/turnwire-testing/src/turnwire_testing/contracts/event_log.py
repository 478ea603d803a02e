"""The contract of `turnwire.log.base.EventLog` as checks against any engine.

Each check opens a log, uses it and closes it; a failure is an `AssertionError` that names the obligation. No test
framework is needed, and no check depends on anything outside the contract. With pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_log_keeps_the_contract(check, tmp_path):
        await check(lambda: MyLog.open(tmp_path / "log"))

`CHECKS` apply to every engine and need an empty log. `REOPEN_CHECKS` apply to engines that persist their events
over a close: opening a second time must return the same log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple

import anyio
import anyio.lowlevel

from turnwire.errors import (
    AppendConflict,
    LocalProtocolError,
    LogUnavailable,
    PositionLost,
    SessionExists,
    SessionNotFound,
    TurnwireError,
)
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored

__all__ = ["CHECKS", "REOPEN_CHECKS", "Check", "OpenLog"]

OpenLog = Callable[[], AbstractAsyncContextManager[EventLog]]
"""Opens the log under test; leaving the context closes it."""

DEADLINE_S = 30
"""Deadline of each check, so that a log that blocks indefinitely fails."""

A, B = SessionId("a"), SessionId("b")


class Check(NamedTuple):
    """One check. Call it with a function that opens a log."""

    obligation: str
    name: str
    run: Callable[[OpenLog], Awaitable[None]]
    reopens: bool
    """True if the check needs a log that persists its events over a close."""

    def __str__(self) -> str:
        return f"{self.obligation}-{self.name}"

    async def __call__(self, open_log: OpenLog) -> None:
        try:
            with anyio.fail_after(DEADLINE_S):
                await self.run(open_log)
        except (AssertionError, TurnwireError, TimeoutError) as error:
            raise AssertionError(f"{self.obligation} {self.name}: {error!r}") from error


def check(obligation: str, *, reopens: bool = False) -> Callable[[Callable[[OpenLog], Awaitable[None]]], Check]:
    """Makes a function a check; its name is a sentence that the log must make true."""
    return lambda run: Check(obligation, run.__name__, run, reopens)


@contextmanager
def refused(error: type[TurnwireError], **context: str) -> Generator[None]:
    try:
        yield
    except error as refusal:
        found = {name: refusal.context.get(name) for name in context}
        assert found == context, f"{error.__name__} says {found}, not {context}"
    else:
        raise AssertionError(f"{error.__name__} was not raised")


@asynccontextmanager
async def log_with(open_log: OpenLog, *session_ids: SessionId) -> AsyncGenerator[EventLog]:
    async with open_log() as log:
        for session_id in session_ids:
            await log.create(session_id)
        yield log


def bodies(first: int, last: int) -> list[bytes]:
    return [b"event %d" % number for number in range(first, last + 1)]


async def append(log: EventLog, session_id: SessionId, bodies: Sequence[bytes], *, expected: int) -> int:
    return await log.append(session_id, bodies, expected=expected, unsettled=False, durable=False)


async def read(log: EventLog, session_id: SessionId, after: int = 0) -> list[Stored]:
    epoch = (await log.head(session_id)).epoch
    return await log.read(session_id, Position(epoch, after), max_events=10_000, max_bytes=1 << 30)


async def expect(log: EventLog, session_id: SessionId, first: int, last: int) -> None:
    """Assert that exactly the events first..last are stored, with the bodies of `bodies`."""
    assert await read(log, session_id, first - 1) == [*map(Stored, range(first, last + 1), bodies(first, last))]
    head = await log.head(session_id)
    assert (head.first, head.head) == (first, last), f"head says {head}"


@check("L1")
async def a_new_session_is_empty(open_log: OpenLog) -> None:
    async with open_log() as log:
        created = await log.create(A)
        assert created == SessionHead(A, created.epoch, first=1, head=0, unsettled=False)
        assert await log.head(A) == created
        assert await read(log, A) == []


@check("L1")
async def offsets_count_from_one_without_gaps(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        assert await append(log, A, bodies(1, 1), expected=0) == 1
        assert await append(log, A, bodies(2, 300), expected=1) == 300
        await expect(log, A, 1, 300)


@check("L1")
async def bodies_come_back_byte_for_byte(open_log: OpenLog) -> None:
    odd = [b"", b"\x00", b'{"a":"\xc3\xbc"}\n', bytes(range(256)), b"x" * 1_000_000]
    async with log_with(open_log, A) as log:
        await append(log, A, odd, expected=0)
        assert [stored.body for stored in await read(log, A)] == odd


@check("L1")
async def pages_of_any_size_join_to_the_whole(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        epoch = (await log.head(A)).epoch
        await append(log, A, bodies(1, 50), expected=0)
        whole = await read(log, A)
        for max_events, max_bytes in ((1, 1 << 20), (7, 1 << 20), (50, 1), (50, 32), (50, 1 << 20)):
            joined: list[Stored] = []
            while page := await log.read(
                A, Position(epoch, len(joined)), max_events=max_events, max_bytes=max_bytes
            ):
                assert len(page) <= max_events
                size = sum(len(stored.body) for stored in page)
                assert len(page) == 1 or size <= max_bytes
                joined += page
                is_last = len(joined) == len(whole)
                assert is_last or len(page) == max_events or size + len(whole[len(joined)].body) > max_bytes
            assert joined == whole


@check("L1")
async def an_append_of_nothing_only_settles(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        assert await log.append(A, [], expected=0, unsettled=True, durable=True) == 0
        head = await log.head(A)
        assert (head.head, head.unsettled) == (0, True)


@check("L2")
async def a_reader_never_sees_part_of_an_append(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log, anyio.create_task_group() as tasks:

        async def write() -> None:
            for head in range(0, 700, 7):
                await append(log, A, bodies(head + 1, head + 7), expected=head)

        tasks.start_soon(write)
        seen = 0
        while seen < 700:
            page = await read(log, A, seen)
            assert len(page) % 7 == 0, f"{len(page)} events of appends of 7"
            seen += len(page)
            await anyio.lowlevel.checkpoint()


@check("L3")
async def a_stale_or_early_append_is_refused_and_writes_nothing(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await log.append(A, bodies(1, 3), expected=0, unsettled=True, durable=False)
        for expected in (0, 2, 4, 99, -1):
            with refused(AppendConflict):
                await append(log, A, [b"fork"], expected=expected)
            await expect(log, A, 1, 3)
            assert (await log.head(A)).unsettled


@check("L3")
async def of_appends_at_one_position_exactly_one_wins(open_log: OpenLog) -> None:
    won: list[bytes] = []
    async with log_with(open_log, A) as log:

        async def attempt(body: bytes) -> None:
            try:
                await append(log, A, [body], expected=0)
            except AppendConflict:
                return
            won.append(body)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(attempt, b"%d" % number)
        assert len(won) == 1
        assert await read(log, A) == [Stored(1, won[0])]


@check("L4", reopens=True)
async def what_was_acknowledged_is_there_after_reopening(open_log: OpenLog) -> None:
    async with log_with(open_log, A, B) as log:
        await log.append(A, bodies(1, 5), expected=0, unsettled=True, durable=False)
        await log.append(A, bodies(6, 9), expected=5, unsettled=True, durable=True)
        await append(log, B, bodies(1, 4), expected=0)
        await log.trim(B, upto=2)
        before = await log.sessions()
    async with open_log() as log:
        assert await log.sessions() == before
        assert [head.session_id for head in await log.sessions(unsettled_only=True)] == [A]
        await expect(log, A, 1, 9)
        await expect(log, B, 3, 4)
        assert await append(log, A, bodies(10, 10), expected=9) == 10


@check("L4", reopens=True)
async def closing_finishes_the_appends_that_were_accepted(open_log: OpenLog) -> None:
    acknowledged: list[SessionId] = []
    names = [SessionId(f"s{number}") for number in range(50)]
    async with log_with(open_log, *names) as log, anyio.create_task_group() as tasks:

        async def write(session_id: SessionId) -> None:
            try:
                await append(log, session_id, bodies(1, 3), expected=0)
            except LogUnavailable:
                return
            acknowledged.append(session_id)

        for name in names:
            tasks.start_soon(write, name)
        await anyio.lowlevel.checkpoint()
        await log.aclose()
    async with open_log() as log:
        for name in names:
            await expect(log, name, 1, 3 if name in acknowledged else 0)


@check("L5")
async def nothing_is_read_that_the_head_does_not_know(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log, anyio.create_task_group() as tasks:

        async def write() -> None:
            for head in range(200):
                assert await append(log, A, bodies(head + 1, head + 1), expected=head) == head + 1
                assert (await log.head(A)).head == head + 1

        tasks.start_soon(write)
        seen = 0
        while seen < 200:
            page = await read(log, A, seen)
            seen += len(page)
            assert (await log.head(A)).head >= seen
            await anyio.lowlevel.checkpoint()


@check("L5")
async def durable_and_other_appends_are_seen_in_the_order_of_the_calls(open_log: OpenLog) -> None:
    names = [SessionId(f"s{number}") for number in range(5)]
    async with log_with(open_log, *names) as log, anyio.create_task_group() as tasks:

        async def write(session_id: SessionId, every: int) -> None:
            for head in range(60):
                moved = await log.append(
                    session_id,
                    bodies(head + 1, head + 1),
                    expected=head,
                    unsettled=False,
                    durable=head % every == 0,
                )
                assert (await log.head(session_id)).head == moved == head + 1
                assert (await read(log, session_id, head))[0].offset == moved

        for every, name in enumerate(names, 1):
            tasks.start_soon(write, name, every)


@check("L6")
async def after_a_cancelled_append_the_head_is_where_to_go_on(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        head = 0
        for _ in range(30):
            async with anyio.create_task_group() as tasks:
                batch = bodies(head + 1, head + 3)
                tasks.start_soon(lambda batch=batch, head=head: append(log, A, batch, expected=head))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            found = (await log.head(A)).head
            assert found in (head, head + 3), f"an append of 3 moved the head from {head} to {found}"
            head = await append(log, A, bodies(found + 1, found + 1), expected=found)
        await expect(log, A, 1, head)


@check("L6")
async def after_a_cancelled_durable_append_the_head_is_where_to_go_on(open_log: OpenLog) -> None:
    async with log_with(open_log, A, B) as log:
        head = other = 0
        for _ in range(30):
            async with anyio.create_task_group() as tasks:
                batch = bodies(head + 1, head + 3)
                tasks.start_soon(
                    lambda batch=batch, head=head: log.append(
                        A, batch, expected=head, unsettled=False, durable=True
                    )
                )
                await anyio.lowlevel.checkpoint()
                other = await append(log, B, bodies(other + 1, other + 1), expected=other)
                tasks.cancel_scope.cancel()
            found = (await log.head(A)).head
            assert found in (head, head + 3), f"an append of 3 moved the head from {head} to {found}"
            head = await append(log, A, bodies(found + 1, found + 1), expected=found)
        await expect(log, A, 1, head)
        await expect(log, B, 1, other)


@check("L7")
async def an_epoch_lasts_as_long_as_the_session(open_log: OpenLog) -> None:
    async with open_log() as log:
        first = (await log.create(A)).epoch
        assert first != (await log.create(B)).epoch
        await append(log, A, bodies(1, 5), expected=0)
        await log.trim(A, upto=5)
        assert (await log.head(A)).epoch == first
        await log.delete(A)
        assert (await log.create(A)).epoch != first


@check("L7", reopens=True)
async def an_epoch_survives_reopening_and_not_a_delete(open_log: OpenLog) -> None:
    async with open_log() as log:
        kept = await log.create(A)
        lost = await log.create(B)
        await log.delete(B)
    async with open_log() as log:
        assert await log.head(A) == kept
        assert (await log.create(B)).epoch != lost.epoch


@check("L7")
async def a_position_that_cannot_be_honoured_is_lost(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        epoch = (await log.head(A)).epoch
        await append(log, A, bodies(1, 10), expected=0)
        await log.trim(A, upto=4)
        for position, why in (
            (Position(Epoch("another"), 5), "epoch"),
            (Position(Epoch("another"), 99), "epoch"),
            (Position(epoch, 11), "ahead"),
            (Position(epoch, 3), "trimmed"),
            (Position(epoch, 0), "trimmed"),
        ):
            with refused(PositionLost, why=why):
                await log.read(A, position, max_events=10, max_bytes=1000)
        assert len(await read(log, A, 4)) == 6
        assert await read(log, A, 10) == []


@check("L8")
async def the_newest_snapshot_of_each_name_is_kept(open_log: OpenLog) -> None:
    async with log_with(open_log, A, B) as log:
        assert await log.load_snapshot(A, "state") is None
        await append(log, A, bodies(1, 10), expected=0)
        newest = Snapshot("state", 7, 2, b"\x00folded")
        other = Snapshot("view", 3, 1, b"")
        for snapshot in (Snapshot("state", 5, 1, b"old"), newest, Snapshot("state", 6, 9, b"late"), other):
            await log.save_snapshot(A, snapshot)
        assert await log.load_snapshot(A, "state") == newest
        assert await log.load_snapshot(A, "view") == other
        assert await log.load_snapshot(B, "state") is None
        again = newest._replace(version=3, body=b"folded by newer code")
        await log.save_snapshot(A, again)
        assert await log.load_snapshot(A, "state") == again


@check("L8")
async def a_snapshot_beyond_the_head_is_refused(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await append(log, A, bodies(1, 2), expected=0)
        with refused(LocalProtocolError):
            await log.save_snapshot(A, Snapshot("state", 3, 1, b"future"))
        assert await log.load_snapshot(A, "state") is None


@check("L8")
async def snapshots_go_with_their_session(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await log.save_snapshot(A, Snapshot("state", 0, 1, b"empty"))
        await log.delete(A)
        await log.create(A)
        assert await log.load_snapshot(A, "state") is None


@check("L9")
async def trimming_removes_a_prefix_and_nothing_else(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await append(log, A, bodies(1, 10), expected=0)
        assert await log.trim(A, upto=0) == 1
        assert await log.trim(A, upto=4) == 5
        await expect(log, A, 5, 10)
        assert await log.trim(A, upto=2) == 5
        await expect(log, A, 5, 10)
        assert await append(log, A, bodies(11, 11), expected=10) == 11
        await expect(log, A, 5, 11)


@check("L9")
async def trimming_everything_keeps_the_head(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await log.append(A, bodies(1, 3), expected=0, unsettled=True, durable=False)
        assert await log.trim(A, upto=99) == 4
        await expect(log, A, 4, 3)
        assert (await log.head(A)).unsettled
        assert await append(log, A, bodies(4, 5), expected=3) == 5
        await expect(log, A, 4, 5)


@check("L9", reopens=True)
async def a_trimmed_log_goes_on_after_reopening(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await append(log, A, bodies(1, 3000), expected=0)
        await log.trim(A, upto=3000)
    async with open_log() as log:
        await expect(log, A, 3001, 3000)
        await append(log, A, bodies(3001, 3002), expected=3000)
        await expect(log, A, 3001, 3002)


@check("L10")
async def sessions_do_not_show_in_each_other(open_log: OpenLog) -> None:
    async with log_with(open_log, A, B) as log:
        await append(log, A, bodies(1, 5), expected=0)
        await append(log, B, bodies(1, 3), expected=0)
        before = await log.head(B)
        with refused(AppendConflict):
            await append(log, A, [b"fork"], expected=0)
        await log.trim(A, upto=2)
        await expect(log, B, 1, 3)
        await log.delete(A)
        await expect(log, B, 1, 3)
        assert await log.head(B) == before
        assert await log.sessions() == [before]


@check("L10")
async def sessions_appended_at_once_each_get_their_own(open_log: OpenLog) -> None:
    names = [SessionId(f"s{number}") for number in range(40)]
    async with log_with(open_log, *names) as log:

        async def write(session_id: SessionId) -> None:
            for head in range(0, 20, 2):
                await append(log, session_id, bodies(head + 1, head + 2), expected=head)
                with refused(AppendConflict):
                    await append(log, session_id, [b"fork"], expected=head)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(write, name)
        for name in names:
            await expect(log, name, 1, 20)


@check("L10")
async def sessions_are_listed_in_order_a_page_at_a_time(open_log: OpenLog) -> None:
    names = [SessionId(name) for name in ("é", "a", "B", "z", "a b", "\N{GRINNING FACE}", "\uffff", "10", "9")]
    async with log_with(open_log, *names) as log:
        for name in ("a", "z"):
            await log.append(SessionId(name), [], expected=0, unsettled=True, durable=False)
        for unsettled_only, expected in ((False, sorted(names)), (True, ["a", "z"])):
            listed: list[SessionId] = []
            after = None
            while page := await log.sessions(unsettled_only=unsettled_only, after=after, limit=2):
                assert len(page) <= 2
                listed += [head.session_id for head in page]
                after = listed[-1]
            assert listed == expected


@check("L10")
async def a_created_session_exists_and_a_deleted_one_does_not(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        await append(log, A, bodies(1, 2), expected=0)
        with refused(SessionExists):
            await log.create(A)
        await expect(log, A, 1, 2)
        await log.delete(A)
        await _expect_not_found(log)
        assert await log.sessions() == []
        await log.create(A)
        await expect(log, A, 1, 0)


async def _expect_not_found(log: EventLog) -> None:
    position = Position(Epoch("any"), 0)
    for call in (
        lambda: log.head(A),
        lambda: append(log, A, [b"x"], expected=0),
        lambda: log.read(A, position, max_events=1, max_bytes=1),
        lambda: log.save_snapshot(A, Snapshot("state", 0, 1, b"")),
        lambda: log.load_snapshot(A, "state"),
        lambda: log.trim(A, upto=1),
        lambda: log.delete(A),
    ):
        with refused(SessionNotFound):
            await call()


@check("L11")
async def an_unknown_session_is_not_found_and_nothing_breaks(open_log: OpenLog) -> None:
    async with log_with(open_log, B) as log:
        await _expect_not_found(log)
        await append(log, B, bodies(1, 1), expected=0)
        await expect(log, B, 1, 1)


@check("L11")
async def an_id_that_is_no_text_is_refused(open_log: OpenLog) -> None:
    async with open_log() as log:
        for odd in ("", "\ud800"):
            with refused(LocalProtocolError):
                await log.create(SessionId(odd))
        assert await log.sessions() == []


@check("L11")
async def a_closed_log_says_so(open_log: OpenLog) -> None:
    async with log_with(open_log, A) as log:
        position = Position((await log.head(A)).epoch, 0)
        await append(log, A, bodies(1, 1), expected=0)
        await log.aclose()
        await log.aclose()
        for call in (
            lambda: log.create(B),
            lambda: log.head(A),
            lambda: append(log, A, [b"x"], expected=1),
            lambda: log.read(A, position, max_events=1, max_bytes=1),
            lambda: log.sessions(),
            lambda: log.save_snapshot(A, Snapshot("state", 0, 1, b"")),
            lambda: log.load_snapshot(A, "state"),
            lambda: log.trim(A, upto=1),
            lambda: log.delete(A),
        ):
            with refused(LogUnavailable):
                await call()


_ALL = [value for value in tuple(globals().values()) if isinstance(value, Check)]
CHECKS = tuple(check for check in _ALL if not check.reopens)
REOPEN_CHECKS = tuple(check for check in _ALL if check.reopens)
