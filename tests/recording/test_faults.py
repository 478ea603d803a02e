"""Faults of a played agent, in a process of its own under a node: every turn still has exactly one end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import pytest
from tests.interop.node_session import Talk, host, spoken
from tests.interop.peers import scripted
from tests.recording.rig import frames, hosted, recorded, replayed
from tests.support.driving import check_ends, of

from turnwire.core import events as ev
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.recording.faults import FLOOD, Fault, turns_of, with_faults
from turnwire.recording.format import read_recording
from turnwire.runtime.node import open_node
from turnwire.runtime.source import ProcessSource
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio
PROMPT = "say 4 héllo\nplan one; two"


async def speak(talk: Talk) -> None:
    await talk.turn(PROMPT)


@pytest.fixture(scope="module", params=["v1", "v2"])
async def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded turn of this version."""
    path = tmp_path_factory.mktemp("recorded") / "turn.jsonl"
    await hosted(recorded(scripted("--profile", request.param), path), speak)
    return path


async def under(file: Path, *flags: str) -> tuple[ev.TurnCompleted | ev.TurnFailed, list[ev.AnyEvent]]:
    """The end of the turn when it is played with these flags, and the whole log a while after."""
    async with host(replayed(file, *flags)) as opened:
        talk = await opened.talk()
        ended = await talk.turn(PROMPT)
        # Whatever the agent has still to say comes before the answer to another request.
        await talk.turn("something that is not recorded")
        events = await talk.events()
    check_ends(events)
    assert len([each for each in of(events, ev.TurnCompleted) if each.prompt_id == ended.prompt_id]) <= 1
    return ended, events


@pytest.mark.requirement("G4")
async def test_an_update_after_the_end_is_kept_as_late_and_ends_nothing(file: Path) -> None:
    ended, events = await under(file, "--chaos", "late")

    late = [each for each in of(events, ev.SessionUpdated) if each.after == ended.prompt_id]
    assert isinstance(ended, ev.TurnCompleted)
    assert len(late) == 1


@pytest.mark.requirement("G3")
async def test_what_comes_twice_ends_a_turn_once(file: Path) -> None:
    ended, events = await under(file, "--chaos", "dup", "--seed", "3")

    once = Counter(each.update["sessionUpdate"] for each in read_recording(file).entries if each.update)
    assert isinstance(ended, ev.TurnCompleted)
    assert (Counter(each.kind for each in of(events, ev.SessionUpdated)) - once).total() >= 1


@pytest.mark.requirement("G3")
async def test_an_agent_that_dies_in_a_turn_fails_it(file: Path) -> None:
    async with host(replayed(file, "--chaos", "die")) as opened:
        talk = await opened.talk()
        ended = await talk.turn(PROMPT)
        check_ends(await talk.events())
    assert isinstance(ended, ev.TurnFailed)
    assert (ended.code, ended.signal) == ("agent_exited", "SIGKILL")


@pytest.mark.requirement("G3")
async def test_an_agent_that_stalls_is_cancelled_in_the_end(file: Path) -> None:
    log, limits = MemoryEventLog(), Limits(cancel_grace_s=0.1, cancel_rung_s=0.1)
    async with open_node(log, ProcessSource(replayed(file, "--chaos", "stall")), limits=limits) as node:
        with anyio.fail_after(WAIT_S):
            talk = Talk(node, log, await node.create("/"))
        prompt_id = await talk.prompt(PROMPT)
        await talk.until(lambda event: isinstance(event, ev.PromptSent))
        await talk.cancel(prompt_id)
        ended = await talk.end(prompt_id)
        check_ends(await talk.events())
    assert isinstance(ended, ev.TurnCompleted)
    assert ended.stop_reason == "cancelled"


@pytest.mark.requirement("G3")
async def test_a_flood_is_all_in_the_log_before_the_end(file: Path) -> None:
    ended, events = await under(file, "--chaos", "flood", "--seed", "1")

    inside = [each for each in of(events, ev.SessionUpdated) if each.prompt_id == ended.prompt_id]
    assert isinstance(ended, ev.TurnCompleted)
    assert len(inside) > FLOOD
    assert events.index(inside[-1]) <= events.index(ended)


async def test_frames_in_pieces_are_the_same_frames(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    events = await hosted(recorded(replayed(file, "--chaos", "split", "--seed", "5"), again), speak)

    assert spoken(events, of(events, ev.TurnCompleted)[0].prompt_id) == ["héllo"] * 4
    assert frames(again) == frames(file)


def test_a_seed_does_the_same_again_and_another_one_something_else(file: Path) -> None:
    entries = read_recording(file).entries
    faults = [each for each in Fault if each is not Fault.SPLIT]

    assert len(turns_of(entries)) == 1
    for fault in faults:
        found = [[each.line for each in with_faults(entries, [fault], seed)] for seed in range(20)]
        assert found[0] == [each.line for each in with_faults(entries, [fault], 0)]
        assert any(each != found[0] for each in found)
    assert with_faults(entries, (), 0) == entries
