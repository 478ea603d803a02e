"""How far a turn has come, and which one a request id names."""

from __future__ import annotations

import anyio
import pytest

from turnwire.client.progress import Progress, Turns, UnfinishedCall, Wakeup, find_request
from turnwire.core import events as ev
from turnwire.errors import ClientClosed, TurnError
from turnwire.ids import PromptId, RequestId
from turnwire.testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

END = ev.TurnCompleted(at=1, prompt_id=PromptId("p"), stop_reason="end_turn", ending=ev.Ending.RESPONSE)


def progress(prompt_id: str = "p", request_id: RequestId | None = None, *, is_own: bool = True) -> Progress:
    made = Progress(PromptId(prompt_id), request_id, None)
    made.is_own = is_own
    return made


def call(turn: Progress | None) -> UnfinishedCall:
    return UnfinishedCall(turn, lambda: None)


@pytest.mark.requirement("R7", "R82")
async def test_a_request_id_names_the_exact_type_first_the_callers_before_others_and_the_newer_turn() -> None:
    number, text = progress("number", 2), progress("text", "2")
    others, old = progress("others", "2", is_own=False), progress("old", 9)
    turns = [progress("new", 9), old, others, text, number]
    named = {
        repr(wanted): found.prompt_id if (found := find_request(wanted, turns)) else None
        for wanted in (2, "2", 9, "9", 3)
    }
    assert named == {"2": "number", "'2'": "text", "9": "new", "'9'": "new", "3": None}
    found = find_request("2", [others, number])
    assert found is number
    assert find_request(2, [others, progress("nameless")]) is others


async def test_a_turn_is_drained_when_its_end_has_come_and_no_call_is_left() -> None:
    turn = progress()
    staying = call(turn)
    staying.release()
    turn.end(END)
    assert (await turn.passed()).stop_reason == "end_turn"
    assert not turn.is_drained
    staying.finish()
    assert turn.is_drained
    assert (await turn.drained()) == await turn.passed()


async def test_a_call_waits_for_the_calls_of_another_turn_but_never_in_a_circle() -> None:
    one, two = progress("one"), progress("two")
    first, second = call(one), call(two)
    order: list[str] = []

    async def wait(name: str, waiting: UnfinishedCall, turn: Progress) -> None:
        await waiting.result_of(turn)
        order.append(name)
        waiting.finish()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "first", first, two)
            await quiet()
            tasks.start_soon(wait, "second", second, one)
            await quiet()
            two.end(END)
            await quiet()
            assert order == []
            one.end(END)
    assert order == ["second", "first"]
    assert one.is_drained
    assert two.is_drained


async def test_a_failure_is_heard_by_whoever_is_not_drained_and_changes_no_result() -> None:
    done, open_turn, undrained = progress("done"), progress("open"), progress("undrained")
    done.end(END)
    call(undrained).release()
    undrained.end(END)
    turns = Turns(Wakeup(), 8)
    for each in (done, open_turn, undrained):
        turns.adopt(each)
    turns.fail(ClientClosed("closed"))
    assert (await done.drained()).stop_reason == "end_turn"
    for each in (open_turn, undrained):
        with pytest.raises(ClientClosed):
            await each.drained()


async def test_every_await_of_a_failed_turn_raises_an_error_of_its_own() -> None:
    turn = progress()
    failed = ev.TurnFailed(
        at=1, prompt_id=PromptId("p"), code="agent_exited", message="gone", exit_code=3, stderr_tail="Traceback"
    )
    turn.end(failed)
    errors: list[TurnError] = []
    for _ in range(2):
        with pytest.raises(TurnError) as caught:
            await turn.drained()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert (errors[0].reason, errors[0].exit_code, errors[0].stderr_tail) == ("agent_exited", 3, "Traceback")
    assert "Traceback" not in repr(errors[0].context)
