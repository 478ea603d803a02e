"""The port over HTTP with a daemon that is played: cuts, repeats, gaps, lost positions and kinds not known here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw
from tests.support.played import Play, Request, frame, playing, said, streamed, told

from turnwire.client.http import Http
from turnwire.client.port import NewPrompt
from turnwire.client.remote import RemoteSession, open_remote
from turnwire.client.stream import EventStream
from turnwire.errors import (
    DaemonRefused,
    LocalProtocolError,
    PositionLost,
    RemoteProtocolError,
    SessionNotFound,
    Unauthenticated,
)
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.session.events import SessionUpdated
from turnwire.session.inputs import WhenBusy
from turnwire.session.state import NO_SETUP
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

EVENTS = "/session/s1/events?acp=agent"
"""The client requests the agent's form, so that its events are those of the log."""

pytestmark = pytest.mark.anyio

RETRY = b"retry: 10\n\n"
QUICK = Limits(heartbeat_s=0.1, reconnect_s=1, request_retry_s=0.5)

Answer = Callable[[Request], Play]


def a_daemon(events: Answer, rest: Answer = lambda _: told({})) -> Answer:
    """A daemon with one session whose stream is the test's."""

    def answer(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"v": 1, "features": ["idempotency_key", "non_blocking_prompt"]})
        if request.path == "/session/s1":
            return told({"sessionId": "s1", "eventEpoch": "e1", "lastEventId": 7, "isClosed": False})
        return events(request) if request.path == EVENTS else rest(request)

    return answer


@asynccontextmanager
async def found(answer: Answer, limits: Limits = QUICK) -> AsyncGenerator[tuple[RemoteSession, list[Request]]]:
    """Return a session of a played daemon, and the daemon's requests after it was found."""
    with anyio.fail_after(WAIT_S):
        async with playing(answer) as daemon, open_remote(daemon.url, "t", limits, None) as remote:
            session = await remote.find(SessionId("s1"))
            daemon.asked.clear()
            yield session, daemon.asked


async def take(session: RemoteSession, after: int, upto: int) -> list[int]:
    """Return the offsets of a follower, up to one."""
    offsets: list[int] = []
    async with aclosing(session.follow(after)) as pages:
        async for page in pages:
            offsets.extend(range(page.offset - len(page.events) + 1, page.offset + 1))
            if page.offset >= upto:
                break
    return offsets


@pytest.mark.guarantee("G9")
async def test_a_follower_that_is_cut_goes_on_from_its_cursor_without_gap_or_repeat() -> None:
    whole = b"".join(said(number) for number in range(1, 31))
    cuts = iter(range(40, 100_000, 173))

    def events(request: Request) -> Play:
        after = int(request.headers["last-event-id"])
        assert request.headers["turnwire-epoch"] == "e1"
        rest = whole[whole.index(said(after + 1)) :]
        return streamed(RETRY + rest[: next(cuts)], breaks=True)

    async with found(a_daemon(events)) as (session, asked):
        assert await take(session, 0, 30) == list(range(1, 31))
        assert len(asked) > 5


async def test_what_a_stream_repeats_is_dropped() -> None:
    async with found(a_daemon(lambda _: streamed(said(1), said(2), said(2), said(1), said(3)))) as (session, _):
        assert await take(session, 0, 3) == [1, 2, 3]


async def test_a_gap_is_an_error_and_never_skipped() -> None:
    async with found(a_daemon(lambda _: streamed(said(1), said(3)))) as (session, _):
        with pytest.raises(RemoteProtocolError, match="left out"):
            await take(session, 0, 3)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"reason": "ring_evicted", "detail": "trimmed"}, "trimmed"),
        ({"reason": "epoch_reset", "detail": "ahead"}, "ahead"),
        ({"reason": "trimmed"}, "trimmed"),
    ],
    ids=["behind", "ahead", "an older daemon"],
)
async def test_a_position_that_the_daemon_lost_is_told(told: dict[str, str], why: str) -> None:
    lost = frame(None, "state_resync_required", {**told, "lastDeliveredId": 1, "earliestAvailableId": 9})
    async with found(a_daemon(lambda _: streamed(RETRY + lost + said(9), stays_open=True))) as (session, _):
        with pytest.raises(PositionLost) as caught:
            await take(session, 1, 9)
        assert (caught.value.context["why"], caught.value.context["earliest"]) == (why, 9)


async def test_a_kind_of_event_that_is_not_known_here_takes_its_place_and_is_no_error() -> None:
    newer = frame(2, "moon_phase_changed", {"phase": "full"})
    stream = streamed(said(1) + newer + said(3) + frame(None, "replay_complete"), stays_open=True)
    async with found(a_daemon(lambda _: stream)) as (session, _):
        pages: list[tuple[int, int]] = []
        async with aclosing(session.follow(0)) as following:
            async for page in following:
                assert all(isinstance(each, SessionUpdated) for each in page.events)
                pages.append((page.offset, len(page.events)))
                if page.offset == 3:
                    break
        assert pages == [(1, 1), (2, 0), (3, 1)]


async def test_a_stream_that_goes_silent_is_opened_again() -> None:
    plays = iter([streamed(said(1), stays_open=True), streamed(said(2), stays_open=True)])
    async with found(a_daemon(lambda _: next(plays)), Limits(heartbeat_s=0.05)) as (session, asked):
        assert await take(session, 0, 2) == [1, 2]
        assert [each.headers["last-event-id"] for each in asked] == ["0", "1"]


async def test_waits_begin_at_the_time_that_the_daemon_asks_for_and_double() -> None:
    clock, opened = ManualClock(), list[float]()

    def events(_: Request) -> Play:
        opened.append(clock.monotonic())
        return streamed(b"retry: 2000\n\n", breaks=True) if len(opened) < 4 else streamed(said(8), stays_open=True)

    async def pass_time() -> None:
        while True:
            await clock.wait_for_sleepers(1)
            clock.advance(0.5)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(WAIT_S):
        async with playing(a_daemon(events)) as daemon, anyio.create_task_group() as tasks:
            tasks.start_soon(pass_time)
            http = Http(daemon.url, clock=clock, chance=lambda: 1.0)
            async with aclosing(EventStream(http, "s1", "e1", 7).frames()) as batches:
                assert [each.id for each in await anext(batches)] == [8]
            await http.aclose()
            tasks.cancel_scope.cancel()
    assert [later - earlier for earlier, later in pairwise(opened)] == [2, 4, 8]


async def test_a_connection_that_brought_something_is_replaced_at_once() -> None:
    clock, plays = (
        ManualClock(),
        iter([streamed(b"retry: 60000\n\n" + said(8)), streamed(said(9), stays_open=True)]),
    )
    with anyio.fail_after(WAIT_S):
        async with playing(a_daemon(lambda _: next(plays))) as daemon, anyio.create_task_group() as tasks:
            http = Http(daemon.url, clock=clock)

            async def read() -> None:
                async with aclosing(EventStream(http, "s1", "e1", 7).frames()) as batches:
                    assert [each.id for each in await anext(batches)] == [8]
                    assert [each.id for each in await anext(batches)] == [9]

                await http.aclose()

            tasks.start_soon(read)
            await clock.wait_for_sleepers(1)
            clock.advance(0.05)


async def test_a_daemon_that_stays_away_is_told_to_the_follower_in_the_end() -> None:
    async with found(a_daemon(lambda _: Play(502))) as (session, asked):
        with pytest.raises(DaemonRefused, match="502"):
            await take(session, 0, 1)
        assert len(asked) >= 1


async def test_a_credential_that_is_revoked_ends_the_follower_at_once() -> None:
    plays = iter([streamed(said(1)), told({"code": "unauthenticated", "error": "no"}, 401)])
    async with found(a_daemon(lambda _: next(plays))) as (session, asked):
        with pytest.raises(Unauthenticated):
            await take(session, 0, 2)
        assert len(asked) == 2


async def test_a_session_that_is_deleted_ends_its_followers_and_one_that_never_was_is_refused() -> None:
    gone = told({"code": "session_not_found", "error": "no"}, 404)
    plays = iter([streamed(said(1)), gone, gone])
    async with found(a_daemon(lambda _: next(plays))) as (session, _):
        assert await take(session, 0, 99) == [1]
        with pytest.raises(SessionNotFound):
            await take(session, 0, 99)


async def test_a_session_that_was_closed_before_ends_its_followers() -> None:
    closed = told({"sessionId": "s1", "eventEpoch": "e1", "lastEventId": 7, "isClosed": True})

    def answer(request: Request) -> Play:
        if request.path == "/session/s1":
            return closed
        ended = streamed(RETRY + frame(None, "replay_complete"))
        return ended if request.path == EVENTS else told({"features": []})

    # A stream that is silent for a heartbeat is opened again, and a busy machine is that slow.
    async with found(answer, Limits(reconnect_s=1)) as (session, asked):
        assert await take(session, 7, 99) == []
        assert [each.path for each in asked] == [EVENTS, "/session/s1"]


@pytest.mark.guarantee("G7")
async def test_a_prompt_whose_answer_is_lost_is_sent_again_with_the_same_key() -> None:
    accepted = {"promptId": "p1", "lastEventId": 7, "eventEpoch": "e1"}
    plays = iter([Play(202, (b"{",), {"content-length": "99"}, breaks=True), told(accepted, 202)])
    async with found(a_daemon(lambda _: streamed(), lambda _: next(plays))) as (session, asked):
        content = Raw(b'[{"type":"text","text":"hi"}]')
        given = await session.prompt(NewPrompt(content, WhenBusy.REJECT, request_id="mine"))
        assert (given.prompt_id, given.after_offset) == ("p1", 7)
        assert len(asked) == 2
        assert asked[0].headers["idempotency-key"] == asked[1].headers["idempotency-key"]
        assert asked[0].json() == {
            "prompt": [{"type": "text", "text": "hi"}],
            "whenBusy": "reject",
            "promptRequestId": "mine",
        }
        with pytest.raises(LocalProtocolError, match="key"):
            await session.prompt(NewPrompt(content, key="gr\u00fcn"))


async def test_calls_about_a_session_go_to_their_routes() -> None:
    async with found(a_daemon(lambda _: streamed(), lambda _: told({"won": False}))) as (session, asked):
        prompt_id = PromptId("p/1")
        await session.cancel(None)
        await session.cancel(prompt_id)
        await session.edit(prompt_id, Raw(b'[{"type":"text"}]'), 0)
        await session.remove(prompt_id)
        await session.settle(prompt_id)
        answered = Raw(b'{"outcome":{"outcome":"cancelled"}}')
        assert not await session.answer(PermissionId("q1"), answered, None)
        await session.answer(PermissionId("q1"), Raw(b'{"action":"decline"}'), None)
        await session.close()
        assert [(each.method, each.path, each.body) for each in asked] == [
            ("POST", "/session/s1/cancel", b"{}"),
            ("POST", "/session/s1/cancel", b'{"promptId":"p/1"}'),
            ("PATCH", "/session/s1/queue/p/1", b'{"content":[{"type":"text"}],"position":0}'),
            ("DELETE", "/session/s1/queue/p/1", b""),
            ("POST", "/session/s1/settle", b'{"promptId":"p/1"}'),
            ("POST", "/session/s1/permissions/q1", bytes(answered)),
            ("POST", "/session/s1/permissions/q1", b'{"answer":{"action":"decline"}}'),
            ("DELETE", "/session/s1", b""),
        ]


async def test_a_session_that_was_made_although_the_answer_was_lost_is_not_made_twice() -> None:
    made: list[str] = []

    def answer(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"features": []})
        if request.method == "POST":
            made.append(request.json()["sessionId"])
            if len(made) == 1:
                return Play(200, (b"{",), {"content-length": "99"}, breaks=True)
            return told({"code": "session_id_conflict", "error": "there is one"}, 409)
        return told({"sessionId": made[0], "eventEpoch": "e1", "lastEventId": 3})

    with anyio.fail_after(WAIT_S):
        async with playing(answer) as daemon, open_remote(daemon.url, "t", QUICK, None) as remote:
            session = await remote.create("/work", NO_SETUP)
            assert (session.session_id, session.start, made[0]) == (made[1], 0, made[1])


async def test_sessions_are_listed_page_by_page() -> None:
    def answer(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"features": []})
        if "cursor" not in request.path:
            return told({"sessions": [{"sessionId": "a"}, {"sessionId": "b"}], "nextCursor": "b&="})
        assert request.path.endswith("cursor=b%26%3D")
        return told({"sessions": [{"sessionId": "c"}]})

    with anyio.fail_after(WAIT_S):
        async with playing(answer) as daemon, open_remote(daemon.url, "t", QUICK, None) as remote:
            assert await remote.sessions() == ["a", "b", "c"]


async def test_a_client_id_that_the_session_has_forgotten_is_left_out() -> None:
    def answer(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"features": []})
        if request.path == "/session":
            return told({"sessionId": "s1", "eventEpoch": "e1", "lastEventId": 1, "clientId": "c1"})
        if "turnwire-client-id" in request.headers:
            return told({"code": "invalid_client_id", "error": "who?"}, 400)
        return Play(204)

    with anyio.fail_after(WAIT_S):
        async with playing(answer) as daemon, open_remote(daemon.url, "t", QUICK, None) as remote:
            session = await remote.create("/work", NO_SETUP)
            await session.cancel(None)
            await session.cancel(None)
            named = [each.headers.get("turnwire-client-id") for each in daemon.asked[2:]]
            assert named == ["c1", None, None]
