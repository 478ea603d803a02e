"""An agent that dies: the error of its turn, its replacement, and the limit of restarts."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.patience import SOON_S
from tests.process.hosted import LOADS, RESUMES, hosted, how, plain, scripted, words
from tests.process.starting import is_listed
from tests.support.driving import check_ends, of

from turnwire.limits import Limits
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

BOTH: dict[str, Any] = {**LOADS, **RESUMES}


def failed(ended: object) -> ev.TurnFailed:
    assert isinstance(ended, ev.TurnFailed), ended
    return ended


# -- what a turn is told -------------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 3", 3, None), ("signal SIGSEGV", None, "SIGSEGV"), ("exit 0", 0, None)]
)
async def test_a_turn_whose_agent_dies_is_told_how_with_its_last_words(
    script: str, code: int | None, number: str | None
) -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk()
        ended = failed(await talk.turn(f"say 2 'so far '\nstderr out of memory\n{script}"))
        assert (ended.code, ended.exit_code, ended.signal) == ("agent_exited", code, number)
        assert ended.stderr_tail == "out of memory\n"
        events = await talk.events()
        assert (await words(talk)) == ["so far ", "so far "], "what was said before is kept"
        [exited] = of(events, ev.AgentExited)
        assert (exited.exit_code, exited.signal, exited.stderr_tail) == (code, number, "out of memory\n")
        check_ends(events)


@pytest.mark.guarantee("G3")
async def test_a_killed_agent_ends_its_turn_within_a_second_and_the_next_prompt_gets_a_new_one() -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk()
        prompt_id = await talk.prompt("say 1 working\nnever")
        await talk.until_said("working", prompt_id)
        first = host.source.newest
        killed_at = time.monotonic()
        first.kill()
        ended = failed(await talk.end(prompt_id))
        assert time.monotonic() - killed_at < SOON_S
        assert (ended.code, ended.signal) == ("agent_exited", signal.SIGKILL.name)
        assert await talk.said("echo again") == "again"
        assert host.source.newest.pid != first.pid
        assert not is_listed(first.pid)
        check_ends(await talk.events())


async def test_an_agent_that_dies_while_nobody_prompts_is_recorded_and_replaced() -> None:
    async with hosted(plain()) as host:
        talk = await host.talk()
        host.source.newest.terminate()
        gone = await talk.until(lambda event: isinstance(event, ev.AgentExited))
        assert isinstance(gone, ev.AgentExited)
        assert gone.signal == "SIGTERM"
        assert host.source.tries == 1, "nothing is started until somebody asks"
        assert await talk.said("hello") == "heard hello"
        assert host.source.tries == 2


# -- the memory of a session ---------------------------------------------------------------------------------


async def test_a_session_is_resumed_where_the_agent_can(tmp_path: Path) -> None:
    async with hosted(plain(folder=str(tmp_path), capabilities=BOTH)) as host:
        talk = await host.talk()
        assert await talk.said("one") == "heard one"
        failed(await talk.turn("die"))
        assert await talk.said("two") == "heard two"
        assert await how(talk) == ["new", "resume"]
        started = of(await talk.events(), ev.AgentStarted)
        assert started[0].agent_session_id == started[1].agent_session_id
        assert await words(talk) == ["heard one", "heard two"]
        assert of(await talk.events(), ev.HistoryCompared) == []


async def test_an_agent_that_counts_its_sessions_anew_still_gets_a_new_one_beside_those_that_came_back(
    tmp_path: Path,
) -> None:
    async with hosted(plain(folder=str(tmp_path), capabilities=BOTH, counts=True)) as host:
        old = [await host.talk(), await host.talk()]
        for each in old:
            assert await each.said("one") == "heard one"
        host.source.newest.kill()
        for each in old:
            await each.until(lambda event: isinstance(event, ev.AgentExited))
            assert await each.said("two") == "heard two"
        fresh = await host.talk()
        assert await fresh.said("three") == "heard three"
        started = [of(await each.events(), ev.AgentStarted)[-1] for each in (*old, fresh)]
        assert [each.agent_session_id for each in started] == ["plain-1", "plain-2", "plain-3"]
        assert [await words(each) for each in old] == [["heard one", "heard two"]] * 2


@pytest.mark.parametrize("habits", [{"capabilities": LOADS}, {"capabilities": BOTH, "refuse": ["session/resume"]}])
async def test_a_loaded_session_is_compared_with_the_log_and_not_stored_twice(
    tmp_path: Path, habits: dict[str, Any]
) -> None:
    async with hosted(plain(folder=str(tmp_path), **habits)) as host:
        talk = await host.talk()
        assert await talk.said("one") == "heard one"
        failed(await talk.turn("die"))
        assert await talk.said("two") == "heard two"
        assert await how(talk) == ["new", "load"]
        assert await words(talk) == ["heard one", "heard two"], "the replay is no news"
        compared = await talk.until(lambda event: isinstance(event, ev.HistoryCompared))
        assert isinstance(compared, ev.HistoryCompared)
        # The prompt that the agent received before it died is in its memory: a message of the user without an
        # answer.
        assert (compared.replayed, compared.matched, compared.missing) == (3, 3, 0)
        assert compared.first_difference is None
        check_ends(await talk.events())


async def test_a_replay_that_differs_is_shown_with_the_first_difference(tmp_path: Path) -> None:
    async with hosted(plain(folder=str(tmp_path), capabilities=LOADS, forgets=2), is_timed=True) as host:
        talk = await host.talk()
        await talk.said("one")
        failed(await talk.turn("die"))
        await talk.said("two")
        compared = await talk.until(lambda event: isinstance(event, ev.HistoryCompared))
        assert isinstance(compared, ev.HistoryCompared)
        assert (compared.replayed, compared.matched, compared.missing) == (1, 1, 2)
        assert compared.first_difference == "entry 2: the log has an agent message, the replay has nothing"


@pytest.mark.parametrize(("capabilities", "refused"), [({}, []), (LOADS, ["load"]), (BOTH, ["resume", "load"])])
async def test_an_agent_that_lost_the_session_gets_a_new_one_and_the_log_says_so_and_why(
    capabilities: dict[str, Any], refused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with hosted(plain(capabilities=capabilities)) as host:
        talk = await host.talk()
        await talk.said("one")
        failed(await talk.turn("die"))
        assert await talk.said("two") == "heard two"
        assert await how(talk) == ["new", "lost"]
        started = of(await talk.events(), ev.AgentStarted)
        assert started[0].agent_session_id != started[1].agent_session_id
        told = started[1].refused or ()
        assert [each.how for each in told] == refused
        assert all(b"there is no such session" in bytes(each.agent_error) for each in told)
        known = (await host.node.agents.explain(talk.session_id)).agent
        assert known.opened == "lost"
        assert known.refused == [f"{each}: there is no such session" for each in refused]
    warned = [each for each in caplog.records if each.__dict__.get("event") == "session_not_brought_back"]
    assert [each.__dict__["how"] for each in warned] == refused
    assert all("there is no such session" in each.getMessage() for each in warned)


# -- restart loops -------------------------------------------------------------------------------------------


async def test_an_agent_that_dies_again_and_again_is_not_started_for_a_while() -> None:
    limits = Limits(breaker_failures=1, breaker_first_s=4.0, breaker_most_s=10.0)
    async with hosted(plain(), limits=limits) as host:
        talk = await host.talk()
        for _ in range(2):
            assert failed(await talk.turn("die")).code == "agent_exited"
        tries = host.source.tries
        refused = failed(await talk.turn("hello"))
        assert refused.code == "agent_unavailable"
        assert "not started again for 4 s" in refused.message
        host.clock.advance(3.0)
        assert "not started again for 1 s" in failed(await talk.turn("hello")).message
        assert host.source.tries == tries, "a closed breaker starts nothing"
        host.clock.advance(1.0)
        assert failed(await talk.turn("die")).code == "agent_exited"
        assert "not started again for 8 s" in failed(await talk.turn("hello")).message
        host.clock.advance(8.0)
        failed(await talk.turn("die"))
        assert "not started again for 10 s" in failed(await talk.turn("hello")).message, "the wait is bounded"
        check_ends(await talk.events())


# -- the handshake -------------------------------------------------------------------------------------------


async def test_an_agent_that_never_answers_initialize_is_let_go_and_said_so() -> None:
    limits = Limits(initialize_s=0.3, stop_eof_s=1.0)
    async with hosted(plain(initialize={"2": None, "1": None}), limits=limits) as host:
        ended = failed(await (await host.talk(opened=False)).turn("hello"))
        assert ended.code == "agent_launch_failed"
        assert "did not answer `initialize` in time" in ended.message
        assert host.source.alive == []
