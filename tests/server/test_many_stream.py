"""One stream over many sessions: each session's events in order, one cursor for all, over every HTTP version."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.server.reading import (
    MARKERS,
    WAIT_S,
    Reader,
    Seen,
    after,
    ended,
    is_end,
    open_session,
    prompt,
    reading,
    types,
)
from tests.support.daemons import running_daemon

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire.server.readers import many_stream
from turnwire.session.inputs import Close

pytestmark = pytest.mark.anyio

TABS = 12


def by_session(events: list[Seen]) -> dict[str, list[int]]:
    got: dict[str, list[int]] = {}
    for each in events:
        if each.type not in MARKERS:
            got.setdefault(each.data["sessionId"], []).append(each.offset)
    return got


async def ends_of(stream: Reader, count: int) -> list[Seen]:
    """Return events until this number of turns have ended."""
    events: list[Seen] = []
    for _ in range(count):
        events += await stream.until(is_end)
    return events


@pytest.mark.guarantee("G9")
async def test_a_dozen_tabs_live_on_one_stream_and_come_back_with_one_cursor(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        tabs = [await open_session(running, f"tab{number}") for number in range(TABS)]
        starts = {each: (await running.daemon.node.head(each)).head for each in tabs}
        path = "/events?" + "&".join(f"session={each}" for each in tabs)
        async with running.client() as client, reading(client, path) as stream:
            for each in tabs:
                await prompt(running, each, "say 50 word")
            events = await ends_of(stream, TABS)
            assert len({each.id for each in events}) == len(events)
            cursor = events[-1].id
        for each in tabs:
            await prompt(running, each, "say 50 more", "p2")
            await ended(running, each)
        async with running.client() as client, reading(client, path, **after(cursor)) as stream:
            missed = await stream.until(lambda each: each.type == "replay_complete")
            assert missed[-1].data["replayedCount"] == len(missed) - 1
        heads = {each: (await running.daemon.node.head(each)).head for each in tabs}
        got = by_session(events + missed)
        assert got == {each: list(range(starts[each] + 1, heads[each] + 1)) for each in tabs}


@pytest.mark.guarantee("G9")
async def test_the_cursor_of_many_sessions_outlives_the_daemon(tmp_path: Path) -> None:
    path = "/events?sessions=a,b"
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        a, b = [await open_session(running, each) for each in ("a", "b")]
        async with reading(client, path) as stream:
            cursor = stream.sse.last_event_id
            starts = {each: (await running.daemon.node.head(each)).head for each in (a, b)}
        await prompt(running, a, "say 3 word")
        await ended(running, a)
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        await prompt(running, b, "say 3 word")
        await ended(running, b)
        async with reading(client, path, **after(cursor)) as stream:
            events = await stream.until(lambda each: each.type == "replay_complete")
        assert "state_resync_required" not in types(events)
        for each in (a, b):
            head = (await running.daemon.node.head(each)).head
            assert by_session(events)[each] == list(range(starts[each] + 1, head + 1))


async def test_a_stream_of_all_sessions_shows_those_that_come_and_go(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        old = await open_session(running, "old")
        start = (await running.daemon.node.head(old)).head
        async with reading(client, "/events") as stream:
            new = await open_session(running, "new")
            await prompt(running, new, "say 3 word")
            events = await stream.until(is_end)
            await prompt(running, old, "say 3 word")
            events += await stream.until(is_end)
            await running.daemon.node.submit(new, Close(at=1, reason="over"))
            events += await stream.until(lambda each: each.type == "session_closed")
            await prompt(running, old, "say 3 more", "p2")
            events += await stream.until(is_end)
        got = by_session(events)
        assert got[new] == list(range(1, len(got[new]) + 1))
        assert got[old] == list(range(start + 1, start + len(got[old]) + 1))
        async with reading(client, "/events", **after(events[-1].id)) as stream:
            later = await open_session(running, "later")
            came = await stream.until(lambda each: each.data.get("sessionId") == later)
            assert set(by_session(came)) == {later}


async def test_a_stream_of_the_named_sessions_ends_when_all_of_them_are_over(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        a, b = [await open_session(running, each) for each in ("a", "b")]
        async with reading(client, "/events?sessions=a,b") as stream:
            await running.daemon.node.submit(a, Close(at=1, reason="over"))
            events = await stream.until(lambda each: each.type == "session_closed")
            assert events[-1].data["sessionId"] == a
            await running.daemon.node.submit(b, Close(at=1, reason="over"))
            rest = await stream.to_the_end()
            assert [each.data["sessionId"] for each in rest if each.type == "session_closed"] == [b]


@pytest.mark.guarantee("G9")
async def test_a_session_whose_cursor_is_lost_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        node = running.daemon.node
        trimmed, deleted, again, kept = [await open_session(running, each) for each in ("t", "d", "a", "k")]
        path = "/events?sessions=t,d,a,k"
        async with reading(client, path) as stream:
            cursor = stream.sse.last_event_id
        await prompt(running, trimmed, "say 30 word")
        await ended(running, trimmed)
        first = await node.retain(trimmed, keep_events=3)
        await node.delete(deleted)
        await node.delete(again)
        await open_session(running, again)
        await prompt(running, kept, "say 3 word")
        await ended(running, kept)
        async with reading(client, path, **after(cursor)) as stream:
            events = await stream.until(lambda each: each.type == "replay_complete")
        told = {each.data["sessionId"]: each.data for each in events if each.type == "state_resync_required"}
        assert {each: (data["reason"], data.get("detail")) for each, data in told.items()} == {
            trimmed: ("ring_evicted", "trimmed"),
            deleted: ("deleted", None),
            again: ("epoch_reset", "epoch"),
        }
        assert told[trimmed]["earliestAvailableId"] == first == by_session(events)[trimmed][0]
        assert by_session(events)[again][0] == 1
        assert by_session(events)[kept]


@pytest.mark.guarantee("G9")
async def test_with_more_sessions_than_a_cursor_names_a_quiet_time_is_known_and_another_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_stream, "NAMED", 2)
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        sessions = [await open_session(running, f"s{number}") for number in range(5)]
        async with reading(client, "/events") as stream:
            await prompt(running, sessions[4], "say 3 word")
            cursor = (await stream.until(is_end))[-1].id
        head = await ended(running, sessions[4])
        await prompt(running, sessions[4], "say 3 more", "p2")
        await ended(running, sessions[4])
        async with reading(client, "/events", **after(cursor)) as stream:
            events = await stream.until(lambda each: each.type == "replay_complete")
            assert "state_resync_required" not in types(events)
            assert by_session(events)[sessions[4]][0] == head + 1
        await prompt(running, sessions[0], "say 3 word")
        await ended(running, sessions[0])
        async with reading(client, "/events", **after(cursor)) as stream:
            told = await stream.next()
            assert told.type == "state_resync_required"
            assert told.data["reason"] == "unnamed"
            assert "sessionId" not in told.data


async def test_a_loud_session_does_not_keep_a_quiet_one_out(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        loud, quiet = [await open_session(running, each) for each in ("loud", "quiet")]
        async with reading(client, "/events?sessions=loud,quiet") as stream:
            await prompt(running, loud, "flood 20000")
            await prompt(running, quiet, "say 1 word")
            events = await stream.until(lambda each: is_end(each) and each.data["sessionId"] == quiet)
            assert not any(is_end(each) and each.data["sessionId"] == loud for each in events)


async def test_a_token_for_one_session_sees_only_that_one(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        mine, other = [await open_session(running, each) for each in ("mine", "other")]
        _, secret = await running.daemon.tokens.issue("guest", Role.OBSERVER, SessionId(mine))
        async with running.client(headers={"Authorization": f"Bearer {secret}"}) as guest:
            assert (await guest.get("/events?session=other")).status_code == 403
            async with reading(guest, "/events") as stream:
                await prompt(running, other, "say 1 word")
                await ended(running, other)
                await prompt(running, mine, "say 1 word")
                assert set(by_session(await stream.until(is_end))) == {mine}


async def test_what_is_no_cursor_of_the_stream_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["x", "5", "m1....", "m1..!!.AAAAAAAA.1", "m1...AAAAAAAA.x", "m2...AAAAAAAA.1"]
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        for cursor in cases:
            with subtests.test(repr(cursor)):
                answer = await client.get("/events", headers=after(cursor))
                assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


async def test_an_unknown_session_is_refused_to_those_who_cannot_have_seen_it(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        assert (await client.get("/events?session=nobody")).status_code == 404


async def test_a_deleted_session_leaves_the_stream_of_all_alive(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        gone, kept = [await open_session(running, each) for each in ("gone", "kept")]
        async with reading(client, "/events") as stream:
            await prompt(running, gone, "say 1 word")
            await stream.until(is_end)
            with anyio.fail_after(WAIT_S):
                await running.daemon.node.delete(gone)
            again = await open_session(running, "gone")
            await prompt(running, kept, "say 1 word")
            events = await stream.until(lambda each: is_end(each) and each.data["sessionId"] == kept)
            created = [each for each in events if each.type == "session_created"]
            assert [each.data["sessionId"] for each in created] == [again]
