"""Checks of L1 to L6: the events of one session, and what an acknowledgement means.

Takes a way to open a log, gives nothing or an `AssertionError`. Never looks behind the contract.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel

from turnwire.errors import AppendConflict, LogUnavailable
from turnwire.ids import SessionId
from turnwire.log.base import Position, SessionHead, Stored
from turnwire.testing.contracts._event_log_kit import (
    A,
    B,
    OpenLog,
    append,
    bodies,
    check,
    expect,
    log_with,
    read,
    refused,
)


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
        for max_events, max_bytes in ((1, 1 << 20), (7, 1 << 20), (50, 1), (50, 30), (50, 1 << 20)):
            joined: list[Stored] = []
            while page := await log.read(
                A, Position(epoch, len(joined)), max_events=max_events, max_bytes=max_bytes
            ):
                assert len(page) <= max_events
                assert len(page) == 1 or sum(len(stored.body) for stored in page) <= max_bytes
                joined += page
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
