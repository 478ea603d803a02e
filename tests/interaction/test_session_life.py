"""A session over its whole life, in every dialect: early updates, floods, many readers, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pytest
from tests.support.driving import World, check_ends, events_of, of, prompt, stored, texts

from turnwire.ids import PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import Position
from turnwire.session import events as ev
from turnwire.session.codec import decode, encode_state
from turnwire.session.evolve import fold
from turnwire.session.inputs import Cancel
from turnwire.session.state import NOTHING
from turnwire_testing import AgentOptions
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

OpenWorld: TypeAlias = Callable[..., AbstractAsyncContextManager[World]]

S1 = SessionId("s1")
EARLY = AgentOptions(
    before="say 2 before\ncommands a,b", inside="say 2 inside\ntitle T", after="say 2 after\nusage 1 2"
)
TINY = Limits(ring_events=16, page_events=16)


# -- before the first prompt ---------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
async def test_early_words_are_all_kept_in_order_behind_the_start_of_the_agent(world: OpenWorld) -> None:
    async with world(EARLY) as w:
        await w.until_update("usage_update")
        events = await w.events()
    assert [type(each) for each in events[:2]] == [ev.SessionCreated, ev.AgentStarted]
    assert texts(events) == ["before", "before", "inside", "inside", "after", "after"]
    kinds = [each.kind for each in of(events, ev.SessionUpdated) if each.kind != "agent_message_chunk"]
    assert kinds == ["available_commands_update", "session_info_update", "usage_update"]
    assert all(each.prompt_id is None and each.after is None for each in of(events, ev.SessionUpdated))


@pytest.mark.guarantee("G6")
async def test_early_words_and_an_early_prompt_do_not_disturb_each_other(world: OpenWorld) -> None:
    async with world(EARLY) as w:
        await w.prompt("say 1 answer")
        await w.end()
        await w.until_update("usage_update")
        await quiet()
        events = await w.events()
    check_ends(events)
    early = [text for text in texts(events) if text != "answer"]
    assert early == ["before", "before", "inside", "inside", "after", "after"]
    assert texts(events, "p1").count("answer") == 1


# -- floods --------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G1")
async def test_a_flood_arrives_whole_and_in_order_in_few_commits(world: OpenWorld) -> None:
    async with world(limits=Limits(ring_events=16)) as w:
        await w.prompt("flood 20000")
        with anyio.fail_after(WAIT_S):
            seen = 0
            async with aclosing(w.pages()) as pages:
                async for page in pages:
                    seen += len(page.frames)
                    assert page.offset == seen
                    if b'"turn_complete"' in page.frames[-1] and b'"stopReason"' in page.frames[-1]:
                        break
        events = await w.events()
    check_ends(events)
    assert texts(events, "p1") == [str(number) for number in range(20_000)]


@pytest.mark.guarantee("G8")
async def test_a_cancel_is_heard_in_the_middle_of_a_flood(world: OpenWorld) -> None:
    async with world(limits=Limits(agent_inputs=16, batch_inputs=16)) as w:
        await w.prompt("repeat 100000 flood 100")
        await w.until_update('"99"')
        with anyio.fail_after(WAIT_S):
            await w.node.submit(S1, Cancel(at=1, prompt_id=PromptId("p1")))
        end = await w.end()
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "cancelled"
        said = texts(await w.events())
    assert said[:1000] == [str(number % 100) for number in range(min(1000, len(said)))]


@pytest.mark.guarantee("G8")
async def test_a_session_that_floods_keeps_no_other_waiting(world: OpenWorld) -> None:
    """The loop is held for a few milliseconds of CPU at a time. Real time would count other programs too."""
    async with world() as w:
        other = await w.node.create("/work", session_id=SessionId("s2"))
        await w.until_kind(ev.AgentStarted, other)
        longest, flooding = 0.0, True

        async def watch() -> None:
            nonlocal longest
            while flooding:
                begun = time.thread_time()
                await anyio.lowlevel.checkpoint()
                longest = max(longest, time.thread_time() - begun)

        async with anyio.create_task_group() as tasks:
            await w.prompt("flood 20000")
            await w.until_update('"99"')
            tasks.start_soon(watch)
            with anyio.fail_after(WAIT_S):
                await w.node.submit(other, prompt("say 1 hi", "p2"))
            assert len(texts(await w.events())) < 20_000, "it was answered in the middle of the flood"
            await w.end()
            flooding = False
        await w.end("p2", other)
    assert longest < 0.5


# -- readers -------------------------------------------------------------------------------------------------


async def visit(w: World, frames: list[bytes], pages_per_visit: int) -> bool:
    """Read some pages from where the last visit ended; whether the end of the last turn was among them."""
    left = pages_per_visit
    async with aclosing(w.pages(len(frames))) as pages:
        async for page in pages:
            frames += page.frames
            if b'"type":"turn_complete"' in frames[-1] and b'"promptId":"p5"' in frames[-1]:
                return True
            left -= 1
            if not left:
                break
            for _ in range(pages_per_visit % 4):
                await anyio.lowlevel.checkpoint()
    return False


@pytest.mark.guarantee("G8", "G9")
async def test_readers_that_come_leave_and_return_see_one_order_and_disturb_nothing(world: OpenWorld) -> None:
    async with world(limits=TINY) as w:
        seen: list[list[bytes]] = [[] for _ in range(8)]

        async def read(frames: list[bytes], pages_per_visit: int) -> None:
            while not await visit(w, frames, pages_per_visit):
                pass

        async def work() -> None:
            for number in range(1, 6):
                await w.prompt("flood 100\ntool t1", f"p{number}")

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                for number, frames in enumerate(seen, 1):
                    tasks.start_soon(read, frames, number)
                tasks.start_soon(work)
        expected = [each.body for each in await stored(w.log, S1)]
        check_ends(await w.events())
    for frames in seen:
        assert frames == expected[: len(frames)]
        assert len(frames) >= 500


@pytest.mark.guarantee("G8")
async def test_a_prompter_that_leaves_at_once_has_its_turn_all_the_same(world: OpenWorld) -> None:
    async with world() as w:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(w.node.submit, S1, prompt("say 3 on my own"))
            await quiet()
            tasks.cancel_scope.cancel()
        assert isinstance(await w.end(), ev.TurnCompleted)
        assert texts(await w.events(), "p1") == ["on my own"] * 3


# -- the log is all there is ---------------------------------------------------------------------------------


@pytest.mark.guarantee("G1")
async def test_live_state_is_the_fold_of_the_log_and_turns_can_be_told_from_it_alone(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 2 one\ntool t1", "p1")
        await w.prompt("error -1 no", "p2")
        await w.prompt("never", "p3")
        await w.end("p2")
        await w.until(lambda event: isinstance(event, ev.TurnStarted) and event.prompt_id == "p3")
        await w.cancel("p3")
        await w.end("p3")
        await quiet()
        events = await w.events()
        session = await w.node.session(S1)
        assert encode_state(session.state) == encode_state(fold(events, NOTHING))
    spans: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, ev.TurnStarted | ev.TurnCompleted | ev.TurnFailed):
            spans.setdefault(event.prompt_id, []).append(type(event).__name__)
    assert spans == {
        "p1": ["TurnStarted", "TurnCompleted"],
        "p2": ["TurnStarted", "TurnFailed"],
        "p3": ["TurnStarted", "TurnCompleted"],
    }


@pytest.mark.guarantee("G1", "G3", "G7")
async def test_a_restart_ends_what_ran_runs_what_waited_and_knows_its_keys(
    world: OpenWorld,
) -> None:
    async with world() as w:
        await w.prompt("say 1 half\nnever", "p1", key="k1")
        await w.prompt("say 1 second", "p2", key="k2")
        await w.prompt("say 1 third", "p3")
        await w.until_update("half")
        before = await stored(w.log, S1)
    async with world(created=False) as w:
        assert isinstance(await w.end("p3"), ev.TurnCompleted)
        again = await w.prompt("say 1 second", "p9", key="k2")
        assert (again.prompt_id, again.repeated) == ("p2", True)
        await quiet()
        after = await stored(w.log, S1)
    assert after[: len(before)] == before, "what was written does not change"
    events = [decode(each.body) for each in after]
    check_ends(events)
    assert [(each.prompt_id, each.code) for each in of(events, ev.TurnFailed)] == [("p1", "daemon_restarted")]
    assert [each.prompt_id for each in of(events, ev.TurnCompleted)] == ["p2", "p3"]
    assert texts(events) == ["half", "second", "third"]


@pytest.mark.guarantee("G9")
async def test_a_cursor_is_good_over_a_restart(world: OpenWorld) -> None:
    async with world() as w:
        await w.prompt("say 5 hello")
        await w.end()
        head = await w.log.head(S1)
    async with world(created=False) as w:
        position = Position(head.epoch, head.head - 3)
        with anyio.fail_after(WAIT_S):
            async with aclosing(w.node.follow(S1, position)) as pages:
                page = await anext(pages)
        assert page.offset == head.head + 1, "and what the restart recorded"
        assert [decode(frame) for frame in page.frames] == (await events_of(w.log, S1))[-4:]
