"""Child sessions as a program with the SDK sees them: in process, and with a daemon."""

from __future__ import annotations

import pytest
from tests.support.clients import Connected, script

from turnwire.client import Question, Update

pytestmark = pytest.mark.anyio


async def test_what_a_child_says_and_asks_names_the_child_and_is_no_answer(connected: Connected) -> None:
    async with connected("v2") as seat:
        heard: list[Update] = []
        asked: list[Question] = []
        seat.session.on_update(heard.append)

        @seat.session.on_permission
        def allow(question: Question) -> str:
            asked.append(question)
            return "allow_once"

        commands = ("say 1 mine", "child look say 1 inside", "child look ask t1 allow_once", "child-rests look")
        result = await seat.session.prompt(script(*commands))
        child = f"{seat.session.session_id}.1"
        assert (result.text, result.stop_reason) == ("mine", "end_turn")
        assert [each.child for each in asked] == [child]
        inside = [each for each in heard if each.child == child]
        assert [each.kind for each in inside][:3] == ["state_update", "agent_message_chunk", "tool_call_update"]
        assert b"selected allow_once" in b"".join(bytes(each.raw) for each in inside)
        assert {each.prompt_id for each in inside} == {result.prompt_id}
        assert "".join(each.text for each in heard) == "mine"
