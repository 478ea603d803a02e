"""Agents that replay their history on `session/resume`, before or after the answer: the log has it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.node_session import Talk
from tests.process.hosted import RESUMES, Hosted, hosted, how, plain
from tests.support.driving import check_ends, of

from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.projections.view import View
from turnwire.projections.view.transcript import Message, join_text
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

WHEN = pytest.mark.parametrize("when", ["before", "after"])
SAID = ["hello", "heard hello", "again", "heard again"]


def words(view: View) -> list[str]:
    return [join_text(each.content) for each in view.items if isinstance(each, Message)]


async def interrupted(host: Hosted) -> Talk:
    """Return a session of two turns, whose agent was killed after them."""
    talk = await host.talk()
    await talk.said("hello")
    await talk.said("again")
    host.source.newest.kill()
    await talk.until(lambda event: isinstance(event, ev.AgentExited))
    return talk


@WHEN
async def test_a_replay_on_resume_is_compared_and_not_stored_again(tmp_path: Path, when: str) -> None:
    command = plain(folder=str(tmp_path), capabilities=RESUMES, repeats=when)
    async with hosted(command, is_timed=True) as host:
        talk = await interrupted(host)
        assert await talk.said("more") == "heard more"
        compared = await talk.until(lambda event: isinstance(event, ev.HistoryCompared))
        assert isinstance(compared, ev.HistoryCompared)
        assert (compared.replayed, compared.matched, compared.missing) == (4, 4, 0)
        assert await how(talk) == ["new", "resume"]
        events = await talk.events()
        check_ends(events)
        assert not [each for each in of(events, ev.SessionUpdated) if each.kind == "user_message_chunk"]
        assert words(await host.node.view(talk.session_id)) == [*SAID, "more", "heard more"]


async def test_a_replay_behind_the_answer_to_a_load_is_not_stored_again_either(tmp_path: Path) -> None:
    command = plain(folder=str(tmp_path), capabilities={"loadSession": True}, repeats="after")
    async with hosted(command, is_timed=True) as host:
        talk = await interrupted(host)
        assert await talk.said("more") == "heard more"
        assert await how(talk) == ["new", "load"]
        assert words(await host.node.view(talk.session_id)) == [*SAID, "more", "heard more"]
        compared = of(await talk.events(), ev.HistoryCompared)
        assert (compared[-1].matched, compared[-1].missing) == (4, 0)


@WHEN
async def test_it_is_so_for_a_session_that_was_opened_anew_and_what_is_new_is_kept(
    tmp_path: Path, when: str
) -> None:
    log = MemoryEventLog()
    command = plain(folder=str(tmp_path), capabilities=RESUMES, repeats=when, adds="I was away")
    async with hosted(command, log=log, is_timed=True) as host:
        talk = await host.talk(session_id="s1")
        await talk.said("hello")
        await talk.said("again")
    async with hosted(command, log=log, is_timed=True) as host:
        talk = Talk(host.node, log, talk.session_id, first=10)
        for _ in range(2):
            assert await talk.said("more") == "heard more"
            host.source.newest.kill()
            await talk.until(lambda event: isinstance(event, ev.AgentExited) and event.reason == "agent_exited")
        said = words(await host.node.view(talk.session_id))
        assert [each for each in said if each != "I was away"] == [*SAID, *["more", "heard more"] * 2]
        assert said.count("I was away") == 2


@pytest.mark.parametrize(
    ("capabilities", "when"),
    [(RESUMES, "before"), (RESUMES, "after"), ({"loadSession": True}, "before"), ({"loadSession": True}, "after")],
)
@pytest.mark.guarantee("G2")
async def test_a_history_in_other_words_is_no_answer_over_three_restarts(
    tmp_path: Path, capabilities: dict[str, object], when: str
) -> None:
    command = plain(folder=str(tmp_path), capabilities=capabilities, repeats=when, retells=True)
    async with hosted(command, limits=Limits(agent_young_s=0), is_timed=True) as host:
        talk = await host.talk()
        prompts = ["one", "two", "three", "four"]
        for text in prompts:
            assert await talk.said(text) == f"heard {text}"
            host.source.newest.kill()
            exits = iter(range(prompts.index(text)))
            await talk.until(
                lambda event, left=exits: isinstance(event, ev.AgentExited) and next(left, None) is None
            )
        told = [each for text in prompts for each in (text, f"heard {text}")]
        assert words(await host.node.view(talk.session_id)) == told


async def test_an_agent_that_forgot_the_end_loses_nothing_that_it_says_again(tmp_path: Path) -> None:
    command = plain(folder=str(tmp_path), capabilities=RESUMES, repeats="before", forgets=2)
    async with hosted(command, is_timed=True) as host:
        talk = await interrupted(host)
        assert await talk.said("hello") == "heard hello"
        assert words(await host.node.view(talk.session_id)) == [*SAID, "hello", "heard hello"]
