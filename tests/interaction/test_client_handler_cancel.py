"""A handler that raises the cancellation exception: treated as its error, unless the program was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import pytest
from tests.support.clients import Connected, seated

from turnwire.client import Question, Session, TurnResult, Update
from turnwire.errors import LocalProtocolError
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

Function: TypeAlias = Callable[[object], Awaitable[None] | None]


def plain(_: object) -> None:
    raise asyncio.CancelledError


async def waiting(_: object) -> None:
    """Wait for a task that this handler has cancelled itself, as programs do that stop their own work."""
    begun = asyncio.get_running_loop().create_future()
    begun.cancel()
    await begun


def check(result: TurnResult, session: Session) -> None:
    (error,) = result.handler_errors
    assert isinstance(error, LocalProtocolError)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert session.handler_errors == {"LocalProtocolError": 1}


@pytest.mark.parametrize("function", [plain, waiting])
async def test_an_update_handler_that_cancels_itself_ends_nothing_and_is_told(
    connected: Connected, function: Function
) -> None:
    after: list[str] = []
    async with connected() as seat:
        heard: list[str] = []
        seat.session.on_update(function)
        seat.session.on_update(lambda update: heard.append(update.text))
        result = await seat.session.prompt("say 1 x")
        check(result, seat.session)
        assert heard == ["x"]
        assert (await seat.session.prompt("say 1 y")).text == "y"
        after.append(result.text)
    assert after == ["x"]


@pytest.mark.parametrize("function", [plain, waiting])
async def test_a_permission_handler_that_cancels_itself_leaves_the_question_open_and_is_told(
    connected: Connected, function: Callable[[object], None]
) -> None:
    after: list[str] = []
    async with connected() as seat:
        asked: list[Question] = []
        called = anyio.Event()

        @seat.session.on_permission
        def hear(question: Question) -> None:
            asked.append(question)
            called.set()

        seat.session.on_permission(function)
        turn = seat.session.prompt("ask t1 a,b")
        await called.wait()
        await quiet()
        assert await seat.session.answer(asked[0], "b")
        result = await turn
        check(result, seat.session)
        after.append(result.text)
    assert after == ["selected b"]


async def test_a_handler_that_cancels_itself_after_it_has_waited_for_a_turn_ends_nothing() -> None:
    async with seated() as seat:

        @seat.session.on_update
        async def follow_up(update: Update) -> None:
            if update.text == "ping":
                await seat.session.prompt("say 1 pong")
                await waiting(update)

        check(await seat.session.prompt("say 1 ping"), seat.session)


@pytest.mark.parametrize("command", ["say 1 x", "ask t1 a,b"])
async def test_a_program_that_is_cancelled_takes_its_handlers_along(connected: Connected, command: str) -> None:
    sessions: list[Session] = []
    given_up: list[str] = []

    async def stay(_: object) -> None:
        inside.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            given_up.append(command)
            raise

    async def program() -> None:
        async with connected() as seat:
            sessions.append(seat.session)
            seat.session.on_update(stay)
            seat.session.on_permission(stay)
            await seat.session.prompt(command)
        raise AssertionError("a cancel has come out as the end of the block")

    inside = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program)
        await inside.wait()
        tasks.cancel_scope.cancel()
    assert given_up == [command]
    assert sessions[0].handler_errors == {}

    inside = anyio.Event()
    running = asyncio.create_task(program())  # noqa: TID251 as programs without anyio cancel
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert given_up == [command] * 2
    assert sessions[1].handler_errors == {}
