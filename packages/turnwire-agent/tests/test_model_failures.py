"""Failed requests: the number of retries, their reports, and the error messages."""

from __future__ import annotations

import logging

import anyio
import pytest
from anyio.lowlevel import checkpoint

from agent_kit.model_kit import ANTHROPIC, FAKES, HELLO, LIMIT_S, OPENAI, Fake, answer, asked_at, asking
from turnwire.errors import ModelFailed
from turnwire_agent.library_model import LONGEST_ASKED_WAIT_S, TRIES
from turnwire_agent.model import Piece, Text
from turnwire_testing import ManualClock
from turnwire_testing.models import Cut, Fail, FakeAnthropic, FakeOpenAI, Hang, Reply, Say, Think
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * LIMIT_S)]

SECRET = "words of the provider"


class HurriedClock(ManualClock):
    """A clock for which every wait is over at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await checkpoint()


class Retries:
    """The reported retries."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.waits: list[float] = []

    def __call__(self, reason: str, attempt: int, wait_s: float) -> None:
        self.told.append((reason, attempt))
        self.waits.append(wait_s)


@pytest.mark.parametrize(("fake", "name"), FAKES)
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ([Fail(429)], "rate_limited"),
        ([Fail(500)], "overloaded"),
        ([Fail(502)], "overloaded"),
        ([Fail(503)], "overloaded"),
        ([Fail(529)], "overloaded"),
        ([Cut()], "cut"),
        ([Hang(anyio.Event()), Cut()], "cut"),
    ],
    ids=["429", "500", "502", "503", "529", "cut-before-the-status", "cut-after-the-status"],
)
async def test_what_may_pass_is_tried_again(fake: Fake, name: str, reply: Reply, reason: str) -> None:
    if isinstance(reply[0], Hang):
        # The head of the reply is there, and nothing of the answer.
        reply[0].released.set()
    retries = Retries()
    async with asking(fake, [reply, reply, [Say("There")]], name, clock=HurriedClock()) as (server, model):
        got = await answer(model, on_retry=retries)
    assert got.text == "There"
    assert retries.told == [(reason, 2), (reason, 3)]
    assert len(server.exchanges) == 3


@pytest.mark.parametrize(("fake", "name"), FAKES)
@pytest.mark.parametrize("asked_s", [7, 0.25])
async def test_the_wait_that_the_provider_asks_for_is_kept(fake: Fake, name: str, asked_s: float) -> None:
    retries, clock = Retries(), HurriedClock()
    async with asking(fake, [[Fail(429, retry_after=asked_s)], [Say("There")]], name, clock=clock) as (
        _,
        model,
    ):
        await answer(model, on_retry=retries)
    assert retries.waits == [asked_s]
    assert clock.monotonic() == asked_s


async def test_nobody_waits_as_long_as_a_provider_likes() -> None:
    retries = Retries()
    async with asking(
        FakeOpenAI, [[Fail(429, retry_after=LONGEST_ASKED_WAIT_S + 1)]], OPENAI, clock=HurriedClock()
    ) as (_, model):
        with pytest.raises(ModelFailed) as failed:
            await answer(model, on_retry=retries)
    assert failed.value.reason == "rate_limited"
    assert retries.told == []


async def test_the_tries_come_to_an_end_and_their_waits_grow_within_bounds() -> None:
    retries = Retries()
    async with asking(FakeAnthropic, [[Fail(529)]] * TRIES, ANTHROPIC, clock=HurriedClock()) as (server, model):
        with pytest.raises(ModelFailed, match="overloaded") as failed:
            await answer(model, on_retry=retries)
    assert failed.value.reason == "overloaded"
    assert [attempt for _, attempt in retries.told] == [2, 3, 4, 5]
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(retries.waits, [1, 2, 4, 8], strict=True))
    assert len(server.exchanges) == TRIES


@pytest.mark.parametrize(
    ("fake", "name", "fail", "reason", "words"),
    [
        (FakeOpenAI, OPENAI, Fail(401), "unauthorized", "check OPENAI_API_KEY"),
        (FakeAnthropic, ANTHROPIC, Fail(401), "unauthorized", "check ANTHROPIC_API_KEY"),
        (FakeOpenAI, OPENAI, Fail(404), "bad_request", "check its name"),
        (FakeAnthropic, ANTHROPIC, Fail(400, text=SECRET), "bad_request", "400 invalid_request_error"),
        (FakeOpenAI, OPENAI, Fail(400, text=SECRET), "bad_request", "400 invalid_request_error"),
        (FakeOpenAI, OPENAI, Fail(400, code="context_length_exceeded"), "too_long", "shorten it"),
        (FakeAnthropic, ANTHROPIC, Fail(400, text="prompt is too long: 9 tokens > 8"), "too_long", "shorten it"),
        (FakeOpenAI, OPENAI, Fail(429, code="insufficient_quota"), "rate_limited", "see the account"),
    ],
)
async def test_what_will_not_pass_is_told_at_once(
    fake: Fake, name: str, fail: Fail, reason: str, words: str
) -> None:
    retries = Retries()
    async with fake([[fail]]) as server, asked_at(server.url, name, clock=HurriedClock()) as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model, on_retry=retries)
    assert failed.value.reason == reason
    assert words in str(failed.value)
    assert fail.text not in str(failed.value)
    assert retries.told == []
    assert len(server.exchanges) == 1


async def test_the_words_of_the_provider_are_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "turnwire_agent"):
        async with FakeOpenAI([[Fail(400, text=SECRET)]]) as server, asked_at(server.url, OPENAI) as model:
            with pytest.raises(ModelFailed):
                await answer(model)
    assert SECRET in caplog.text


@pytest.mark.parametrize(("fake", "name"), FAKES)
@pytest.mark.parametrize("break_", [Cut(), Fail(529)], ids=["cut", "error-in-the-stream"])
@pytest.mark.parametrize("seen", [Say("Hello"), Think("Hm")], ids=["text", "thought"])
async def test_an_answer_that_breaks_after_a_piece_is_cut_and_not_asked_again(
    fake: Fake, name: str, break_: Cut | Fail, seen: Say | Think
) -> None:
    retries = Retries()
    pieces: list[Piece] = []
    async with fake([[seen, break_]]) as server, asked_at(server.url, name, clock=HurriedClock()) as model:

        async def read() -> None:
            async with model.stream("", [HELLO], [], on_retry=retries) as stream:
                while True:
                    pieces.append(await anext(stream))

        with pytest.raises(ModelFailed) as failed:
            await read()
    assert failed.value.reason == "cut"
    assert "".join(getattr(piece, "text", "") for piece in pieces) == seen.text
    assert retries.told == []
    assert len(server.exchanges) == 1


async def test_a_stream_that_ends_without_the_end_of_the_answer_is_cut() -> None:
    async with asking(FakeAnthropic, [[Say("Hello"), Cut(clean=True)]], ANTHROPIC) as (_, model):
        with pytest.raises(ModelFailed) as failed:
            await answer(model)
    assert failed.value.reason == "cut"


async def test_an_error_in_the_stream_before_any_piece_is_tried_again() -> None:
    released = anyio.Event()
    released.set()
    retries = Retries()
    async with asking(
        FakeAnthropic, [[Hang(released), Fail(529)], [Say("There")]], ANTHROPIC, clock=HurriedClock()
    ) as (_, model):
        assert (await answer(model, on_retry=retries)).text == "There"
    assert retries.told == [("overloaded", 2)]


async def test_nobody_at_the_address_is_told_with_the_address(free_tcp_port: int) -> None:
    retries = Retries()
    url = f"http://name:word@127.0.0.1:{free_tcp_port}/v1"
    async with asked_at(url, OPENAI, clock=HurriedClock()) as model:
        with pytest.raises(ModelFailed, match=f"127.0.0.1:{free_tcp_port}") as failed:
            await answer(model, on_retry=retries)
    assert failed.value.reason == "unreachable"
    assert "word" not in str(failed.value)
    assert len(retries.told) == TRIES - 1


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_a_cancel_in_mid_stream_closes_the_connection_at_once(fake: Fake, name: str) -> None:
    async with fake([[Say("Hello"), Hang()]]) as server, asked_at(server.url, name) as model:
        with anyio.CancelScope() as scope:
            async with model.stream("", [HELLO], []) as pieces:
                async for piece in pieces:
                    assert piece == Text("Hello")
                    scope.cancel()
        assert scope.cancelled_caught
        with anyio.fail_after(WAIT_S):
            await server.exchanges[0].gone.wait()


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_a_cancel_before_the_first_piece_closes_the_connection(fake: Fake, name: str) -> None:
    async with fake([[Hang(), Say("Hello")]]) as server, asked_at(server.url, name) as model:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, model)
            await server.arrival(1)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(WAIT_S):
            await server.exchanges[0].gone.wait()


async def test_leaving_an_answer_half_read_closes_the_connection_and_the_model_goes_on() -> None:
    async with asking(FakeOpenAI, [[Say("Hello"), Hang()], [Say("Again")]], OPENAI) as (server, model):
        async with model.stream("", [HELLO], []) as pieces:
            assert await anext(pieces) == Text("Hello")
        with anyio.fail_after(WAIT_S):
            await server.exchanges[0].gone.wait()
        assert (await answer(model)).text == "Again"


async def test_a_cancel_ends_the_wait_for_another_try() -> None:
    clock, retries = ManualClock(), Retries()
    async with (
        FakeOpenAI([[Fail(429, retry_after=30)]]) as server,
        asked_at(server.url, OPENAI, clock=clock) as model,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            await answer(model, on_retry=retries)

        tasks.start_soon(ask)
        await server.arrival(1)
        await clock.wait_for_sleepers(1)
        tasks.cancel_scope.cancel()
    assert clock.sleepers == 0
    assert retries.waits == [30]
    assert len(server.exchanges) == 1


async def test_a_model_that_was_closed_can_be_asked_again() -> None:
    async with FakeOpenAI([[Say("One")], [Say("Two")]]) as server, asked_at(server.url, OPENAI) as model:
        assert (await answer(model)).text == "One"
        await model.aclose()
        assert (await answer(model)).text == "Two"


async def test_requests_at_the_same_time_do_not_disturb_each_other() -> None:
    async with asking(FakeOpenAI, lambda body: [Say(body["messages"][-1]["content"])], OPENAI) as (server, model):
        texts: set[str] = set()

        async def ask() -> None:
            texts.add((await answer(model)).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
    assert texts == {"Hello"}
    assert len(server.exchanges) == 5
