"""The event stream of one session: all of it, in order, from any cursor, over every server and HTTP version."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.server.reading import (
    WAIT_S,
    after,
    ended,
    is_end,
    offsets,
    open_session,
    prompt,
    reading,
    types,
)
from tests.support.daemons import running_daemon

from turnwire.limits import Limits
from turnwire.session.inputs import Close

pytestmark = pytest.mark.anyio


async def test_every_subscriber_sees_every_event_of_a_turn_in_one_order_and_its_end_last(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        path = f"/session/{session_id}/events"
        async with reading(client, path) as first, reading(client, path) as second:
            await prompt(running, session_id, "say 40 word\ntool t1\nsay 2 done")
            one, two = await first.until(is_end), await second.until(is_end)
        head = await ended(running, session_id)
        assert one == two
        assert offsets(one) == list(range(head - len(one) + 1, head + 1))
        assert [int(each.id or 0) for each in one] == offsets(one)
        assert one[-1].type == "turn_complete"
        assert one[-1].envelope["promptId"] == "p1"
        said = [each for each in one if "word" in str(each.data)]
        assert len(said) >= 40


async def test_a_stream_is_made_for_proxies_and_beats_when_it_is_quiet(tmp_path: Path) -> None:
    limits = Limits(heartbeat_s=0.1)
    async with (
        running_daemon(tmp_path / "d", limits=limits) as running,
        running.client(headers={"Accept-Encoding": "gzip, br"}) as client,
    ):
        session_id = await open_session(running)
        async with reading(client, f"/session/{session_id}/events") as stream:
            headers = stream.response.headers
            assert headers["content-type"] == "text/event-stream"
            assert headers["cache-control"] == "no-cache, no-transform"
            assert headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in headers
            epoch = (await running.daemon.node.head(session_id)).epoch
            assert headers["turnwire-epoch"] == headers["x-qwen-event-epoch"] == epoch
            await stream.until_bytes(b": heartbeat\n\n: heartbeat\n\n")
            assert stream.bytes.startswith(b"retry: 3000\n\n")


@pytest.mark.guarantee("G9")
async def test_a_cursor_gives_everything_after_it_once_and_then_what_comes(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        await prompt(running, session_id, "say 20 word")
        head = await ended(running, session_id)
        path = f"/session/{session_id}/events"
        async with reading(client, path, **after(5)) as stream:
            missed = await stream.until(lambda each: each.type == "replay_complete")
            assert offsets(missed) == list(range(6, head + 1))
            assert any(is_end(each) for each in missed)
            assert missed[-1].data["replayedCount"] == head - 5
            assert missed[-1].data["lastReplayedEventId"] == head
            assert "id" not in missed[-1].envelope
            await prompt(running, session_id, "say 3 more", "p2")
            came = await stream.until(is_end)
            assert offsets(came) == list(range(head + 1, head + len(came) + 1))
            assert "replay_complete" not in types(came)
        async with reading(client, f"{path}?after=5") as by_query:
            assert (await by_query.next()).offset == 6
        async with reading(client, f"{path}?after=5", **after(7)) as by_both:
            assert (await by_both.next()).offset == 8


async def test_a_cursor_at_the_head_is_complete_at_once(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        head = await ended(running, session_id)
        async with reading(client, f"/session/{session_id}/events", **after(head)) as stream:
            event = await stream.next()
            assert (event.type, event.data["replayedCount"]) == ("replay_complete", 0)
            assert "lastReplayedEventId" not in event.data


async def test_without_a_cursor_a_stream_begins_with_what_comes(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        head = await ended(running, session_id)
        async with reading(client, f"/session/{session_id}/events") as stream:
            # Cut before the first event, a client comes back with this and misses nothing.
            assert stream.sse.last_event_id == str(head)
            await prompt(running, session_id, "hello")
            assert (await stream.next()).offset == head + 1


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("reason", ["trimmed", "ahead", "epoch"])
async def test_a_cursor_that_cannot_be_honoured_is_told_once_and_the_stream_goes_on(
    tmp_path: Path, reason: str
) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        await prompt(running, session_id, "say 20 word")
        head = await ended(running, session_id)
        first = await running.daemon.node.retain(session_id, keep_events=5) if reason == "trimmed" else 1
        cursor = {"trimmed": 2, "ahead": head + 1, "epoch": 3}[reason]
        headers = after(cursor) | ({"Turnwire-Epoch": "another-life"} if reason == "epoch" else {})
        async with reading(client, f"/session/{session_id}/events", **headers) as stream:
            told, *events = await stream.until(lambda each: each.type == "replay_complete")
            assert told.type == "state_resync_required"
            assert told.data["reason"] == ("ring_evicted" if reason == "trimmed" else "epoch_reset")
            assert told.data["detail"] == reason
            assert told.data["lastDeliveredId"] == cursor
            assert told.data["earliestAvailableId"] == first
            assert offsets(events) == list(range(first, head + 1))
            await prompt(running, session_id, "more", "p2")
            came = await stream.until(is_end)
            assert offsets(came) == list(range(head + 1, head + len(came) + 1))
            assert "state_resync_required" not in types([*events, *came])


async def test_an_epoch_that_fits_is_honoured(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        epoch = (await running.daemon.node.head(session_id)).epoch
        headers = after(1) | {"X-Qwen-Event-Epoch": epoch}
        async with reading(client, f"/session/{session_id}/events", **headers) as stream:
            assert (await stream.next()).offset == 2


async def test_a_cursor_that_is_none_is_refused_before_the_stream_begins(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[str] = ["x", "-1", "1.5", "1" * 19, "²"]
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        for cursor in cases:
            with subtests.test(repr(cursor)):
                session_id = await open_session(running)
                answer = await client.get(f"/session/{session_id}/events", params={"after": cursor})
                assert answer.status_code == 400
                assert answer.json()["code"] == "bad_request"


async def test_an_unknown_session_has_no_stream(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        answer = await client.get("/session/nobody/events")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "session_not_found"


async def test_a_snapshot_and_the_events_after_it_have_no_seam(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        gate = tmp_path / "gate"
        work = f"plan one; two\nusage 3 10\ntitle A name\nask t1 yes,no\ngate {gate}\nflood 2000"
        await prompt(running, session_id, work)
        await prompt(running, session_id, "later", "p2")
        session = await running.daemon.node.session(session_id)
        with anyio.fail_after(WAIT_S):
            while not session.state.permissions:
                await session.tail.wait(session.tail.head)
        async with reading(client, f"/session/{session_id}/events?snapshot=1") as stream:
            snapshot = await stream.next()
            data = snapshot.data
            assert snapshot.type == "session_snapshot"
            assert data["hasActivePrompt"] is True
            assert data["activePromptId"] == "p1"
            assert data["state"] == "requires_action"
            assert data["title"] == "A name"
            assert data["usage"]["used"] == 3
            assert [each["promptId"] for each in data["queue"]] == ["p2"]
            assert [each["text"] for each in data["queue"]] == ["later"]
            (question,) = data["permissions"]
            assert question["requestId"] == session.state.permissions[0].request_id
            assert [each["optionId"] for each in question["options"]] == ["yes", "no"]
            assert list(data["plans"]) == ["main"]
            assert data["lastEventId"] == session.head
        gate.touch()
        async with reading(client, f"/session/{session_id}/events?snapshot=1") as stream:
            snapshot = await stream.next()
            await running.daemon.node.submit(session_id, Close(at=1, reason="over"))
            events = await stream.to_the_end()
            first = snapshot.data["lastEventId"] + 1
            assert offsets(events) == list(range(first, first + len(events)))


async def test_a_stream_ends_with_its_session_and_one_of_a_closed_session_after_its_events(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        path = f"/session/{session_id}/events"
        async with reading(client, path) as stream:
            await running.daemon.node.submit(session_id, Close(at=1, reason="over"))
            assert "session_closed" in types(await stream.to_the_end())
        head = (await running.daemon.node.head(session_id)).head
        async with reading(client, path, **after(0)) as replay:
            events = await replay.to_the_end()
            assert offsets(events) == list(range(1, head + 1))
            assert events[-1].type == "replay_complete"
        async with reading(client, path) as live:
            assert await live.to_the_end() == []
    async with (
        running_daemon(tmp_path / "d") as running,
        running.client() as client,
        reading(client, path, **after(0)) as replay,
    ):
        assert offsets(await replay.to_the_end()) == list(range(1, head + 1))


async def test_streams_end_themselves_when_the_daemon_stops(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        session_id = await open_session(running)
        async with reading(client, f"/session/{session_id}/events") as one, reading(client, "/events") as many:
            running.daemon.stopping.set()
            # httpx raises for a response that ends without its terminator.
            assert await one.to_the_end() == await many.to_the_end() == []
            assert one.bytes.endswith(b"retry: 1000\n: the daemon is about to stop\n\n")


async def test_a_reader_that_leaves_is_noticed_and_changes_nothing(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        gate = tmp_path / "gate"
        path = f"/session/{session_id}/events"
        async with running.client() as leaving, reading(leaving, path) as stream:
            await prompt(running, session_id, f"gate {gate}\nsay 3 word")
            await stream.next()
            assert b"turnwire_subscribers 1.0" in running.daemon.metrics.render()
        with anyio.fail_after(WAIT_S):
            while b"turnwire_subscribers 0.0" not in running.daemon.metrics.render():
                await anyio.lowlevel.checkpoint()
        gate.touch()
        await ended(running, session_id)
        async with running.client() as client, reading(client, path, **after(0)) as stream:
            assert (await stream.until(is_end))[-1].type == "turn_complete"


async def test_the_head_of_a_stream_is_an_answer_by_itself(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        for path in (f"/session/{await open_session(running)}/events", "/events"):
            with anyio.fail_after(WAIT_S):
                head = await client.head(path)
                after_it = await client.get("/health")
            assert (head.status_code, head.headers["content-type"], head.content) == (200, "text/event-stream", b"")
            assert after_it.status_code == 200
