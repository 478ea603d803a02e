"""One session at one agent, played by the test: the ways to restore it, the detection of a replay, and its end."""

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
from tests.support.agents import HandAgent, HandSource
from tests.support.driving import content

from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.agent_pool import AgentPolicy, AgentPool, HostedAgent
from turnwire.hosting.hosted_session import HostedSession
from turnwire.hosting.permission_rules import Rules
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.projections.view import View
from turnwire.session.effects import AskAgent, CancelAgent, CloseAgentSession
from turnwire.session.events import CancelRung
from turnwire.session.inputs import (
    AgentGone,
    AgentPieces,
    AgentReady,
    AgentReplayed,
    AgentUpdate,
    AnyInput,
    Barrier,
)
from turnwire.session.state import NOTHING, SessionState, Setup, Turn
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import Request
from turnwire_testing import ManualClock
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

NEW = replace(NOTHING, cwd="/work", turn=Turn(PromptId("p1"), TurnState.RUNNING))
KNOWN = replace(NEW, known_as=AgentSessionId("a1"))
LOADS: dict[str, Any] = {"loadSession": True}
RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}, "close": {}}}


class Home:
    """The loop and the host of one session. Records its inputs."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.head = 0
        self.inputs: list[AnyInput] = []

    @property
    def inbox(self) -> Home:
        return self

    def put(self, input: AnyInput | Barrier, frame: int = 0, /) -> None:
        if isinstance(input, Barrier):
            input.reached(0)
        else:
            self.inputs.append(input)

    async def room(self) -> None:
        return

    def reload(self, session_id: SessionId) -> None:
        raise AssertionError("the session is loaded")

    async def view(self, session_id: SessionId) -> View:
        return View()

    @property
    def losses(self) -> list[AgentGone]:
        return [each for each in self.inputs if isinstance(each, AgentGone)]

    @property
    def replays(self) -> list[AgentReplayed]:
        return [each for each in self.inputs if isinstance(each, AgentReplayed)]

    @property
    def how(self) -> list[str]:
        return [each.how for each in self.inputs if isinstance(each, AgentReady)]

    @property
    def news(self) -> list[str]:
        """Return the kinds of the updates that were reported as new."""
        return [each.peek.kind for each in self.inputs if isinstance(each, AgentUpdate)]


class Stage:
    """A session at an agent: its session's side and the agent controlled by the test."""

    def __init__(self, home: Home, hosted: HostedSession, agent: HandAgent, clock: ManualClock) -> None:
        self.home = home
        self.hosted = hosted
        self.agent = agent
        self.clock = clock

    @property
    def connection(self) -> AgentConnection:
        assert self.hosted.connection is not None
        return self.hosted.connection

    async def refuse(self, method: str, code: int = -32002) -> None:
        request = await self.agent.next(method)
        assert isinstance(request, Request)
        self.agent.send({"id": request.id, "error": {"code": code, "message": "no"}})

    def say(self, kind: str, **fields: object) -> None:
        params = {"sessionId": "a1", "update": {"sessionUpdate": kind, **fields}}
        self.agent.send({"method": "session/update", "params": params})

    def tell_history(self) -> None:
        """Send one turn, and the current state."""
        self.say("user_message_chunk", content={"type": "text", "text": "hi"})
        self.say("agent_message_chunk", content={"type": "text", "text": "hello"})
        self.say("available_commands_update", availableCommands=[])


@asynccontextmanager
async def stage(capabilities: dict[str, Any] | None = None, state: SessionState = NEW) -> AsyncGenerator[Stage]:
    source, clock = HandSource(), ManualClock()
    async with anyio.create_task_group() as tasks:
        pool = AgentPool(HostedAgent(source=source, policy=AgentPolicy(services=False)), tasks, clock, Limits())
        home, hosted = begun(pool, clock, tasks, state)
        agent = await source.agent()
        await agent.answer("initialize", {"protocolVersion": 1, "agentCapabilities": capabilities or {}})
        await quiet()
        yield Stage(home, hosted, agent, clock)
        tasks.cancel_scope.cancel()


def begun(pool: AgentPool, clock: ManualClock, tasks: TaskGroup, state: SessionState) -> tuple[Home, HostedSession]:
    """Return a session that is being opened at the agent."""
    home = Home(state)
    hosted = HostedSession(SessionId("s1"), pool, home, Rules(), clock, tasks, Limits())
    hosted.attach(home)
    hosted.open()
    return home, hosted


# -- the ways into a session ---------------------------------------------------------------------------------


async def test_a_new_session_is_opened_in_its_directory() -> None:
    async with stage() as play:
        request = await play.agent.answer("session/new", {"sessionId": "a1"})
        assert msgspec.json.decode(request.params) == {"cwd": "/work", "mcpServers": []}
        await quiet()
        assert (play.home.how, play.hosted.agent_session_id) == (["new"], "a1")


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


async def test_a_login_that_is_missing_is_no_reason_to_lose_the_session() -> None:
    async with stage({**LOADS, **RESUMES}, KNOWN) as play:
        await play.refuse("session/resume", -32000)
        await quiet()
        [lost] = play.home.losses
        assert lost.code == "auth_required"
        assert play.home.how == []


FAR: dict[str, Any] = {"type": "http", "name": "far", "url": "https://example.org/mcp", "headers": []}


async def test_servers_over_a_transport_that_the_agent_does_not_take_never_reach_it() -> None:
    async with stage(state=replace(NEW, setup=Setup(Raw(msgspec.json.encode([FAR]))))) as play:
        [gone] = play.home.losses
        assert gone.message == "the agent takes MCP servers over stdio, and not over http; leave those out"
    async with stage({"mcpCapabilities": {"http": True}}, replace(NEW, setup=Setup(Raw(b"[]")))) as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})


async def test_a_system_prompt_reaches_only_an_agent_that_offers_it() -> None:
    extra: dict[str, Any] = {"systemPrompt": {"mode": "append", "content": []}}
    state = replace(NEW, setup=Setup(extra=Raw(msgspec.json.encode(extra))))
    async with stage(state=state) as play:
        [gone] = play.home.losses
        assert gone.message == "this agent does not offer systemPrompt; leave it out"
    async with stage({"sessionCapabilities": {"systemPrompt": {}}}, state) as play:
        request = await play.agent.answer("session/new", {"sessionId": "a1"})
        assert msgspec.json.decode(request.params) == {"cwd": "/work", "mcpServers": [], **extra}


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
        home, _ = begun(play.hosted.pool, play.clock, tasks, state)
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
        home, _ = begun(play.hosted.pool, play.clock, tasks, NEW)
        for _ in range(2):
            await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        [lost] = home.losses
        assert (lost.code, "id that another one has" in lost.message) == ("agent_launch_failed", True)
        assert play.agent.waiting() == 0, "it is not asked a third time, and not to close what is the other's"
        assert play.hosted.agent_session_id == "a1"


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
        assert (replay.replayed, replay.matched) == (2, 0)
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


KIND = "agent_message_chunk"
CHUNKS = [
    Raw(b'{"sessionUpdate":"%b","content":{"type":"text","text":"%d"}}' % (KIND.encode(), number))
    for number in range(20)
]


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize(
    ("capabilities", "method"), [({}, "session/new"), (LOADS, "session/load"), (RESUMES, "session/resume")]
)
async def test_batch_of_chunks_is_handled_like_single_chunks(
    capabilities: dict[str, Any], method: str, is_answered: bool
) -> None:
    outcomes: list[object] = []
    for is_batch in (True, False):
        async with stage(capabilities, KNOWN if capabilities else NEW) as play:
            request = await play.agent.next(method)
            assert isinstance(request, Request)
            answer = {"id": request.id, "result": {"sessionId": "a1"}}
            if is_answered:
                play.agent.send(answer)
                await quiet()
            if is_batch:
                play.hosted.on_chunks(KIND, CHUNKS)
            else:
                for each in CHUNKS:
                    play.hosted.on_update(each)
            if not is_answered:
                play.agent.send(answer)
                await quiet()
            inputs = play.home.inputs
            singles = [bytes(each.update) for each in inputs if isinstance(each, AgentUpdate)]
            batches = [bytes(each) for batch in inputs if isinstance(batch, AgentPieces) for each in batch.updates]
            assert bool(singles or batches) is (is_answered or method != "session/load")
            outcomes.append((singles + batches, play.hosted.frames.received, play.home.replays))
    assert outcomes[0] == outcomes[1]


# -- the stay ------------------------------------------------------------------------------------------------


async def test_nothing_is_heard_after_leaving() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.hosted.perform(AskAgent(PromptId("p1"), content("hi")))
        request = await play.agent.next("session/prompt")
        assert isinstance(request, Request)
        heard = len(play.home.inputs)
        play.hosted.leave()
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
        connection = play.connection
        play.hosted.perform(CloseAgentSession())
        connection.peer.notify("end", Raw(b"{}"))
        if says_so:
            await play.agent.answer("session/close", {})
        await play.agent.next("end")
        assert connection.sessions == 0


async def test_a_cancel_of_a_session_that_is_not_open_yet_is_nobody_s() -> None:
    async with stage() as play:
        play.hosted.perform(CancelAgent(PromptId("p1"), CancelRung.NOTIFY))
        await play.agent.answer("session/new", {"sessionId": "a1"})
        play.connection.peer.notify("end", Raw(b"{}"))
        await play.agent.next("end")


async def test_the_second_rung_names_only_the_prompt_that_was_asked() -> None:
    async with stage() as play:
        await play.agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        play.hosted.perform(AskAgent(PromptId("p1"), content("hi")))
        await play.agent.next("session/prompt")
        play.hosted.perform(CancelAgent(PromptId("p2"), CancelRung.REQUEST))
        play.connection.peer.notify("end", Raw(b"{}"))
        await play.agent.next("end")
