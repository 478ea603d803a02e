"""The operator's switches: no end marker at all, and the timeout for a client to become ready."""

from __future__ import annotations

import pytest
from tests.fan.clients import WORDS, own_words
from tests.fan.harness import Harness
from tests.fan.matrix import AGENTS, ASKING, fan

pytestmark = pytest.mark.anyio


@fan(dialects=["v1plus"], agents=AGENTS)
async def test_an_operator_who_switches_it_off_takes_back_the_offer_and_the_marker(harness: Harness) -> None:
    async with harness.client("hasty") as client:
        assert "turnComplete" not in client.agreed["agentCapabilities"]["sessionCapabilities"]
        assert "turnComplete" not in client.agreed["capabilities"]["session"]
        session_id = await client.new()
        end = await client.run(session_id, "say 1 x")
        assert "turn_complete" not in str(client.frames)
        assert end.frame["result"]["stopReason"] == "end_turn"


@fan(dialects=ASKING)
async def test_a_client_that_never_says_it_is_told_after_the_time_of_the_operator(harness: Harness) -> None:
    async with harness.client("hasty") as client:
        session_id = await client.new(settled=False)
        await client.update(session_id, "usage_update")
        assert own_words(client.updates(session_id))[-4:] == WORDS
        logged = harness.program("hasty").err.read_text()
        assert any("event=ready_missing" in each and session_id in each for each in logged.splitlines())
