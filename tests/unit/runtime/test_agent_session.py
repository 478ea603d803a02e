"""One session at one agent, played by hand: the ways back into it, what a replay is, and when it is silent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import TaskGroup
from msgspec import Raw
from msgspec.structs import replace
from tests.support.agents import HandAgent
from tests.support.driving import content

from turnwire.core.events import CancelRung
from turnwire.core.inputs import AgentGone, AgentReady, AgentUpdate, AnyInput
from turnwire.core.state import NOTHING, SessionState, Setup
from turnwire.core.view import View
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.link.memory import memory_pair
from turnwire.runtime.agent_connection import AgentConnection
from turnwire.runtime.agent_inbound import AgentInbound
from turnwire.runtime.agent_session import AgentSession
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.session import Place
from turnwire.runtime.source import LinkedAgent
from turnwire.testing import ManualClock
from turnwire.testing.patience import quiet
from turnwire.wire.jsonrpc import Request

pytestmark = pytest.mark.anyio

NEW = replace(NOTHING, cwd="/work")
KNOWN = replace(NEW, known_as=AgentSessionId("a1"))
LOADS: dict[str, Any] = {"loadSession": True}
RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}, "close": {}}}


class Home:
    """The session's side; writes down what it hears."""

    def __init__(self) -> None:
        self.inputs: list[AnyInput] = []
        self.losses: list[AgentGone] = []
        self.replays: list[View] = []
        self.times_ready = 0
        self.times_refused = 0

    def put(self, happened: AnyInput | Place) -> None:
        assert not isinstance(happened, Place), "nobody is asked here"
        self.inputs.append(happened)

    async def room(self) -> None:
        return

    def ready(self) -> None:
        self.times_ready += 1

    def lost(self, gone: AgentGone) -> None:
        self.losses.append(gone)

    def refused(self) -> None:
        self.times_refused += 1

    def replayed(self, replay: View) -> None:
        self.replays.append(replay)

    @property
    def how(self) -> list[str]:
        return [each.how for each in self.inputs if isinstance(each, AgentReady)]

    @property
    def news(self) -> list[str]:
        """Kinds of the updates that were told as news."""
        return [each.peek.kind for each in self.inputs if isinstance(each, AgentUpdate)]


class Stage:
    """A session at an agent, its session's side and the agent in the test's hand."""

    def __init__(
        self,
        home: Home,
        agent_session: AgentSession,
        agent: HandAgent,
        connection: AgentConnection,
        clock: ManualClock,
    ) -> None:
        self.clock = clock
        self.home = home
        self.agent_session = agent_session
        self.agent = agent
        self.connection = connection

    async def refuse(self, method: str, code: int = -32002) -> None:
        request = await self.agent.next(method)
        assert isinstance(request, Request)
        self.agent.send({"id": request.id, "error": {"code": code, "message": "no"}})

    def say(self, kind: str, **fields: object) -> None:
        params = {"sessionId": "a1", "update": {"sessionUpdate": kind, **fields}}
        self.agent.send({"method": "session/update", "params": params})

    def tell_history(self) -> None:
        """One turn, and what is true now."""
        self.say("user_message_chunk", content={"type": "text", "text": "hi"})
        self.say("agent_message_chunk", content={"type": "text", "text": "hello"})
        self.say("available_commands_update", availableCommands=[])


@asynccontextmanager
async def stage(capabilities: dict[str, Any] | None = None, state: SessionState = NEW) -> AsyncGenerator[Stage]:
    ours, theirs = memory_pair()
    connection, agent, home = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs), Home()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        async with anyio.create_task_group() as greeting:
            greeting.start_soon(connection.handshake)
            await agent.answer("initialize", {"protocolVersion": 1, "agentCapabilities": capabilities or {}})
        clock = ManualClock()
        agent_session = begun(connection, home, clock, tasks, state)
        yield Stage(home, agent_session, agent, connection, clock)
        tasks.cancel_scope.cancel()


def begun(
    connection: AgentConnection, home: Home, clock: ManualClock, tasks: TaskGroup, state: SessionState
) -> AgentSession:
    """A session that is being opened at the agent."""
    inbound = AgentInbound(
        SessionId("s1"),
        ClientRequests(tasks, Limits(), own=False),
        clock,
        put=home.put,
        room=home.room,
        ready=home.ready,
        lost=home.lost,
    )
    agent_session = AgentSession(connection, inbound, clock, tasks, replayed=home.replayed, refused=home.refused)
    agent_session.begin(state)
    return agent_session


# -- the ways into a session ---------------------------------------------------------------------------------


async def test_a_new_session_is_opened_in_its_directory() -> None:
    async with stage() as play:
        request = await play.agent.answer("session/new", {"sessionId": "a1"})
        assert msgspec.json.decode(request.params) == {"cwd": "/work", "mcpServers": []}
        await quiet()
        assert (play.home.how, play.home.times_ready, play.agent_session.is_open) == (["new"], 1, True)


@pytest.mark.parametrize(
    ("capabilities", "ways"),
    [
        ({}, []),
        (LOADS, ["session/load"]),
        (RESUMES, ["session/resume"]),
        ({**LOADS, **RESUMES}, ["session/resume", "session/load"]),
    ],
)
async def test_a_known_session_is_tried_by_each_way_that_is_offered_and_then_lost(
    capabilities: dict[str, Any], ways: list[str]
) -> None:
    async with stage(capabilities, KNOWN) as play:
        for way in ways:
            await play.refuse(way)
        await play.agent.answer("session/new", {"sessionId": "a2"})
        await quiet()
        assert play.home.how == ["lost"]
        assert play.home.losses == []
        [ready] = [each for each in play.home.inputs if isinstance(each, AgentReady)]
        assert [f"session/{each.how}" for each in ready.refused] == ways
        errors = [msgspec.json.decode(each.agent_error) for each in ready.refused]
        assert errors == [{"code": -32002, "message": "no"}] * len(ways)
        assert play.home.times_refused == len(ways)


async def test_a_login_that_is_missing_is_no_reason_to_lose_the_session() -> None:
    async with stage({**LOADS, **RESUMES}, KNOWN) as play:
        await play.refuse("session/resume", -32000)
        await quiet()
        [lost] = play.home.losses
        assert lost.code == "auth_required"
        assert play.home.how == []
        assert play.home.times_refused == 0


FAR: dict[str, Any] = {"type": "http", "name": "far", "url": "https://example.org/mcp", "headers": []}


async def test_servers_over_a_transport_that_the_agent_does_not_take_never_reach_it() -> None:
    async with stage(state=replace(NEW, setup=Setup(Raw(msgspec.json.encode([FAR]))))) as play:
        [gone] = play.home.losses
        assert gone.message == "the agent takes MCP servers over stdio, and not over http; leave those out"
    async with stage({"mcpCapabilities": {"http": True}}, replace(NEW, setup=Setup(Raw(b"[]")))) as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})


async def test_a_session_without_an_id_is_refused_in_words() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {})
        await quiet()
        [lost] = play.home.losses
        assert (lost.code, lost.message) == ("agent_launch_failed", "the agent opened a session without an id")


@pytest.mark.parametrize("state", [NEW, replace(KNOWN, known_as=AgentSessionId("gone"))], ids=["new", "lost"])
async def test_an_agent_that_gives_a_session_the_id_of_another_is_asked_again(state: SessionState) -> None:
    async with stage({**RESUMES}, KNOWN) as play, anyio.create_task_group() as tasks:
        await play.agent.answer("session/resume", {})
        home = Home()
        begun(play.connection, home, play.clock, tasks, state)
        if state.known_as is not None:
            await play.refuse("session/resume")
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await play.agent.answer("session/new", {"sessionId": "a2"})
        await quiet()
        assert [each.agent_session_id for each in home.inputs if isinstance(each, AgentReady)] == ["a2"]
        assert (home.losses, play.home.losses, play.agent.waiting()) == ([], [], 0)
        play.say("agent_message_chunk", content={"type": "text", "text": "mine"})
        await quiet()
        assert (play.home.news, home.news) == (["agent_message_chunk"], [])


async def test_an_agent_that_insists_on_the_id_of_another_session_opens_none_and_closes_none() -> None:
    async with stage(RESUMES, KNOWN) as play, anyio.create_task_group() as tasks:
        await play.agent.answer("session/resume", {})
        home = Home()
        begun(play.connection, home, play.clock, tasks, NEW)
        for _ in range(2):
            await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        [lost] = home.losses
        assert (lost.code, "id that another one has" in lost.message) == ("agent_launch_failed", True)
        assert play.agent.waiting() == 0, "it is not asked a third time, and not to close what is the other's"
        assert play.agent_session.is_open


@pytest.mark.parametrize("state", [NEW, KNOWN])
async def test_an_agent_that_goes_instead_of_answering_is_told_once(state: SessionState) -> None:
    async with stage(LOADS, state) as play:
        await play.agent.next("session/new" if state is NEW else "session/load")
        await play.agent.link.aclose()
        await quiet()
        assert [each.code for each in play.home.losses] == ["agent_exited"]


# -- replays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capabilities", [LOADS, {**LOADS, **RESUMES}], ids=["load", "load after resume"])
async def test_a_replay_is_folded_aside_and_only_what_is_true_now_is_news(capabilities: dict[str, Any]) -> None:
    async with stage(capabilities, KNOWN) as play:
        if "sessionCapabilities" in capabilities:
            await play.refuse("session/resume")
        request = await play.agent.next("session/load")
        assert isinstance(request, Request)
        play.tell_history()
        await quiet()
        assert play.home.inputs == [], "nothing is told before the answer"
        play.agent.send({"id": request.id, "result": {}})
        play.say("agent_message_chunk", content={"type": "text", "text": "live"})
        await quiet()
        assert play.home.how == ["load"]
        assert play.home.news == ["available_commands_update", "agent_message_chunk"]
        [replay] = play.home.replays
        assert len(replay.items) == 2
        assert not play.connection.strays


async def test_what_is_said_before_the_answer_to_a_resume_follows_it() -> None:
    async with stage(RESUMES, KNOWN) as play:
        request = await play.agent.next("session/resume")
        assert isinstance(request, Request)
        play.say("agent_message_chunk", content={"type": "text", "text": "early"})
        await quiet()
        assert play.home.inputs == []
        play.agent.send({"id": request.id, "result": {}})
        await quiet()
        assert [type(each) for each in play.home.inputs] == [AgentReady, AgentUpdate]
        assert play.home.replays == []


async def test_a_replay_that_ends_in_a_refusal_is_forgotten() -> None:
    async with stage(LOADS, KNOWN) as play:
        request = await play.agent.next("session/load")
        assert isinstance(request, Request)
        play.tell_history()
        play.agent.send({"id": request.id, "error": {"code": -32603, "message": "half of it was gone"}})
        await play.agent.answer("session/new", {"sessionId": "a2"})
        await quiet()
        assert (play.home.how, play.home.news, play.home.replays) == (["lost"], [], [])


# -- the stay ------------------------------------------------------------------------------------------------


async def test_a_turn_that_was_marked_as_ended_keeps_the_next_prompt_back_until_it_is_answered() -> None:
    async with stage({"sessionCapabilities": {"turnComplete": {}}}) as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.agent_session.ask(PromptId("p1"), content("hi"))
        request = await play.agent.next("session/prompt")
        assert isinstance(request, Request)
        play.say("turn_complete", promptRequestId=request.id, stopReason="end_turn")
        await quiet()
        assert not play.agent_session.takes_prompts()
        play.agent.send({"id": request.id, "result": {"stopReason": "end_turn"}})
        await quiet()
        assert play.agent_session.takes_prompts()
        assert play.agent_session.has_answered(PromptId("p1"))
        assert play.home.times_ready == 2


async def test_an_agent_that_never_answers_a_turn_that_is_over_is_prompted_after_a_while() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.agent_session.ask(PromptId("p1"), content("hi"))
        await play.agent.next("session/prompt")
        for _ in range(2):
            assert not play.agent_session.takes_prompts(hurry=True)
        await play.clock.wait_for_sleepers(1)
        play.clock.advance(Limits().cancel_grace_s)
        await quiet()
        assert (play.agent_session.takes_prompts(), play.home.times_ready) == (True, 2)


async def test_nothing_is_heard_after_leaving() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.agent_session.ask(PromptId("p1"), content("hi"))
        request = await play.agent.next("session/prompt")
        assert isinstance(request, Request)
        heard = len(play.home.inputs)
        play.agent_session.leave()
        play.agent.update("late")
        play.agent.ask(1)
        play.agent.send({"id": request.id, "result": {"stopReason": "end_turn"}})
        await play.agent.link.aclose()
        await quiet()
        assert (len(play.home.inputs), play.home.losses) == (heard, [])


@pytest.mark.parametrize(("capabilities", "says_so"), [(RESUMES, True), ({}, False)])
async def test_closing_is_told_to_an_agent_that_wants_to_know(capabilities: dict[str, Any], says_so: bool) -> None:
    async with stage(capabilities) as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.agent_session.close()
        play.connection.peer.notify("end", Raw(b"{}"))
        if says_so:
            await play.agent.answer("session/close", {})
        await play.agent.next("end")
        assert play.connection.sessions == 0


async def test_a_cancel_of_a_session_that_is_not_open_yet_is_nobody_s() -> None:
    async with stage() as play:
        play.agent_session.cancel(PromptId("p1"), CancelRung.NOTIFY)
        await play.agent.answer("session/new", {"sessionId": "a1"})
        play.connection.peer.notify("end", Raw(b"{}"))
        await play.agent.next("end")


async def test_the_second_rung_names_only_the_prompt_that_was_asked() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.agent_session.ask(PromptId("p1"), content("hi"))
        await play.agent.next("session/prompt")
        play.agent_session.cancel(PromptId("p2"), CancelRung.REQUEST)
        play.connection.peer.notify("end", Raw(b"{}"))
        await play.agent.next("end")
