"""Failures around a turn: a store that fails, a session that is opened again or never opened."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, Json, say_nothing, served
from tests.support.acp_client import update_of
from tests.support.heard import WAIT_S

from turnwire.agent import Agent, AgentFailure, AgentOptions, Kept, MemoryStore, Session, Turn
from turnwire.errors import ConfigError, LogUnavailable, SessionNotFound
from turnwire.hosting.memory import memory_pair

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


class FailingStore(MemoryStore):
    """A store that saves nothing once it is broken."""

    is_broken = False

    async def save(self, record: Kept) -> None:
        if self.is_broken:
            raise LogUnavailable("the disk is full")
        await super().save(record)

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        if self.is_broken:
            raise LogUnavailable("the disk is full")
        await super().append(session_id, updates)


@each_dialect
async def test_a_store_that_fails_ends_no_turn_and_gets_everything_once_it_works_again(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    store = FailingStore()
    agent = Agent("kept", store=store)

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say(turn.text)

    async with served(agent, hello) as driver:
        session = await driver.new()
        store.is_broken = True
        assert await driver.take_turn(session, "one") == "end_turn"
        assert "did not keep session" in caplog.text
        store.is_broken = False
        assert await driver.take_turn(session, "two") == "end_turn"
    kept = await store.load(session)
    assert kept is not None
    said = [each for each in kept.history if b"agent_message_chunk" in each]
    assert [b'"one"' in said[0], b'"two"' in said[1], len(said)] == [True, True, 2]


@each_dialect
async def test_a_client_that_opens_its_running_session_again_still_gets_its_end(hello: Json) -> None:
    agent, go = Agent("again", options=AgentOptions(ready_s=None)), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        await go.wait()

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        waiting = await driver.prompt(session, "behind")
        await driver.update("agent_message_chunk")
        start = len(driver.frames)
        await driver.call("session/resume", sessionId=session, cwd=CWD, mcpServers=[])
        if driver.version == 2:
            assert [each.get("state") for each in map(update_of, driver.frames[start:-1])] == ["running"]
        go.set()
        assert await driver.end_of(request, start) == "end_turn"
        assert await driver.answer(waiting)


async def test_a_session_that_was_refused_never_was() -> None:
    agent = Agent("refusing")
    agent.prompt(say_nothing)

    @agent.opened
    async def opened(session: Session) -> None:
        if session.meta.get("wait"):
            await anyio.sleep_forever()
        raise AgentFailure("no")

    async with served(agent, V1) as driver:
        await driver.fails("session/new", cwd=CWD, mcpServers=[])
        waiting = await driver.ask("session/new", cwd=CWD, mcpServers=[], _meta={"wait": True})
        await driver.notify("$/cancel_request", requestId=waiting)
        assert (await driver.answer(waiting))["error"]["code"] == -32800
        assert (await driver.call("session/list"))["sessions"] == []


async def test_no_turn_begins_in_a_session_that_is_closed() -> None:
    agent, sessions = Agent("closed"), list[Session]()
    agent.opened(sessions.append)
    agent.prompt(say_nothing)
    async with served(agent, V1) as driver:
        await driver.call("session/close", sessionId=await driver.new())
        with pytest.raises(SessionNotFound):
            async with agent.turn(sessions[0]):
                pytest.fail("it began")


async def test_an_agent_without_a_function_for_prompts_is_not_served() -> None:
    agent, (_, theirs) = Agent("empty"), memory_pair()

    @agent.command("only", "A command is no answer to prompts")
    def only(turn: Turn, arguments: str) -> None: ...

    for serve in (agent.run, agent.source):
        with pytest.raises(ConfigError, match="give it one with"):
            serve()
    with anyio.fail_after(WAIT_S), pytest.raises(ConfigError, match="give it one with"):
        await agent.serve(theirs)


def test_settings_that_make_no_sense_are_refused_at_once() -> None:
    for wrong in (
        lambda: AgentOptions(ready_s=-1),
        lambda: AgentOptions(held=0),
        lambda: AgentOptions(max_queued=-1),
        lambda: AgentOptions(max_cancel_s=0),
        lambda: AgentOptions(auth_required=True),
        lambda: Agent("x").command("/plan", "with its slash"),
        lambda: Agent("x").extension("session/new"),
    ):
        with pytest.raises(ConfigError):
            wrong()
