"""Assignment of sessions to processes: one for all, or one each; and the lifetime of an idle one."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.interop.node_session import WAIT_S, Talk
from tests.process.hosted import LOADS, RESUMES, SESSION, Hosted, hosted, how, plain, scripted, words
from tests.process.starting import watching
from tests.support.driving import check_ends, of

from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session.inputs import Close
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

IDLE_S = 600.0
"""Time after which the tests let an agent go; sessions stay in memory longer."""
IDLE = Limits(agent_idle_s=IDLE_S, idle_unload_s=4 * IDLE_S)


async def fall_idle(host: Hosted, seconds: float = IDLE_S) -> None:
    """Let that much time pass, in the steps in which the node looks around."""
    for _ in range(int(2 * seconds / IDLE_S)):
        await host.clock.wait_for_sleepers(1)
        await quiet()
        host.clock.advance(IDLE_S / 2)
        await quiet()


async def until_recycled(talk: Talk) -> None:
    with anyio.fail_after(WAIT_S):
        while not of(await talk.events(), ev.AgentExited):
            await anyio.lowlevel.checkpoint()


# -- one for all, or one each --------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
async def test_fifty_sessions_of_one_process_have_each_its_own_turns_and_ends() -> None:
    async with hosted(scripted()) as host:
        talks = [await host.talk(opened=False) for _ in range(50)]

        async def chat(talk: Talk, number: int) -> None:
            for turn in range(3):
                assert await talk.said(f"say 5 '{number}.{turn} '") == f"{number}.{turn} " * 5

        async with anyio.create_task_group() as tasks:
            for number, talk in enumerate(talks):
                tasks.start_soon(chat, talk, number)
        assert host.source.tries == 1
        for talk in talks:
            events = await talk.events()
            check_ends(events)
            assert len(of(events, ev.TurnCompleted)) == 3


async def test_a_death_is_told_to_every_session_of_the_process() -> None:
    async with hosted(scripted()) as host:
        busy, idle = await host.talk(), await host.talk()
        prompt_id = await busy.prompt("say 1 x\nnever")
        await busy.until_said("x", prompt_id)
        await idle.turn("exit 4")
        ended = await busy.end(prompt_id)
        assert isinstance(ended, ev.TurnFailed)
        assert ended.exit_code == 4
        assert [await talk.said("echo again") for talk in (busy, idle)] == ["again"] * 2
        assert host.source.tries == 2


async def test_with_a_process_each_a_death_is_one_session_s_own() -> None:
    async with hosted(plain(), policy=SESSION) as host:
        first, second = await host.talk(), await host.talk()
        pids = [await host.pid(first), await host.pid(second)]
        assert len(set(pids)) == host.source.tries == 2
        assert isinstance(await first.turn("die"), ev.TurnFailed)
        assert await second.said("hello") == "heard hello"
        assert await host.pid(second) == pids[1]
        assert of(await second.events(), ev.AgentExited) == []
        assert await first.said("hello") == "heard hello"


@pytest.mark.guarantee("G14")
async def test_an_agent_of_its_own_goes_with_its_session_and_makes_room() -> None:
    async with hosted(plain(), policy=SESSION, limits=Limits(agent_processes=1)) as host:
        talk = await host.talk()
        with watching(host.source.newest.pid) as process:
            await host.node.submit(talk.session_id, Close(at=1))
            await process.gone()
        with anyio.fail_after(WAIT_S):
            await host.source.newest.exited()
        await quiet()
        assert await (await host.talk()).said("hello") == "heard hello"


async def test_a_session_that_is_deleted_while_its_agent_starts_leaves_no_process() -> None:
    async with hosted(plain(), policy=SESSION) as host:
        talk = await host.talk(opened=False)
        await host.node.delete(talk.session_id)
        with anyio.fail_after(WAIT_S):
            while not host.source.processes:
                await anyio.lowlevel.checkpoint()
            await host.source.newest.exited()


# -- idle agents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capabilities", "back"), [(RESUMES, "resume"), (LOADS, "load")])
async def test_an_idle_agent_is_let_go_and_the_next_prompt_has_its_memory(
    tmp_path: Path, capabilities: dict[str, object], back: str
) -> None:
    async with hosted(plain(folder=str(tmp_path), capabilities=capabilities), limits=IDLE) as host:
        talk = await host.talk()
        await talk.said("hello")
        pid = host.source.newest.pid
        with watching(pid) as process:
            await fall_idle(host)
            await process.gone()
        await until_recycled(talk)
        [gone] = of(await talk.events(), ev.AgentExited)
        assert gone.reason == "agent_recycled"
        assert not (await host.node.agents.explain(talk.session_id)).agent.connected
        assert await talk.said("again") == "heard again"
        assert await how(talk) == ["new", back]
        assert host.source.newest.pid != pid
        assert await words(talk) == ["heard hello", "heard again"]


async def test_an_agent_that_did_not_bring_a_session_back_is_not_let_go_any_more() -> None:
    async with hosted(plain(capabilities=RESUMES), limits=IDLE) as host:
        talk = await host.talk()
        await talk.said("hello")
        await fall_idle(host)
        await until_recycled(talk)
        assert await talk.said("again") == "heard again"
        assert await how(talk) == ["new", "lost"]
        pid = host.source.newest.pid
        await fall_idle(host, 4 * IDLE_S)
        assert host.source.alive == [pid], "its memory is all that is left of the session"
        assert len(of(await talk.events(), ev.AgentExited)) == 1


async def test_a_prompt_that_comes_while_an_idle_agent_is_being_let_go_has_its_turn(tmp_path: Path) -> None:
    slow = plain(folder=str(tmp_path), capabilities=RESUMES, lingers=True)
    limits = Limits(agent_idle_s=IDLE_S, idle_unload_s=4 * IDLE_S, stop_eof_s=1.0)
    async with hosted(slow, limits=limits) as host:
        talk = await host.talk()
        await talk.said("hello")
        first = host.source.newest
        for _ in range(2):
            await host.clock.wait_for_sleepers(1)
            host.clock.advance(IDLE_S / 2)
            await quiet()
        assert first.exit is None, "it is still on its way out"
        assert await talk.said("again") == "heard again"
        assert await how(talk) == ["new", "resume"]
        assert host.source.newest is not first


async def test_an_agent_that_would_forget_its_sessions_is_kept() -> None:
    async with hosted(plain(), limits=IDLE) as host:
        talk = await host.talk()
        pid = await host.pid(talk)
        await fall_idle(host, 2 * IDLE_S)
        assert await talk.said("hello") == "heard hello"
        assert await host.pid(talk) == pid


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_an_agent_with_a_running_turn_is_not_idle(profile: str) -> None:
    async with hosted(scripted("--profile", profile), limits=IDLE) as host:
        talk = await host.talk()
        pid = await host.pid(talk)
        prompt_id = await talk.prompt("say 1 x\nnever")
        await talk.until_said("x", prompt_id)
        await fall_idle(host, 3 * IDLE_S)
        assert await host.pid(talk) == pid
        assert of(await talk.events(), ev.AgentExited) == []
