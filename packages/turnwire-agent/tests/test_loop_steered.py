"""User messages during a turn are never lost, whatever its end: the next request has them."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_kit.talk import WAIT_S, openai_model, talking
from turnwire.client.turn import TurnResult
from turnwire.errors import TurnError
from turnwire_agent.agent import AgentSettings
from turnwire_agent.work import Bounds
from turnwire_testing.models import CallTool, Cut, Fail, FakeOpenAI, Hang, Say, Step, Stop

pytestmark = pytest.mark.anyio

LOOK = CallTool("list", {"path": "."})
ONE = AgentSettings(bounds=Bounds(max_requests=1))


async def how(turn: Awaitable[TurnResult]) -> str:
    """The stop reason, or that it ended with an error."""
    with anyio.fail_after(WAIT_S):
        try:
            return (await turn).stop_reason
        except TurnError:
            return "error"


@pytest.mark.parametrize(
    ("end", "then", "settings", "reason"),
    [
        ([Stop("length")], [], None, "max_tokens"),
        ([LOOK], [], ONE, "max_turn_requests"),
        ([Stop("stop")], [], ONE, "max_turn_requests"),
        ([Stop("refusal")], [], None, "refusal"),
        ([Cut()], [[Fail(401)]], None, "error"),
        ([LOOK], [[Fail(400)]], None, "error"),
        ([Hang()], [], None, "cancelled"),
    ],
    ids=["length", "last request", "end on the last request", "refusal", "failure", "bad request", "cancel"],
)
async def test_a_steer_that_was_taken_is_in_the_next_request_whatever_the_end(
    end: list[Step], then: list[list[Step]], settings: AgentSettings | None, reason: str, tmp_path: Path
) -> None:
    hang = Hang()
    replies = [[Say("first"), hang, *end], *then, [Say("fine")]]
    given: dict[str, Any] = {"settings": settings}
    async with FakeOpenAI(replies) as server, talking(tmp_path, openai_model(server), **given) as talk:
        turn = talk.session.prompt("one thing")
        await talk.until(lambda update: "first" in str(update))
        other = talk.session.prompt("another thing", when_busy="steer")
        await talk.until(lambda update: "another thing" in str(update))
        if reason == "cancelled":
            await talk.session.cancel()
        else:
            hang.released.set()
        assert await how(turn) == reason
        await how(other)
        assert (await talk.turn("and now?")).text == "fine"
    kept = json.dumps(server.requests[-1]["messages"])
    assert kept.count("another thing") == 1
    assert kept.index("another thing") < kept.index("and now?")
    assert ("one thing" in kept) == (reason != "refusal")
