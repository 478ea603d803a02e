"""Ends of turns of real agent processes, their cancellation, and the reports about a turn that does not end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.node_session import Talk
from tests.process.hosted import Hosted, hosted, plain, scripted
from tests.support.driving import check_ends, of

from turnwire.ids import PromptId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session.inputs import Cancel, Settle
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
SUSPECT_S = Limits().suspect_after_s


def completed(ended: object) -> ev.TurnCompleted:
    assert isinstance(ended, ev.TurnCompleted), ended
    return ended


async def cancel(host: Hosted, talk: Talk, prompt_id: str) -> object:
    return await host.node.submit(talk.session_id, Cancel(at=5, prompt_id=PromptId(prompt_id), author="ann"))


# -- the missing end -----------------------------------------------------------------------------------------


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_silence_is_a_suspicion_with_its_evidence_and_only_a_person_settles_it(profile: str) -> None:
    async with hosted(scripted("--profile", profile)) as host:
        talk = await host.talk()
        prompt_id = await talk.prompt("say 1 'all done'\nnever")
        await talk.until_said("all done", prompt_id)
        await quiet()
        host.clock.advance(SUSPECT_S - 0.1)
        before = await host.node.agents.explain(talk.session_id)
        assert (before.state, before.suspected_complete, before.reasons) == ("running", False, [])
        host.clock.advance(0.1)
        found = await host.node.agents.explain(talk.session_id)
        assert (found.suspected_complete, found.prompt_id, found.quiet_s) == (True, prompt_id, SUSPECT_S)
        assert any("nothing has happened for 30 s" in each for each in found.reasons)
        assert found.agent.pid == host.source.newest.pid
        assert found.agent.open_requests == (0 if profile == "v2" else 1)
        assert "all done" in found.agent.last_received[-1]
        assert '"session/prompt"' in found.agent.last_sent[-1]
        host.clock.advance(DAY_S)
        await quiet()
        assert not of(await talk.events(), ev.TurnCompleted), "no timer ends a turn"
        assert (await host.node.agents.explain(talk.session_id)).state == "running"
        await host.node.submit(talk.session_id, Settle(at=9, prompt_id=prompt_id, author="ann"))
        assert completed(await talk.end(prompt_id)).ending == "settled"
        check_ends(await talk.events())


@pytest.mark.guarantee("G5")
async def test_the_prompt_after_a_settled_turn_works() -> None:
    """This includes an agent that never answers the previous prompt, not even when it is cancelled."""
    async with hosted(plain()) as host:
        talk = await host.talk()
        prompt_id = await talk.prompt("mute")
        await talk.until_said("heard mute", prompt_id)
        await host.node.submit(talk.session_id, Settle(at=9, prompt_id=prompt_id))
        ended = completed(await talk.end(prompt_id))
        assert (ended.ending, ended.stop_reason) == ("settled", "end_turn")
        follower = await talk.prompt("hello")
        await quiet()
        host.clock.advance(Limits().cancel_grace_s)
        assert completed(await talk.end(follower)).ending == "response"
        assert host.source.tries == 1
        check_ends(await talk.events())


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("tool-open t1\nsay 1 x\nnever", "a tool call is not finished"),
        ("say 1 x\nask t1 allow_once", "a permission request waits for an answer"),
        ("say 1 x\nterminal sleep 600", "the agent waits for terminal/wait_for_exit"),
    ],
)
async def test_silence_with_something_open_is_no_suspicion(script: str, reason: str, tmp_path: Path) -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk(tmp_path)
        prompt_id = await talk.prompt(script)
        await talk.until_said("x", prompt_id)
        if "ask" in script:
            await talk.until_asked(prompt_id)
        while "terminal" in script and not any("terminal/wait" in each for each in await received(host, talk)):
            await quiet()
        host.clock.advance(DAY_S)
        found = await host.node.agents.explain(talk.session_id)
        assert not found.suspected_complete
        assert reason in found.reasons
        assert found.tools_in_flight == (["t1"] if "t1" in script else [])
        await cancel(host, talk, prompt_id)
        assert completed(await talk.end(prompt_id)).stop_reason == "cancelled"


async def received(host: Hosted, talk: Talk) -> list[str]:
    return (await host.node.agents.explain(talk.session_id)).agent.last_received


async def test_a_session_without_a_turn_is_idle_and_says_who_serves_it() -> None:
    async with hosted(plain()) as host:
        talk = await host.talk()
        found = await host.node.agents.explain(talk.session_id)
        assert (found.state, found.suspected_complete, found.agent.connected) == ("idle", False, True)
        assert found.agent.pid == host.source.newest.pid


# -- cancelling ----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(
    ("deaf", "rungs"),
    [
        ("ignore-cancel", ["cancel_request", "terminate"]),
        ("ignore-cancel\nignore-signal SIGTERM", ["cancel_request", "terminate", "kill"]),
    ],
)
async def test_a_cancel_that_is_not_heard_climbs_to_the_signals_and_each_rung_is_an_event(
    deaf: str, rungs: list[str]
) -> None:
    limits = Limits(cancel_grace_s=10.0, cancel_rung_s=5.0)
    async with hosted(scripted(), limits=limits) as host:
        talk = await host.talk()
        first = host.source.newest
        prompt_id = await talk.prompt(f"{deaf}\nsay 1 x\nnever")
        await talk.until_said("x", prompt_id)
        await cancel(host, talk, prompt_id)
        waits = [limits.cancel_grace_s, *[limits.cancel_rung_s] * (len(rungs) - 1)]
        for wait, rung in zip(waits, rungs, strict=True):
            await host.clock.wait_for_sleepers(2)
            assert rung not in await climbed(talk)
            host.clock.advance(wait)
            await talk.until(lambda event, rung=rung: isinstance(event, ev.CancelEscalated) and event.rung == rung)
        ended = completed(await talk.end(prompt_id))
        assert (ended.stop_reason, ended.ending, ended.cancelled_by) == ("cancelled", "cancelled", "ann")
        assert await climbed(talk) == rungs
        gone = await first.exited()
        assert gone.stopped_by == ("kill" if "kill" in rungs else "term")
        assert await talk.said("echo again") == "again"
        check_ends(await talk.events())


async def climbed(talk: Talk) -> list[str]:
    return [each.rung for each in of(await talk.events(), ev.CancelEscalated)]


async def test_a_prompt_of_an_agent_that_is_still_starting_is_cancelled_at_once() -> None:
    async with hosted(plain(initialize={"2": None}), limits=Limits(stop_eof_s=0.1)) as host:
        talk = await host.talk(opened=False)
        prompt_id = await talk.prompt("hello")
        await cancel(host, talk, prompt_id)
        assert completed(await talk.end(prompt_id)).stop_reason == "cancelled"
