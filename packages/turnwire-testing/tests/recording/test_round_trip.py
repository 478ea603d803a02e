"""Recorded, played and recorded again: the same frames, and the same log, through real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.rig import PROGRAM
from tests.interop.node_session import Talk
from tests.interop.peers import OFFICIAL, scripted

from recording_rig import Scene, frames, hosted, recorded, replayed, speak_to_a_script, told

pytestmark = pytest.mark.anyio
PY_V1, PY_V2 = OFFICIAL[:2]


async def speak_to_a_peer(talk: Talk) -> None:
    """The words that agents of the official SDKs know."""
    assert await talk.said("hello there") == "You said: hello there."
    asking = await talk.prompt("edit the file")
    await talk.answer(await talk.until_asked(asking), "yes")
    await talk.end(asking)
    waiting = await talk.prompt("wait for me")
    await talk.until_said("waiting", waiting)
    await talk.cancel(waiting)
    await talk.end(waiting)


async def speak_to_the_built_in_one(talk: Talk) -> None:
    await talk.turn("hello")
    await talk.turn("what can you do?")


@pytest.mark.parametrize(
    ("name", "scene"),
    [
        ("v1", speak_to_a_script),
        pytest.param("v1plus", speak_to_a_script, marks=pytest.mark.full("starts four processes")),
        ("v2", speak_to_a_script),
        ("builtin", speak_to_the_built_in_one),
        pytest.param("py-v1", speak_to_a_peer, marks=pytest.mark.full("starts four processes")),
        pytest.param("py-v2", speak_to_a_peer, marks=pytest.mark.full("starts four processes")),
    ],
)
async def test_what_is_played_is_recorded_as_it_was(name: str, scene: Scene, tmp_path: Path) -> None:
    agents = {
        "builtin": lambda: [*PROGRAM, "agent", "--data", ":memory:"],
        "py-v1": lambda: PY_V1.command(tmp_path),
        "py-v2": lambda: PY_V2.command(tmp_path),
    }
    agent = agents[name]() if name in agents else scripted("--profile", name)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"

    live = await hosted(recorded(agent, first), scene)
    played = await hosted(recorded(replayed(first), second), scene)

    assert frames(second) == frames(first)
    assert told(played) == told(live)
