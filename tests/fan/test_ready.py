"""`session/ready`: a client that sends it receives no unsolicited updates before, and all of them after."""

from __future__ import annotations

import pytest
from tests.fan.clients import WORDS, own_words
from tests.fan.harness import Harness
from tests.fan.matrix import AGENTS, ASKING, fan

pytestmark = pytest.mark.anyio


@fan(dialects=ASKING, agents=AGENTS)
async def test_nothing_is_told_before_ready_and_then_all_of_it_once_in_order(harness: Harness) -> None:
    async with harness.client() as client:
        names = {await client.new(settled=False): name for name in ("session/ready", "_session/ready")}
        # The agent has sent the same in a later session: we do not wait for the agent.
        await client.new()
        await client.echo()
        for session_id, name in names.items():
            assert client.updates(session_id) == []
            await client.notify(name, sessionId=session_id)
            await client.update(session_id, "usage_update")
            assert own_words(client.updates(session_id))[-4:] == WORDS
            await client.notify(name, sessionId=session_id)
            await client.run(session_id, "say 1 x")
            assert own_words(client.updates(session_id)).count("usage_update") == 1


@fan(dialects=ASKING, agents=AGENTS)
async def test_a_prompt_counts_as_ready_and_no_word_is_lost(harness: Harness) -> None:
    async with harness.client() as client:
        session_id = await client.new(settled=False)
        end = await client.run(session_id, "say 1 x")
        assert end.stop_reason == "end_turn"
        told = client.updates(session_id)
        first = next(place for place, each in enumerate(told) if each["sessionUpdate"] == "agent_message_chunk")
        assert own_words(told[:first])[-4:] == WORDS


@fan(dialects=ASKING)
async def test_the_history_of_a_load_is_not_held_back(harness: Harness) -> None:
    async with harness.client() as first, harness.another(first) as client:
        session_id = await first.new()
        await first.run(session_id, f"say 1 {harness.word}")
        begun = len(client.frames)
        answer = await client.load(session_id)
        # The client has not sent ready for it, and has received all of it before the answer.
        assert client.texts(session_id, begun, client.place(answer)) == [harness.word]
