"""Activity outside of turns: background work, turns started by the agent, late output, steering."""

from __future__ import annotations

import anyio
import pytest
from tests.agent.kit import DIALECTS, V1, V2, Json, say_nothing, served, text_prompt
from tests.support.acp_client import update_of

from turnwire.agent import Agent, AgentFailure, Session, Turn
from turnwire.errors import LocalProtocolError, SessionNotFound
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


@each_dialect
async def test_what_is_said_through_a_turn_that_is_over_is_marked_as_late(hello: Json) -> None:
    agent, go = Agent("late"), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("in time")
        call = turn.tool("Slow")
        call.start()

        async def later() -> None:
            await go.wait()
            turn.say("too late")
            call.say("output, too late")
            call.fail("again")
            turn.plan(["late"])
            with pytest.raises(LocalProtocolError, match="over"):
                await turn.ask("Now?")
            turn.session.notify({"sessionUpdate": "session_info_update", "title": "done"}, 2)

        turn.session.background(later)

    async with served(agent, hello) as driver:
        session = await driver.new()
        request = await driver.prompt(session)
        assert await driver.end_of(request) == "end_turn"
        ended = len(driver.frames)
        go.set()
        await driver.update("session_info_update", ended, title="done")
        late = [update_of(each) for each in driver.frames[ended:]]
        marked = [each.get("_meta", {}).get("turnwire", {}).get("late") for each in late]
        assert marked == [*[True] * (len(late) - 1), None]
        kinds = {each["sessionUpdate"] for each in late[:-1]}
        tool = "tool_call_content_chunk" if driver.version == 2 else "tool_call_update"
        assert kinds == {"agent_message_chunk", tool, "plan_update" if driver.version == 2 else "plan"}
        # A late chunk is not part of a message of the turn, and no call has a second final status.
        in_time, too_late = driver.updates("agent_message_chunk")
        assert in_time["messageId"] != too_late["messageId"]
        assert not any("status" in each for each in late)
        assert [each["state"] for each in driver.updates("state_update")] == (
            [] if driver.version == 1 else ["running", "idle"]
        )


@each_dialect
async def test_background_updates_are_told_before_any_prompt_and_leave_the_state_alone(hello: Json) -> None:
    agent = Agent("chatty")
    agent.prompt(say_nothing)

    @agent.opened
    def opened(session: Session) -> None:
        async def work() -> None:
            session.notify(
                {
                    "sessionUpdate": "agent_message_chunk",
                    "messageId": "b",
                    "content": {"type": "text", "text": "hi"},
                }
            )

        session.background(work)

    async with served(agent, hello) as driver:
        await driver.new()
        await driver.update("agent_message_chunk")
        assert driver.updates("state_update") == []


async def test_background_work_ends_with_its_session_and_its_failure_ends_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, ended = Agent("busy"), anyio.Event()

    @agent.opened
    def opened(session: Session) -> None:
        async def forever() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        def fail() -> None:
            raise IndexError

        session.background(forever)
        session.background(fail)

    agent.prompt(say_nothing)
    async with served(agent, V2) as driver:
        session = await driver.new()
        assert await driver.take_turn(session) == "end_turn"
        await driver.call("session/close", sessionId=session)
        with anyio.fail_after(WAIT_S):
            await ended.wait()
        assert "IndexError" in caplog.text


@each_dialect
async def test_an_agent_begins_a_turn_of_its_own(hello: Json) -> None:
    agent, sessions = Agent("own"), list[Session]()
    agent.opened(sessions.append)
    agent.prompt(say_nothing)
    async with served(agent, hello) as driver:
        await driver.new()
        async with agent.turn(sessions[0]) as turn:
            assert turn.content == []
            assert sessions[0].running is turn
            turn.say("by myself")
            assert await turn.ask("May I?")
        await driver.update("agent_message_chunk")
        with pytest.raises(AgentFailure):
            async with agent.turn(sessions[0]):
                raise AgentFailure("broken")
        if driver.version == 2:
            await driver.update("state_update", stopReason="error")
            states = [each["state"] for each in driver.updates("state_update")]
            assert states == ["running", "requires_action", "running", "idle", "running", "idle"]
        else:
            assert "turn_complete" not in driver.kinds()


async def test_a_turn_of_the_agents_own_waits_for_the_one_that_runs_and_can_be_cancelled() -> None:
    agent, go, sessions = Agent("own"), anyio.Event(), list[Session]()
    agent.opened(sessions.append)

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("prompted ")
        await go.wait()

    async with served(agent, V2) as driver, anyio.create_task_group() as tasks:
        session = await driver.new()

        async def own() -> None:
            async with agent.turn(sessions[0]) as turn:
                turn.say("own")
                await anyio.sleep_forever()

        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        tasks.start_soon(own)
        go.set()
        assert await driver.end_of(request) == "end_turn"
        await driver.update("agent_message_chunk", content={"type": "text", "text": "own"})
        waiting = await driver.prompt(session, "behind")
        await driver.notify("session/cancel", sessionId=session)
        await driver.update("state_update", stopReason="cancelled")
        assert (await driver.answer(waiting))["error"]["code"] == -32800


async def test_a_turn_of_the_agents_own_that_waits_does_not_begin_in_a_session_that_was_closed() -> None:
    agent, ended, sessions = Agent("own"), list[str](), list[Session]()
    agent.opened(sessions.append)

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        await anyio.sleep_forever()

    async def own() -> None:
        try:
            async with agent.turn(sessions[0]):
                ended.append("begun")
        except SessionNotFound:
            ended.append("refused")

    async with served(agent, V2) as driver, anyio.create_task_group() as tasks:
        session = await driver.new()
        await driver.prompt(session)
        await driver.update("agent_message_chunk")
        tasks.start_soon(own)
        await quiet()
        await driver.call("session/close", sessionId=session)
        await quiet()
        assert ended == ["refused"]


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
async def test_a_prompt_is_steered_into_the_turn_that_runs(hello: Json) -> None:
    agent, heard, go = Agent("steered"), list[str](), anyio.Event()

    @agent.prompt
    async def answer(turn: Turn) -> None:
        turn.say("begun")
        await go.wait()

    @agent.steer
    async def steer(turn: Turn, blocks: list[Json]) -> bool:
        heard.append(blocks[0]["text"])
        return blocks[0]["text"] != "no"

    async with served(agent, hello) as driver:
        session = await driver.new()
        steering = "_session/steering"
        offered = await driver.call(steering, sessionId=session, prompt=text_prompt("early"))
        assert offered == {"outcome": "promptRequired"}
        request = await driver.prompt(session)
        await driver.update("agent_message_chunk")
        refused = await driver.call(steering, sessionId=session, prompt=text_prompt("no"))
        assert refused == {"outcome": "promptRequired"}
        joined = await driver.call(steering, sessionId=session, prompt=text_prompt("faster"))
        assert joined == {"outcome": "injected"}
        assert heard == ["no", "faster"]
        if driver.version == 2:
            assert driver.updates("user_message")[-1]["content"] == text_prompt("faster")
        go.set()
        assert await driver.end_of(request) == "end_turn"
    plain = Agent("plain")
    plain.prompt(say_nothing)
    async with served(plain, hello) as driver:
        assert (await driver.fails(steering, sessionId="x", prompt=text_prompt("x")))["code"] == -32601
