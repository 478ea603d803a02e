"""Requests of the agent: answered by a function, left open, withdrawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.clients import EACH_DIALECT, Connected, seated

from turnwire.client import Question
from turnwire.client.permission import Option
from turnwire.errors import InvalidOption, LocalProtocolError
from turnwire_testing import Profile
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio


@EACH_DIALECT
async def test_a_function_answers_with_an_option(connected: Connected, profile: Profile) -> None:
    async with connected(profile) as seat:
        asked: list[Question] = []

        @seat.session.on_permission
        def allow(question: Question) -> str:
            asked.append(question)
            return "allow_once"

        result = await seat.session.prompt("ask t1 allow_once,reject_once")
        assert result.text == "selected allow_once"
        assert [each.option_id for each in asked[0].options] == ["allow_once", "reject_once"]
        assert asked[0].prompt_id == result.prompt_id
        assert asked[0].method == "session/request_permission"


@pytest.mark.parametrize(
    ("options", "said"), [("allow_once,reject_always,reject_once", "selected reject_once"), ("allow", "cancelled")]
)
async def test_reject_takes_the_softest_option_that_rejects_and_never_allows(
    connected: Connected, options: str, said: str
) -> None:
    async with connected() as seat:
        seat.session.on_permission(lambda question: "reject")
        assert (await seat.session.prompt(f"ask t1 {options}")).text == said


async def test_the_first_function_that_answers_wins_and_the_client_is_asked_last(connected: Connected) -> None:
    async with connected() as seat:
        asked: list[str] = []

        def answer(name: str, chosen: str | None):
            async def choose(question: Question) -> str | None:
                asked.append(name)
                return chosen

            return choose

        seat.client.on_permission(answer("client", "b"))
        seat.session.on_permission(answer("first", None))
        assert (await seat.session.prompt("ask t1 a,b")).text == "selected b"
        seat.session.on_permission(answer("second", "a"))
        assert (await seat.session.prompt("ask t2 a,b")).text == "selected a"
        assert asked == ["first", "client", "first", "second"]


async def test_a_question_left_open_is_answered_later_and_only_once(connected: Connected) -> None:
    async with connected() as seat:
        left: list[Question] = []
        asked = anyio.Event()

        @seat.session.on_permission
        def leave(question: Question) -> None:
            left.append(question)
            asked.set()

        turn = seat.session.prompt("ask t1 a,b")
        await asked.wait()
        assert list((await seat.session.view()).permissions) == [left[0].request_id]
        assert await seat.session.answer(left[0], "b")
        assert not await seat.session.answer(left[0], "a")
        assert (await turn).text == "selected b"


@EACH_DIALECT
async def test_a_cancel_answers_the_question_and_gives_the_function_up(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        asked = anyio.Event()
        given_up: list[str] = []

        @seat.session.on_permission
        async def ponder(question: Question) -> str:
            asked.set()
            try:
                await anyio.Event().wait()
            finally:
                given_up.append(question.request_id)
            return "a"

        turn = seat.session.prompt("on-cancel say 1 stopped\nask t1 a,b")
        await asked.wait()
        await turn.cancel()
        assert (await turn).stop_reason == "cancelled"
        assert len(given_up) == 1
        assert seat.session.handler_errors == {}


async def test_a_function_that_fails_or_chooses_what_was_not_offered_leaves_the_question_open() -> None:
    async with seated() as seat:
        left: list[Question] = []

        @seat.session.on_permission
        def choose(question: Question) -> str:
            left.append(question)
            if len(left) == 1:
                return "sudo"
            raise ValueError("no idea")

        first = seat.session.prompt("ask t1 a,b")
        second = seat.session.prompt("ask t2 a,b")
        await quiet()
        assert seat.session.handler_errors == {"InvalidOption": 1}
        assert await seat.session.answer(left[0], "a")
        assert [type(each).__name__ for each in (await first).handler_errors] == ["InvalidOption"]
        await quiet()
        assert seat.session.handler_errors == {"InvalidOption": 1, "ValueError": 1}
        assert await seat.session.answer(left[1], "b")
        assert (await second).text == "selected b"


async def test_updates_go_on_while_a_function_ponders_a_question(connected: Connected) -> None:
    async with connected() as seat:
        gate = anyio.Event()
        heard = anyio.Event()

        @seat.session.on_permission
        async def ponder(question: Question) -> str:
            await gate.wait()
            return "a"

        @seat.client.on_update
        def hear(update: object) -> None:
            heard.set()

        turn = seat.session.prompt("ask t1 a,b\nsay 1 done")
        await heard.wait()
        gate.set()
        assert (await turn).text.endswith("done")


def selecting(option_id: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


async def test_an_option_itself_and_a_whole_answer_select(connected: Connected) -> None:
    async with connected() as seat:
        answers: list[Callable[[Question], Option | dict[str, Any]]] = [
            lambda question: question.options[1],
            lambda question: selecting("a"),
        ]
        seat.session.on_permission(lambda question: answers.pop(0)(question))
        assert (await seat.session.prompt("ask t1 a,b")).text == "selected b"
        assert (await seat.session.prompt("ask t1 a,b")).text == "selected a"


ODD: list[tuple[Any, str]] = [
    (True, "LocalProtocolError"),
    (False, "LocalProtocolError"),
    (["a"], "LocalProtocolError"),
    ({"a"}, "LocalProtocolError"),
    ({}, "LocalProtocolError"),
    ({"optionId": "a"}, "LocalProtocolError"),
    (selecting("sudo"), "InvalidOption"),
]


async def test_an_odd_answer_is_no_answer_and_leaves_the_question_open(connected: Connected) -> None:
    async with connected() as seat:
        left: list[Question] = []

        @seat.session.on_permission
        def choose(question: Question) -> Any:
            left.append(question)
            return ODD[len(left) - 1][0]

        for odd, name in ODD:
            before = seat.session.handler_errors[name]
            turn = seat.session.prompt("ask t1 a,b")
            while seat.session.handler_errors[name] == before:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(LocalProtocolError if name != "InvalidOption" else InvalidOption):
                await seat.session.answer(left[-1], odd)
            assert await seat.session.answer(left[-1], "b")
            result = await turn
            assert result.text == "selected b"
            assert [type(each).__name__ for each in result.handler_errors] == [name]


@pytest.mark.parametrize(
    ("options", "said"), [("allow_once,reject_once", "selected reject_once"), ("a", "cancelled")]
)
async def test_an_agent_of_ones_own_is_told_no_where_nobody_can_answer(
    options: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with seated() as seat:
        assert (await seat.session.prompt(f"ask t1 {options}")).text == said
    [warning] = [each for each in caplog.records if each.__dict__.get("event") == "permission_unanswered"]
    assert "t1" in warning.getMessage()
    assert "on_permission" in warning.getMessage()
