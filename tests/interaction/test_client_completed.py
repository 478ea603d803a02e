"""Awaiting a turn by its request id."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from tests.support.clients import EACH_DIALECT, WAIT_S, Connected, seated

from turnwire.client import Client, Session, TurnResult, Update, connect
from turnwire.errors import ClientClosed, SessionBusy, SessionClosed, TurnError, TurnwireError
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire_testing import AgentOptions, Profile
from turnwire_testing.patience import quiet
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio


async def test_an_id_is_matched_with_its_json_type(connected: Connected) -> None:
    async with connected() as seat:
        number = seat.session.prompt("say 1 number", request_id=2)
        text = seat.session.prompt("say 1 text", request_id="2")
        await number
        await text
        assert (await seat.session.completed(2)).text == "number"
        assert (await seat.session.completed("2")).text == "text"
        assert (await seat.session.completed(2)).request_id == 2


async def test_the_newest_prompt_with_an_id_counts_while_it_is_still_being_submitted(connected: Connected) -> None:
    async with connected() as seat:
        for wanted in ("x", 5, "5"):
            for text in ("old", "new"):
                turn = seat.session.prompt(f"say 1 {text}", request_id=wanted)
                assert turn.prompt_id is None, "it is not accepted yet"
                assert (await seat.session.completed(wanted)).text == text
                assert (await seat.client.completed(wanted)).text == text


async def test_completed_raises_what_rejected_the_newest_prompt(connected: Connected) -> None:
    async with connected() as seat:
        await seat.session.prompt("say 1 old", request_id="mine")
        running = seat.session.prompt("gate g", request_id="other")
        await running.accepted
        seat.session.prompt("say 1 rejected", request_id="mine", when_busy="reject")
        with pytest.raises(SessionBusy):
            await seat.session.completed("mine")
        await running.cancel()
        await running


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_several_waiters_return_after_the_updates_were_handled(profile: Profile) -> None:
    async with seated(profile) as seat:
        handled: list[str] = []
        counts: list[int] = []

        @seat.session.on_update
        async def handle(update: Update) -> None:
            await anyio.lowlevel.checkpoint()
            if update.text:
                handled.append(update.text)

        async def wait() -> None:
            await seat.session.completed("mine")
            counts.append(len(handled))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            await quiet()
            seat.session.prompt("flood 100", request_id="mine")
        assert counts == [100] * 5


@EACH_DIALECT
async def test_a_number_under_which_the_agent_was_asked_names_no_turn(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        results: list[TurnResult] = []

        async def wait(wanted: int | str) -> None:
            results.append(await seat.session.completed(wanted))

        # 1 is `initialize`, 2 is `session/new`, so the first two turns are asked for as 3 and 4.
        await seat.session.prompt("say 1 nameless")
        await seat.session.prompt("say 1 four", request_id=3)
        assert (await seat.session.completed(3)).text == "four"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 4)
            await quiet()
            assert results == []
            await seat.session.prompt("say 1 mine", request_id=4)
        assert [each.text for each in results] == ["mine"]


async def test_a_failed_turn_raises_to_whoever_waits_by_its_id(connected: Connected) -> None:
    async with connected() as seat:
        seat.session.prompt("error -32001 boom", request_id="mine")
        with pytest.raises(TurnError):
            await seat.session.completed("mine")


async def test_a_marker_that_is_replayed_completes_nothing() -> None:
    replayed = '{"sessionUpdate":"turn_complete","promptRequestId":3,"stopReason":"end_turn"}'
    async with seated("v1plus", AgentOptions(inside=f"update {replayed}")) as seat:
        seen = anyio.Event()
        ended: list[TurnResult] = []

        @seat.session.on_update
        def see(update: Update) -> None:
            seen.set()

        async def wait() -> None:
            ended.append(await seat.session.completed(3))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await seen.wait()
            await quiet()
            assert ended == []
            await seat.session.prompt("say 1 live", request_id=3)
        assert [result.text for result in ended] == ["live"]


async def test_turns_that_ended_before_the_client_came_do_not_count() -> None:
    log = MemoryEventLog()
    async with seated(log=log) as seat:
        await seat.session.prompt("say 1 old", request_id="mine")
        session_id = seat.session.session_id
    async with seated(log=log) as seat:
        session = await seat.client.attach(session_id)
        ended: list[TurnResult] = []

        async def wait() -> None:
            ended.append(await session.completed("mine"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await quiet()
            assert ended == []
            await session.prompt("say 1 new", request_id="mine")
        assert [result.text for result in ended] == ["new"]


async def test_only_the_newest_ended_turns_are_remembered_by_their_id(connected: Connected) -> None:
    async with connected(limits=Limits(remembered_turns=2)) as seat:
        for number in range(4):
            await seat.session.prompt(f"say 1 {number}", request_id=number)
        assert (await seat.session.completed(3)).text == "3"
        assert (await seat.session.completed(2)).text == "2"
        with anyio.move_on_after(0) as gone:
            await seat.session.completed(1)
        assert gone.cancelled_caught


async def told(asked: Client | Session, heard: list[type[TurnwireError]]) -> None:
    """Wait for a turn that never comes."""
    try:
        await asked.completed("nobody's")
    except TurnwireError as error:
        heard.append(type(error))


async def test_who_waits_at_a_client_without_sessions_hears_that_it_closes() -> None:
    heard: list[type[TurnwireError]] = []
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks, ScriptedSource() as source, connect(source) as client:
            tasks.start_soon(told, client, heard)
            await quiet()
    assert heard == [ClientClosed]


async def test_who_waits_by_an_id_hears_that_the_session_is_closed(connected: Connected) -> None:
    heard: list[type[TurnwireError]] = []
    async with connected() as seat:
        turn = seat.session.prompt("say 1 x", request_id="mine")
        await turn
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(told, seat.session, heard)
            await quiet()
            await seat.session.close()
        await told(seat.session, heard)
        assert heard == [SessionClosed, SessionClosed]
        # A completed turn can still be read.
        assert (await seat.session.completed("mine")).text == "x"
        assert [update.text async for update in turn] == ["x"]


async def test_who_waits_at_the_client_goes_on_waiting_when_one_session_is_closed(connected: Connected) -> None:
    async with connected() as seat:
        results: list[TurnResult] = []

        async def wait() -> None:
            results.append(await seat.client.completed("mine"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await quiet()
            await seat.session.close()
            await told(seat.session, [])
            (await seat.client.new_session(seat.cwd)).prompt("say 1 x", request_id="mine")
        assert results[0].text == "x"
