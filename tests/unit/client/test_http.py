"""Requests to a daemon: the credential, retries, and requests that are never repeated."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest
from tests.support.played import Play, Request, playing, streamed, told

from turnwire.client.http import Http, checked_url, segment
from turnwire.errors import (
    ConfigError,
    DaemonRefused,
    DaemonUnreachable,
    QueueFull,
    RemoteProtocolError,
    ShuttingDown,
    Unauthenticated,
)
from turnwire.hosting.backoff import Backoff
from turnwire.limits import Limits
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWIRE_TOKEN", raising=False)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host", "http://", "http://user:secret@host", "http://host?token=x", "http://host#x"),
        *("http://host:0", "http://host:99999", "http://[::1"),
    ],
)
async def test_a_url_that_is_none_is_refused_with_what_to_give(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        checked_url(url)


async def test_ids_stay_one_segment_of_the_path() -> None:
    assert segment("../a b?#") == "..%2Fa%20b%3F%23"


@pytest.mark.parametrize("token", ["line\nend", "two words", "gr\u00fcn"])
async def test_a_token_that_cannot_be_one_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Http("http://127.0.0.1:1", token)


@pytest.mark.guarantee("G13")
async def test_the_token_goes_in_the_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_TOKEN", "from-environment")

    def redirect(request: Request) -> Play:
        return Play(307, headers={"location": f"{other.url}/elsewhere"})

    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: told({})) as other, playing(redirect) as daemon:
            for token, sent in ((None, "from-environment"), ("given", "given")):
                http = Http(daemon.url, token)
                with pytest.raises(DaemonRefused, match="redirects"):
                    await http.ask("GET", "/x")
                await http.aclose()
                assert daemon.asked[-1].headers["authorization"] == f"Bearer {sent}"
                assert sent not in daemon.asked[-1].path
            assert other.asked == []


async def test_a_daemon_that_is_not_there_is_told_with_what_to_do() -> None:
    http = Http("http://127.0.0.1:9")
    with anyio.fail_after(WAIT_S), pytest.raises(DaemonUnreachable, match="turnwire serve"):
        await http.ask("GET", "/x", patient=False)
    await http.aclose()


async def test_a_daemon_that_is_not_there_is_asked_again_for_a_while() -> None:
    clock = ManualClock()
    http = Http("http://127.0.0.1:9", limits=Limits(request_retry_s=5), clock=clock, chance=lambda: 1.0)
    waits: list[float] = []

    async def pass_time() -> None:
        while True:
            await clock.wait_for_sleepers(1)
            before = clock.monotonic()
            while clock.sleepers:
                clock.advance(0.1)
            waits.append(round(clock.monotonic() - before, 1))
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_time)
            with pytest.raises(DaemonUnreachable):
                await http.ask("POST", "/x", {})
            tasks.cancel_scope.cancel()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6]
    await http.aclose()


async def test_a_refusal_of_the_moment_is_waited_out_as_long_as_it_asks() -> None:
    clock = ManualClock()
    answers = iter([told({"code": "shutting_down", "error": "x"}, 503, retry_after="3"), told({"ok": 1})])
    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: next(answers)) as daemon, anyio.create_task_group() as tasks:
            http = Http(daemon.url, clock=clock)
            got: list[bytes] = []

            async def ask() -> None:
                got.append((await http.ask("POST", "/x", {})).body)

            tasks.start_soon(ask)
            await clock.wait_for_sleepers(1)
            clock.advance(2.9)
            await quiet()
            assert len(daemon.asked) == 1
            clock.advance(0.2)
            while not got:
                await anyio.lowlevel.checkpoint()
            assert got == [b'{"ok":1}']
            await http.aclose()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (told({"code": "prompt_queue_full", "error": "x"}, 503, retry_after="1"), QueueFull),
        (told({"code": "unauthenticated", "error": "x"}, 401), Unauthenticated),
        (told({"code": "shutting_down", "error": "x"}, 503, retry_after="99"), ShuttingDown),
        (Play(504), DaemonRefused),
    ],
)
async def test_what_is_not_about_the_moment_or_takes_too_long_is_told_at_once(
    answer: Play, kind: type[Exception]
) -> None:
    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: answer) as daemon:
            http = Http(daemon.url)
            with pytest.raises(kind):
                await http.ask("POST", "/x", {})
            assert len(daemon.asked) == 1
            await http.aclose()


async def test_a_request_whose_answer_was_lost_is_repeated_only_if_that_is_harmless() -> None:
    lost = Play(202, (b"{",), {"content-length": "10"}, breaks=True)
    with anyio.fail_after(WAIT_S):
        async with playing(lambda request: lost if len(daemon.asked) < 3 else told({})) as daemon:
            http = Http(daemon.url)
            with pytest.raises(DaemonUnreachable, match="answer"):
                await http.ask("POST", "/x", {})
            assert len(daemon.asked) == 1
            assert (await http.ask("POST", "/x", {"a": 1}, repeatable=True)).body == b"{}"
            assert [each.body for each in daemon.asked] == [b"{}", b'{"a":1}', b'{"a":1}']
            await http.aclose()


async def test_an_answer_that_is_no_answer_of_the_contract_is_told() -> None:
    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: Play(200, (b"<html>",))) as daemon:
            http = Http(daemon.url)
            with pytest.raises(RemoteProtocolError, match="turnwire daemon"):
                await http.capabilities()
            await http.aclose()


async def test_a_stream_that_goes_silent_is_given_up() -> None:
    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: streamed(b": hi\n\n", stays_open=True)) as daemon:
            http = Http(daemon.url, limits=Limits(heartbeat_s=0.05))
            async with aclosing(http.stream("/x")) as stream:
                assert await anext(stream) == b": hi\n\n"
                with pytest.raises(DaemonUnreachable):
                    await anext(stream)
            await http.aclose()


async def test_a_stream_that_never_begins_is_given_up() -> None:
    with anyio.fail_after(WAIT_S):
        async with playing(lambda _: streamed(stays_open=True)) as daemon:
            http = Http(daemon.url, limits=Limits(heartbeat_s=0.05))
            async with aclosing(http.stream("/x")) as stream:
                with pytest.raises(DaemonUnreachable):
                    await anext(stream)
            await http.aclose()


async def test_waits_double_up_to_the_most_and_are_spread_by_chance() -> None:
    full = Backoff(1.0, 10.0, lambda: 1.0)
    assert [full.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    full.reset()
    assert full.next_s() == 1
    half = Backoff(1.0, 10.0, lambda: 0.5)
    assert [half.next_s() for _ in range(2)] == [0.5, 1.0]
    assert 0 <= Backoff(1.0, 10.0).next_s() <= 1
