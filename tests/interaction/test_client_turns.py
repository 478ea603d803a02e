"""A program's uses of a turn: await it, iterate over it, change it, stop it."""

from __future__ import annotations

import anyio
import pytest
from tests.support.clients import EACH_DIALECT, Connected, script, seated

from turnwire.client import Steered, TurnResult
from turnwire.errors import (
    IdempotencyConflict,
    LocalProtocolError,
    PromptNotQueued,
    SessionBusy,
    SessionClosed,
    TurnError,
)
from turnwire.limits import Limits
from turnwire.session.events import SteerRefusal
from turnwire.wire.schema.common import TextContent
from turnwire_testing import AgentOptions, ManualClock, Profile

pytestmark = pytest.mark.anyio


@EACH_DIALECT
async def test_a_turn_gives_its_text_and_its_stop_reason(connected: Connected, profile: Profile) -> None:
    async with connected(profile) as seat:
        result = await seat.session.prompt('say 3 "hello "')
        assert (result.text, result.stop_reason) == ("hello hello hello ", "end_turn")
        assert result.ending == {"v1": "response", "v1plus": "marker", "v2": "idle"}[profile]


@EACH_DIALECT
async def test_a_loop_over_a_turn_gives_its_updates_in_order_and_ends_with_it(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        turn = seat.session.prompt("flood 50\nafter say 1 late")
        texts = [update.text async for update in turn if update.kind == "agent_message_chunk"]
        assert texts == [str(number) for number in range(50)]
        assert (await turn).stop_reason == "end_turn"


async def test_a_loop_may_begin_late_and_run_twice_and_sees_all_each_time(connected: Connected) -> None:
    async with connected() as seat:
        first = seat.session.prompt("flood 5")
        await first
        await seat.session.prompt("flood 7")
        once = [update.offset async for update in first]
        twice = [update.offset async for update in first]
        assert len(once) == 5
        assert once == twice


async def test_many_tasks_await_one_turn_and_loop_over_it(connected: Connected) -> None:
    async with connected() as seat:
        turn = seat.session.prompt("say 2 a\ngate g\nsay 2 b")
        results: list[TurnResult] = []
        loops: list[str] = []

        async def wait() -> None:
            results.append(await turn)

        async def loop() -> None:
            loops.append("".join([update.text async for update in turn]))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(wait)
                tasks.start_soon(loop)
            await seat.source.gates.reached("g")
            seat.source.gates.open("g")
        assert [result.text for result in results] == ["aabb"] * 10
        assert loops == ["aabb"] * 10


async def test_a_loop_that_is_left_early_disturbs_nobody(connected: Connected) -> None:
    async with connected() as seat:
        turn = seat.session.prompt("flood 100")
        async for _ in turn:
            break
        assert len([update async for update in turn]) == 100
        assert (await turn).stop_reason == "end_turn"


async def test_usage_and_typed_updates_are_there_when_asked_for(connected: Connected) -> None:
    async with connected("v2") as seat:
        turn = seat.session.prompt("usage 10 100\nsay 1 x")
        kinds = {update.kind: type(update.typed).__name__ async for update in turn}
        assert kinds["usage_update"] == "UsageUpdate"
        assert kinds["agent_message_chunk"] == "AgentMessageChunk"


async def test_content_may_be_blocks_as_dicts_or_structs(connected: Connected) -> None:
    async with connected() as seat:
        blocks = [{"type": "text", "text": "hello "}, TextContent(text="you")]
        assert (await seat.session.prompt(blocks)).text == "hello \nyou"
        with pytest.raises(LocalProtocolError):
            seat.session.prompt([])


@EACH_DIALECT
async def test_a_turn_that_the_agent_fails_raises_with_what_the_agent_said(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        turn = seat.session.prompt("say 1 x\nerror -32001 boom")
        assert "".join([update.text async for update in turn]) == "x"
        for _ in range(2):
            with pytest.raises(TurnError) as caught:
                await turn
            assert caught.value.reason == "agent_error"
            assert b"boom" in (caught.value.agent_error or b"")
            assert "boom" not in str(caught.value.context)
        assert (await seat.session.prompt("say 1 y")).text == "y"


async def test_a_turn_whose_agent_dies_raises_and_the_next_one_works(connected: Connected) -> None:
    async with connected() as seat:
        with pytest.raises(TurnError) as caught:
            await seat.session.prompt("say 1 x\nexit 1")
        assert caught.value.reason == "agent_exited"
        assert (await seat.session.prompt("say 1 y")).text == "y"


async def test_a_refused_prompt_raises_where_the_turn_is_awaited_accepted_or_looped_over(
    connected: Connected,
) -> None:
    async with connected() as seat:
        running = seat.session.prompt("never")
        refused = seat.session.prompt("hello", when_busy="reject")
        with pytest.raises(SessionBusy):
            await refused
        with pytest.raises(SessionBusy):
            await refused.accepted
        with pytest.raises(SessionBusy):
            _ = [update async for update in refused]
        assert refused.prompt_id is None
        await running.cancel()
        assert (await running).stop_reason == "cancelled"


async def test_prompts_run_in_the_order_in_which_they_were_asked_for(connected: Connected) -> None:
    async with connected() as seat:
        turns = [seat.session.prompt(f"turn {number}") for number in range(20)]
        results = [await turn for turn in turns]
        assert [result.text for result in results] == [f"turn {number}" for number in range(20)]
        offsets = [(await turn.accepted).after_offset for turn in turns]
        assert offsets == sorted(offsets)
        assert len({turn.prompt_id for turn in turns}) == 20


async def test_the_same_key_is_the_same_prompt_while_it_runs_and_after_it_ended(connected: Connected) -> None:
    async with connected(limits=Limits(remembered_turns=1)) as seat:
        first = seat.session.prompt("hello", key="k")
        again = seat.session.prompt("hello", key="k")
        assert (await first).prompt_id == (await again).prompt_id
        await seat.session.prompt("say 1 other")
        late = seat.session.prompt("hello", key="k")
        assert (await late.accepted).repeated
        assert await late == await first
        with pytest.raises(IdempotencyConflict):
            await seat.session.prompt("another", key="k")


async def test_a_waiting_prompt_is_edited_moved_and_removed_until_it_starts(connected: Connected) -> None:
    async with connected() as seat:
        running = seat.session.prompt("gate g")
        one, two, three = (seat.session.prompt(f"say 1 {name}") for name in ("one", "two", "three"))
        await two.edit("say 1 changed")
        await three.edit(place=0)
        await one.remove()
        seat.source.gates.open("g")
        await running
        results = [await turn for turn in (three, two, one)]
        assert [result.text for result in results] == ["three", "changed", ""]
        assert [result.stop_reason for result in results] == ["end_turn", "end_turn", "cancelled"]
        ends = [update.offset for turn in (three, two) for update in [each async for each in turn]]
        assert ends == sorted(ends)
        with pytest.raises(PromptNotQueued):
            await two.edit("too late")


@pytest.mark.guarantee("G8")
@EACH_DIALECT
async def test_a_cancelled_turn_still_gives_what_the_agent_sent_and_marks_open_tool_calls(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        turn = seat.session.prompt(script("on-cancel tool t1", "tool-open t1", "gate g", "never"))
        await seat.source.gates.reached("g")
        seat.source.gates.open("g")
        await turn.cancel()
        view = await seat.session.view()
        marked = [item for item in view.items if getattr(item, "cancelled_locally", False)]
        assert len(marked) == 1
        result = await turn
        assert (result.stop_reason, result.cancelled_by) == ("cancelled", seat.name)
        statuses = [getattr(item, "status", None) for item in (await seat.session.view()).items]
        assert "completed" in statuses
        await turn.cancel()
        assert await turn == result


async def test_cancelling_the_session_leaves_the_queue(connected: Connected) -> None:
    async with connected() as seat:
        running = seat.session.prompt("never")
        waiting = seat.session.prompt("say 1 x")
        await waiting.accepted
        await seat.session.cancel()
        assert (await running).stop_reason == "cancelled"
        assert (await waiting).text == "x"


async def test_no_time_passes_in_telling_that_a_turn_ended() -> None:
    clock = ManualClock()
    async with seated(clock=clock) as seat:
        turn = seat.session.prompt("say 1 x\nignore-cancel\nnever")
        async for _ in turn:
            break
        await turn.settle()
        result = await turn
        assert (result.ending, result.text) == ("settled", "x")
        assert clock.monotonic() == ManualClock().monotonic()


async def test_a_closed_session_cancels_what_runs_and_takes_no_more(connected: Connected) -> None:
    async with connected() as seat:
        running = seat.session.prompt("never")
        await running.accepted
        await seat.session.close()
        assert (await running).stop_reason == "cancelled"
        with pytest.raises(SessionClosed):
            await seat.session.prompt("hello")


@pytest.mark.parametrize("able", [True, False])
async def test_a_turn_that_was_to_be_steered_knows_what_became_of_it(connected: Connected, able: bool) -> None:
    async with connected("v1", AgentOptions(steering=able)) as seat:
        first = seat.session.prompt("say 1 begun\ngate g\nsay 1 done", when_busy="steer")
        assert await first.steered() == Steered("started", SteerRefusal.NO_TURN)
        async for update in first:
            assert update.text == "begun"
            break
        second = seat.session.prompt("say 1 mine", when_busy="steer")
        became = await second.steered()
        assert became == (Steered("injected") if able else Steered("queued", SteerRefusal.NOT_OFFERED))
        seat.source.gates.open("g")
        assert (await second).ending == ("joined" if able else "response")
        assert (await second.steered()).reason == became.reason
