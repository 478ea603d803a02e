"""The progress of a turn, and the lookup of a turn by a request id."""

from __future__ import annotations

import anyio
import pytest

from turnwire.client.progress import Progress, Turns, UnfinishedCall, Wakeup, find_request
from turnwire.errors import ClientClosed, TurnError
from turnwire.ids import PromptId, RequestId
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

END = ev.TurnCompleted(at=1, prompt_id=PromptId("p"), stop_reason="end_turn", ending=ev.Ending.RESPONSE)


def progress(prompt_id: str = "p", request_id: RequestId | None = None) -> Progress:
    return Progress(PromptId(prompt_id), request_id, None)


def call(turn: Progress | None) -> UnfinishedCall:
    return UnfinishedCall(turn, lambda: None)


async def test_a_request_id_finds_the_first_turn_with_that_id_and_type() -> None:
    known: list[tuple[str, RequestId | None]] = [
        ("none", None),
        ("new", 9),
        ("old", 9),
        ("text", "2"),
        ("number", 2),
    ]
    turns = [progress(name, request_id) for name, request_id in known]
    wanted: list[RequestId] = [2, "2", 9, "9", 3]
    found = [find_request(each, turns) for each in wanted]
    assert [each and each.prompt_id for each in found] == ["number", "text", "new", None, None]


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
