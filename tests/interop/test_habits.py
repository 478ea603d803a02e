"""Behaviour of released agents that no specification foresees, played by small agents over real pipes."""

from __future__ import annotations

import pytest
from tests.interop.node_session import host, spoken, updates
from tests.interop.peers import raw_agent, scripted
from tests.support.driving import check_ends, of

from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


@pytest.mark.guarantee("G4", "G3")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_metadata_right_behind_the_end_is_late_and_belongs_to_no_turn(profile: str) -> None:
    async with host(scripted("--profile", profile)) as opened:
        talk = await opened.talk()
        ended = await talk.turn("say 1 done\nafter title 'A title'\nafter usage 10 200000")
        await talk.until(lambda event: isinstance(event, ev.SessionUpdated) and event.kind == "usage_update")
        events = await talk.events()
    check_ends(events)
    late = [*updates(events, "session_info_update"), *updates(events, "usage_update")]
    assert [(each.prompt_id, each.after) for each in late] == [(None, ended.prompt_id)] * 2
    assert spoken(events, ended.prompt_id) == ["done"]


async def test_an_agent_that_says_2_in_the_shape_of_v1_is_spoken_to_in_v1() -> None:
    async with host(raw_agent("says_two")) as opened:
        talk = await opened.talk()
        assert await talk.said("hello") == "one two"
        events = await talk.events()
    assert of(events, ev.AgentStarted)[0].protocol_version == 1
    assert [each.ending for each in of(events, ev.TurnCompleted)] == ["response"]
