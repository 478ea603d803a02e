"""Checks of L7 to L11: epochs, snapshots, trimming, many sessions, and failure.

Takes a way to open a log, gives nothing or an `AssertionError`. Never looks behind the contract.
"""

from __future__ import annotations

import anyio

from turnwire.errors import (
    AppendConflict,
    LocalProtocolError,
    LogUnavailable,
    PositionLost,
    SessionExists,
    SessionNotFound,
)
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import EventLog, Position, Snapshot
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
