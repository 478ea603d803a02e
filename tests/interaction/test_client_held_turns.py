"""Turns that the program holds while later ones end: still drained, and still with their handlers' errors."""

from __future__ import annotations

import gc

import anyio
import pytest
from tests.support.clients import Connected

from turnwire.client import Turn, TurnResult, Update
from turnwire.limits import Limits
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

LIMITS = Limits(remembered_turns=1)


@pytest.mark.guarantee("G12")
async def test_a_turn_with_an_unfinished_handler_call_is_not_drained_after_many_later_turns(
    connected: Connected,
) -> None:
    async with connected(limits=LIMITS) as seat:
        gate = anyio.Event()
        finished: list[str] = []
        ended: list[TurnResult] = []

        @seat.session.on_update
        async def stay(update: Update) -> None:
            if update.text == "first":
                await seat.session.prompt("say 1 inner")
                await gate.wait()
                finished.append(update.text)
                raise ValueError(update.text)

        async def finish(turn: Turn) -> None:
            ended.append(await turn)

        first = seat.session.prompt("say 1 first", key="k", request_id="first")
        await first.accepted
        for _ in range(3):
            await seat.session.prompt("say 1 x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish, first)
            tasks.start_soon(finish, seat.session.prompt("say 1 first", key="k"))
            await quiet()
            assert ended == []
            gate.set()
        assert finished == ["first"]
        assert [[type(error) for error in each.handler_errors] for each in ended] == [[ValueError]] * 2


async def test_a_turn_that_is_not_drained_is_remembered_and_takes_no_place_of_the_newest(
    connected: Connected,
) -> None:
    async with connected(limits=LIMITS) as seat:
        gate = anyio.Event()

        @seat.session.on_update
        async def stay(update: Update) -> None:
            if update.text == "first":
                await seat.session.prompt("say 1 inner")
                await gate.wait()

        seat.session.prompt("say 1 first", request_id="first")
        await seat.session.prompt("say 1 second", request_id="second")
        await seat.session.prompt("say 1 third", request_id="third")
        assert (await seat.session.completed("third")).text == "third"
        with anyio.move_on_after(0) as impatient:
            await seat.session.completed("first")
        assert impatient.cancelled_caught
        gate.set()
        assert (await seat.session.completed("first")).text == "first"


@pytest.mark.usefixtures("has_small_heap")
async def test_what_handlers_raised_stays_with_a_turn_that_the_program_holds(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")  # A record holds what was raised, and with it the turn.
    async with connected(limits=LIMITS) as seat:

        @seat.session.on_update
        def fail(update: Update) -> None:
            raise ValueError(update.text)

        turns = [seat.session.prompt(f"say 1 {number}", key=str(number)) for number in range(5)]
        await turns[-1]
        gc.collect()
        again = seat.session.prompt("say 1 0", key="0")
        told = [[str(error) for error in (await turn).handler_errors] for turn in [*turns, again]]
        assert told == [["0"], ["1"], ["2"], ["3"], ["4"], ["0"]]
