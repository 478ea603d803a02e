"""Handlers: in the order of the log, one after the other, all finished when `await turn` returns."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from tests.support.clients import EACH_DIALECT, Connected, script, seated

from turnwire.client import Question, Session, Turn, TurnResult, Update
from turnwire_testing import AgentOptions, Profile
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio


class Recorder:
    """A handler that yields to the event loop some times for each update, and detects overlapping calls."""

    def __init__(self, steps: int = 3) -> None:
        self.steps = steps
        self.begun: list[str] = []
        self.finished: list[str] = []
        self.overlaps = 0

    async def __call__(self, update: Update) -> None:
        self.overlaps += len(self.begun) != len(self.finished)
        self.begun.append(update.text)
        for _ in range(self.steps):
            await anyio.lowlevel.checkpoint()
        self.finished.append(update.text)


@pytest.mark.guarantee("G12")
@EACH_DIALECT
async def test_every_slow_handler_call_has_finished_when_the_await_returns(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        recorder = Recorder()
        seat.session.on_update(recorder)
        result = await seat.session.prompt("flood 1000")
        numbers = [text for text in recorder.finished if text]
        assert numbers == [str(number) for number in range(1000)]
        assert recorder.overlaps == 0
        assert result.text == "".join(numbers)


@pytest.mark.guarantee("G12")
async def test_the_await_is_drained_in_every_one_of_many_turns(connected: Connected) -> None:
    async with connected("v1plus") as seat:
        recorder = Recorder(steps=1)
        seat.session.on_update(recorder)
        for turn in range(1, 31):
            await seat.session.prompt("flood 20\nafter say 1 late")
            said = [text for text in recorder.finished if text and text != "late"]
            assert len(said) == 20 * turn
            assert recorder.overlaps == 0


@pytest.mark.guarantee("G12")
async def test_the_await_does_not_return_while_the_last_handler_call_waits() -> None:
    async with seated() as seat:
        gate, reached = anyio.Event(), anyio.Event()
        ended: list[TurnResult] = []

        @seat.session.on_update
        async def wait(update: Update) -> None:
            if update.text == "last":
                reached.set()
                await gate.wait()

        async def finish(turn: Turn) -> None:
            ended.append(await turn)

        async with anyio.create_task_group() as tasks:
            turn = seat.session.prompt("say 3 x\nsay 1 last")
            tasks.start_soon(finish, turn)
            await reached.wait()
            assert [update.text async for update in turn] == ["x", "x", "x", "last"]
            await quiet()
            assert ended == []
            gate.set()
        assert len(ended) == 1


async def test_plain_and_waiting_functions_hear_the_same_order(connected: Connected) -> None:
    async with connected() as seat:
        heard: list[tuple[str, str]] = []

        async def waiting(update: Update) -> None:
            await anyio.lowlevel.checkpoint()
            heard.append(("session waits", update.text))

        seat.client.on_update(lambda update: heard.append(("client", update.text)))
        seat.session.on_update(lambda update: heard.append(("session", update.text)))
        seat.session.on_update(waiting)
        await seat.session.prompt("flood 10")
        names = ("session", "session waits", "client")
        assert heard == [(name, str(number)) for number in range(10) for name in names]


async def test_a_handler_that_raises_stops_nobody_and_is_told(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as seat:
        heard: list[str] = []

        @seat.session.on_update
        def plain(update: Update) -> None:
            raise ValueError(update.text)

        @seat.session.on_update
        async def waiting(update: Update) -> None:
            await anyio.lowlevel.checkpoint()
            raise KeyError(update.text)

        seat.session.on_update(lambda update: heard.append(update.text))
        result = await seat.session.prompt("say 2 x")
        assert heard == ["x", "x"]
        assert [type(error) for error in result.handler_errors] == [ValueError, KeyError] * 2
        assert seat.session.handler_errors == {"ValueError": 2, "KeyError": 2}
        assert len([record for record in caplog.records if "handler" in record.message]) == 4


@EACH_DIALECT
async def test_what_the_agent_says_before_the_first_prompt_is_heard_by_handlers(
    connected: Connected, profile: Profile
) -> None:
    options = AgentOptions(before="title early", inside="commands one,two", after="title after")
    async with connected(profile, options) as seat:
        heard: list[tuple[str, str | None]] = []
        told = anyio.Event()

        @seat.session.on_update
        def hear(update: Update) -> None:
            heard.append((update.kind, update.prompt_id))
            if len(heard) == 3:
                told.set()

        await told.wait()
        await seat.session.prompt("say 1 x")
        kinds = ["session_info_update", "available_commands_update", "session_info_update"]
        assert heard[:3] == [(kind, None) for kind in kinds]


async def test_late_and_background_updates_are_told_apart(connected: Connected) -> None:
    async with connected() as seat:
        heard: list[Update] = []
        told = anyio.Event()

        @seat.session.on_update
        def hear(update: Update) -> None:
            heard.append(update)
            if update.text == "late":
                told.set()

        result = await seat.session.prompt("say 1 x\nafter say 1 late")
        await told.wait()
        late = heard[-1]
        assert (late.late, late.prompt_id, late.after) == (True, None, result.prompt_id)
        assert result.text == "x"


# -- handlers that wait for turns ----------------------------------------------------------------------------


@pytest.mark.guarantee("G12")
@EACH_DIALECT
async def test_a_handler_may_await_a_turn_of_its_own_session(connected: Connected, profile: Profile) -> None:
    async with connected(profile) as seat:
        texts: list[str] = []

        @seat.session.on_update
        async def follow_up(update: Update) -> None:
            if update.text == "ping":
                texts.append((await seat.session.prompt("say 1 pong")).text)

        await seat.session.prompt("say 1 ping")
        assert texts == ["pong"]


@pytest.mark.guarantee("G12")
async def test_handlers_may_nest_and_each_turn_waits_for_its_own(connected: Connected) -> None:
    async with connected() as seat:
        finished: list[str] = []

        @seat.session.on_update
        async def descend(update: Update) -> None:
            if update.text.isdigit() and int(update.text):
                await seat.session.prompt(f"say 1 {int(update.text) - 1}")
            finished.append(update.text)

        await seat.session.prompt("say 1 5")
        assert finished == ["0", "1", "2", "3", "4", "5"]


async def test_a_handler_may_await_the_turn_it_is_called_for(connected: Connected) -> None:
    async with connected() as seat:
        heard: list[str] = []
        turn = seat.session.prompt("say 3 x")

        @seat.session.on_update
        async def wait(update: Update) -> None:
            heard.append((await turn).stop_reason)

        await turn
        assert heard == ["end_turn"] * 3


async def test_handlers_of_two_sessions_may_await_each_others_turns(connected: Connected) -> None:
    async with connected() as seat:
        one, two = seat.session, await seat.client.new_session(seat.cwd)
        turns: dict[str, Turn] = {}
        heard: list[str] = []

        def cross(session: Session, other: str) -> None:
            async def wait(update: Update) -> None:
                heard.append((await turns[other]).stop_reason)

            session.on_update(wait)

        cross(one, "two")
        cross(two, "one")
        turns["one"], turns["two"] = one.prompt("say 1 x"), two.prompt("say 1 y")
        await turns["one"]
        await turns["two"]
        assert heard == ["end_turn", "end_turn"]


async def test_a_handler_may_loop_over_a_turn_that_asks_for_permission(connected: Connected) -> None:
    async with connected() as seat:
        texts: list[str] = []

        @seat.session.on_permission
        async def allow(question: Question) -> str:
            await anyio.lowlevel.checkpoint()
            return question.options[0].option_id

        @seat.session.on_update
        async def ask(update: Update) -> None:
            if update.text == "go":
                texts.extend([each.text async for each in seat.session.prompt("ask t1 allow,deny") if each.text])

        await seat.session.prompt("say 1 go")
        assert texts == ["selected allow"]


async def test_a_released_handler_holds_up_its_own_turn_and_no_other(connected: Connected) -> None:
    async with connected() as seat:
        gate = anyio.Event()
        second: list[Turn] = []

        @seat.session.on_update
        async def stay(update: Update) -> None:
            if update.text == "first":
                second.append(seat.session.prompt("say 1 second"))
                await second[0]
                await gate.wait()

        first = seat.session.prompt("say 1 first")
        third = seat.session.prompt("say 1 third")
        assert (await third).text == "third"
        with anyio.move_on_after(0) as impatient:
            await first
        assert impatient.cancelled_caught
        gate.set()
        assert (await first).text == "first"
        assert (await second[0]).text == "second"


async def test_what_a_handler_left_running_is_outside_of_it(connected: Connected) -> None:
    async with connected() as seat:
        heard: list[str] = []
        handled: list[int] = []
        turn = seat.session.prompt(script("say 1 a", "gate g", "say 5 b"))

        async def watch(spawned: anyio.Event) -> None:
            await spawned.wait()
            await turn
            handled.append(len(heard))

        async with anyio.create_task_group() as tasks:
            spawned = anyio.Event()

            @seat.session.on_update
            async def spawn(update: Update) -> None:
                if update.text == "a":
                    tasks.start_soon(watch, spawned)

            @seat.session.on_update
            async def hear(update: Update) -> None:
                await anyio.lowlevel.checkpoint()
                heard.append(update.text)

            await seat.source.gates.reached("g")
            spawned.set()
            seat.source.gates.open("g")
            await turn
        assert handled == [6]
