"""A prompt's client is notified before its agent is called (S5), whatever happens in between."""

from __future__ import annotations

import anyio
import pytest
from tests.support.driving import open_world, prompt

from turnwire.ids import PromptId, SessionId
from turnwire.log import MemoryEventLog
from turnwire.session import events as ev
from turnwire.session.inputs import Cancel, Close
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")


@pytest.mark.guarantee("G2")
async def test_the_agent_is_not_asked_before_the_client_was_told() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        accepted, told = await world.node.accept(S1, prompt("hello"))
        await quiet()
        seen = [type(each) for each in await world.events()]
        assert ev.TurnStarted in seen, "the prompt is recorded"
        assert ev.PromptSent not in seen, "and nobody has acted on it"
        told()
        end = await world.end(accepted.prompt_id)
        assert isinstance(end, ev.TurnCompleted)


async def test_a_cancel_before_the_client_was_told_ends_the_turn_once_it_was() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        accepted, told = await world.node.accept(S1, prompt("never"))
        await world.node.submit(S1, Cancel(at=2, prompt_id=accepted.prompt_id))
        told()
        end = await world.end(accepted.prompt_id)
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "cancelled"


async def test_a_turn_that_is_over_before_the_client_was_told_is_not_given_to_the_agent() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        accepted, told = await world.node.accept(S1, prompt("hello"))
        await world.node.submit(S1, Close(at=2))
        told()
        await quiet()
        events = await world.events()
        assert not any(isinstance(each, ev.PromptSent) for each in events)
        [end] = [each for each in events if isinstance(each, ev.TurnCompleted)]
        assert end.prompt_id == accepted.prompt_id


async def test_a_prompt_whose_session_was_put_away_before_its_client_was_told_is_asked_by_whoever_opens_it() -> (
    None
):
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        session, performed = await world.node.session(S1), list[object]()
        _, told = await world.node.accept(S1, prompt("hello"))
        # A log that went away while it was opened does this.
        session.stop()
        session.perform = performed.append
        told()
        assert not performed


async def test_a_refused_prompt_leaves_nothing_behind() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        await world.node.submit(S1, Close(at=2))
        with pytest.raises(Exception, match="closed"):
            await world.node.accept(S1, prompt("hello"))


async def test_a_second_prompt_waits_for_its_own_answer_only() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.until_kind(ev.AgentStarted)
        _, told_first = await world.node.accept(S1, prompt("hello", "p1"))
        _, told_second = await world.node.accept(S1, prompt("hello", "p2"))
        told_first()
        await world.end("p1")
        await quiet()
        sent = [each.prompt_id for each in await world.events() if isinstance(each, ev.PromptSent)]
        assert sent == ["p1"], "the second has started, and its client does not know it yet"
        told_second()
        with anyio.fail_after(WAIT_S):
            await world.end(PromptId("p2"))
