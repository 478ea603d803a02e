"""An exported session is played as an agent, and hosting it again gives the same log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.interop.node_session import Talk
from tests.interop.peers import scripted

from recording_rig import hosted, replayed, speak_to_a_script, told
from turnwire.errors import RecordingUnreadable
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.projections.envelope import Envelopes
from turnwire.session import events as ev
from turnwire_testing.recording.exported import entries_of, read_any

pytestmark = pytest.mark.anyio


def exported(events: Sequence[ev.AnyEvent], path: Path) -> Path:
    """The output of `turnwire export` for these."""
    envelopes = Envelopes(SessionId("s1"))
    lines = [envelopes.of_event(number, each) for number, each in enumerate(events, 1)]
    path.write_bytes(b"\n".join([*lines, b""]))
    return path


@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_the_log_of_an_export_that_is_played_is_the_exported_one(profile: str, tmp_path: Path) -> None:
    live = await hosted(scripted("--profile", profile), speak_to_a_script)
    played = await hosted(replayed(exported(live, tmp_path / "session.ndjson")), speak_to_a_script)

    assert told(played) == told(live)


async def test_an_agent_that_died_dies_again_where_it_died(tmp_path: Path) -> None:
    async def speak(talk: Talk) -> None:
        await talk.turn("say 2 hi")
        assert isinstance(await talk.turn("say 1 bye\nexit 7"), ev.TurnFailed)

    live = await hosted(scripted(), speak)
    played = await hosted(replayed(exported(live, tmp_path / "session.ndjson")), speak)

    assert told(played) == told(live)


def started(**more: Any) -> ev.AgentStarted:
    return ev.AgentStarted(
        at=5, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE, **more
    )


def test_an_agent_that_was_started_again_goes_on_as_one() -> None:
    text = Raw(b'[{"type":"text","text":"hi"}]')
    turn: list[ev.AnyEvent] = []
    for each in ("p1", "p2"):
        prompt_id = PromptId(each)
        turn += [
            ev.PromptAccepted(at=6, prompt_id=prompt_id, after_offset=0, content=text),
            started(),
            ev.PromptSent(at=7, prompt_id=prompt_id, agent_request_id=3),
            ev.TurnCompleted(at=8, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
            ev.AgentExited(at=9, reason="idle"),
        ]
    assert [each.named() for each in entries_of(turn)] == [
        "initialize",
        "answer to 'initialize'",
        "session/new",
        "answer to 'session/new'",
        "session/prompt 'hi'",
        "answer to 3",
        "session/prompt 'hi'",
        "answer to '3/p2'",
    ]


def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path: Path) -> None:
    path = exported([started()], tmp_path / "session.ndjson")
    path.write_bytes(path.read_bytes() + b"{}\n")

    with pytest.raises(RecordingUnreadable, match="line 2"):
        read_any(path)
