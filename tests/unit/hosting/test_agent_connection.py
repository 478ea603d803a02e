"""One connection: messages held for a session that is opening, and their recipients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType
from tests.support.agents import READY, V1, HandAgent

from turnwire.errors import LimitExceeded, LinkBroken, LocalProtocolError, RemoteProtocolError
from turnwire.hosting.agent_connection import KEPT_STRAYS, SERVED_AT_ONCE, AgentConnection
from turnwire.hosting.last_frames import LastFrames
from turnwire.hosting.memory import memory_pair
from turnwire.hosting.process import Exit
from turnwire.hosting.source import LinkedAgent
from turnwire.ids import AgentSessionId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.projections.dialect import read_session_id
from turnwire.wire.jsonrpc import ErrorObject, Failure, Request, Result, raw
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

NEW = raw({"cwd": "/work", "mcpServers": []})


class Room:
    """A session on the connection that records its calls. Implements `AttachedSession`."""

    def __init__(self) -> None:
        self.session_id = SessionId("s1")
        self.agent_session_id: AgentSessionId | None = None
        self.children: frozenset[str] = frozenset()
        self.frames = LastFrames()
        self.heard: list[str] = []
        self.is_full = False
        self.freed = anyio.Event()
        self.answers: list[Callable[[Result | Failure], None]] = []

    def on_update(self, update: Raw, child: str | None = None, extra: Raw | UnsetType = UNSET) -> str | None:
        said = msgspec.json.decode(update)
        text = f"announced {said['sessionId']}" if "sessionId" in said else said["content"]["text"]
        self.heard.append(text if child is None else f"{child}: {text}")
        return said.get("sessionId")

    def on_chunks(self, kind: str, updates: Sequence[Raw]) -> None:
        for each in updates:
            self.on_update(each)

    def on_permission_request(self, request: Request, child: str | None = None) -> None:
        self.heard.append(f"asked {request.id!r}" if child is None else f"{child} asked {request.id!r}")

    def on_registered(self) -> None: ...

    def on_cancel_request(self, request_id: RequestId) -> None:
        self.heard.append(f"withdrew {request_id!r}")

    def on_client_request(
        self,
        request: Request,
        answer: Callable[[Result | Failure], None],
        mark: Callable[[Callable[[int], None]], None] | None = None,
        refused: set[object] | None = None,
    ) -> bool:
        self.heard.append(f"wants {request.method}")
        self.answers.append(answer)
        return request.method in {"fs/read_text_file", "terminal/wait_for_exit"}

    def on_gone(self, how: Exit | None, code: str) -> None:
        self.heard.append(f"gone {code}")

    def owners(self, method: str) -> set[str | None]:
        return {None}

    def mark(self, reached: Callable[[int], None]) -> None:
        reached(0)

    def opened(self, frame: Result | Failure | None) -> AgentSessionId | None:
        agent_session_id = read_session_id(frame.result) if isinstance(frame, Result) else None
        code = f" {frame.error.code}" if isinstance(frame, Failure) else ""
        self.heard.append(f"failed{code}" if agent_session_id is None else f"opened {agent_session_id}")
        return agent_session_id

    async def room(self) -> None:
        if self.is_full:
            await self.freed.wait()


@asynccontextmanager
async def connected(
    answer: object = V1, *, max_frames: int = 1024, limits: Limits | None = None
) -> AsyncGenerator[tuple[AgentConnection, HandAgent]]:
    ours, theirs = memory_pair(max_frames)
    connection, agent = AgentConnection(LinkedAgent(ours), limits or Limits()), HandAgent(theirs)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        async with anyio.create_task_group() as greeting:
            greeting.start_soon(connection.handshake)
            await agent.answer("initialize", answer)
        yield connection, agent
        tasks.cancel_scope.cancel()


async def opened(connection: AgentConnection, agent: HandAgent, session_id: str = "a1") -> Room:
    room = Room()
    connection.open_session(room, "session/new", NEW, room.opened, None)
    await agent.answer("session/new", {"sessionId": session_id})
    await quiet()
    return room


# -- opening a session ---------------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
async def test_updates_before_the_answer_follow_it_in_their_order() -> None:
    async with connected() as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        request = await agent.next("session/new")
        assert isinstance(request, Request)
        for text in ("one", "two"):
            agent.update(text)
        agent.ask("q")
        await quiet()
        assert room.heard == []
        agent.update("three")
        agent.send({"id": request.id, "result": {"sessionId": "a1"}})
        agent.update("four")
        await quiet()
        assert room.heard == ["opened a1", "one", "two", "asked 'q'", "three", "four"]
        assert not connection.strays


async def test_what_was_held_for_a_session_that_nobody_opened_is_counted() -> None:
    async with connected() as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        agent.update("mine")
        agent.update("whose?", "a9")
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert room.heard == ["opened a1", "mine"]
        assert connection.strays == {"held": 1}
        agent.update("whose?", "a9")
        await quiet()
        assert connection.strays == {"held": 1, "unknown_session": 1}


async def test_two_openings_at_once_do_not_mix() -> None:
    async with connected() as (connection, agent):
        first, second = Room(), Room()
        connection.open_session(first, "session/new", NEW, first.opened, None)
        connection.open_session(second, "session/new", NEW, second.opened, None)
        agent.update("for two", "a2")
        agent.update("for one", "a1")
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert (first.heard, second.heard) == (["opened a1", "for one"], [])
        await agent.answer("session/new", {"sessionId": "a2"})
        await quiet()
        assert second.heard == ["opened a2", "for two"]
        assert not connection.strays


async def test_what_is_held_is_bounded() -> None:
    async with connected(limits=Limits(agent_inputs=16)) as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        for number in range(40):
            agent.update(str(number))
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert room.heard == ["opened a1", *map(str, range(16))]
        assert connection.strays["unknown_session"] == 24


@pytest.mark.parametrize(
    ("frame", "heard"),
    [
        ({"error": {"code": -32000, "message": "log in"}}, "failed -32000"),
        ({"result": {}}, "failed"),
        ({"result": {"sessionId": 7}}, "failed"),
    ],
)
async def test_an_opening_that_fails_is_heard_once(frame: dict[str, object], heard: str) -> None:
    async with connected() as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        request = await agent.next("session/new")
        assert isinstance(request, Request)
        agent.send({"id": request.id, **frame})
        agent.update("nobody's")
        await quiet()
        assert room.heard == [heard]
        assert connection.strays["unknown_session"] == 1


async def test_an_opening_that_could_not_be_sent_holds_nothing() -> None:
    async with connected(max_frames=1) as (connection, agent):
        connection.peer.notify("fills", raw({}))
        room = Room()
        with pytest.raises(LimitExceeded):
            connection.open_session(room, "session/new", NEW, room.opened, None)
        agent.update("nobody's")
        await quiet()
        assert connection.strays == {"unknown_session": 1}
        assert room.heard == []


# -- session/ready -------------------------------------------------------------------------------------------


async def test_ready_is_sent_once_per_session_after_it_is_registered() -> None:
    async with connected(READY) as (connection, agent):
        for session_id in ("a1", "a2"):
            room = Room()
            connection.open_session(room, "session/new", NEW, room.opened, None)
            request = await agent.next("session/new")
            assert isinstance(request, Request)
            await quiet()
            agent.send({"id": request.id, "result": {"sessionId": session_id}})
            ready = await agent.next("session/ready")
            assert not isinstance(ready, Request)
            assert msgspec.json.decode(ready.params) == {"sessionId": session_id}
            agent.update("after ready", session_id)
            await quiet()
            assert room.heard == [f"opened {session_id}", "after ready"]
        connection.peer.notify("end", raw({}))
        await agent.next("end")


async def test_ready_is_not_sent_to_an_agent_that_does_not_offer_it() -> None:
    async with connected(V1) as (connection, agent):
        await opened(connection, agent)
        connection.peer.notify("end", raw({}))
        await agent.next("end")


# -- traffic -------------------------------------------------------------------------------------------------


async def test_frames_of_two_sessions_reach_each_its_own_in_order() -> None:
    async with connected() as (connection, agent):
        first, second = await opened(connection, agent, "a1"), await opened(connection, agent, "a2")
        for number in range(50):
            agent.update(f"{number}", f"a{number % 2 + 1}")
        await quiet()
        assert first.heard[1:] == [str(number) for number in range(0, 50, 2)]
        assert second.heard[1:] == [str(number) for number in range(1, 50, 2)]


async def test_frames_that_belong_to_nobody_are_counted_and_end_nothing() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        agent.send({"method": "session/update", "params": {"update": {}}})
        agent.send({"method": "_vendor/thing", "params": {}})
        agent.send({"method": "$/cancel_request", "params": {}})
        agent.link.send_nowait(b"garbage")
        agent.update("still here")
        await quiet()
        assert room.heard == ["opened a1", "still here"]
        assert connection.strays == {"session/update": 1, "_vendor/thing": 1}


async def test_a_question_is_asked_answered_and_withdrawn_by_its_exact_id() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        agent.ask(1)
        agent.ask("1")
        agent.send({"method": "$/cancel_request", "params": {"requestId": "1"}})
        await quiet()
        assert room.heard[1:] == ["asked 1", "asked '1'", "withdrew '1'"]
        connection.answer("1", raw("withdrawn"))
        connection.answer("1", raw("again"))
        connection.answer(1, raw("chosen"))
        assert [(each.id, bytes(each.result)) for each in [await agent.next_result() for _ in range(2)]] == [
            ("1", b'"withdrawn"'),
            (1, b'"chosen"'),
        ]
        agent.send({"method": "$/cancel_request", "params": {"requestId": 1}})
        await quiet()
        assert len(room.heard) == 4, "an answered question cannot be withdrawn"


@pytest.mark.parametrize(
    ("method", "session_id"),
    [("fs/delete", "a1"), ("fs/read_text_file", "a9"), ("session/request_permission", "a9")],
)
async def test_a_request_that_nobody_can_answer_is_refused(method: str, session_id: str) -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        agent.ask(5, method, session_id)
        with anyio.fail_after(WAIT_S):
            [line] = await agent.link.receive()
        assert msgspec.json.decode(line)["error"]["code"] == -32601
        assert not [each for each in room.heard if each.startswith("asked")]


async def test_a_service_is_wanted_of_the_session_and_answered_once() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        for request_id in (7, 8):
            agent.ask(request_id, "fs/read_text_file")
        await quiet()
        assert room.heard[1:] == ["wants fs/read_text_file"] * 2
        assert connection.is_busy
        room.answers[1](Failure(8, ErrorObject(-32002, "no such file", raw({"uri": "file:///x"}))))
        room.answers[0](Result(7, raw({"content": "x"})))
        room.answers[0](Result(7, raw({"content": "again"})))
        with anyio.fail_after(WAIT_S):
            lines = [msgspec.json.decode(line) for line in await agent.link.receive()]
        assert [(each["id"], "error" in each) for each in lines] == [(8, True), (7, False)]
        assert lines[0]["error"]["data"] == {"uri": "file:///x"}
        assert not connection.is_busy


async def test_file_requests_beyond_the_limit_wait_and_hold_the_agent_back() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        for number in range(SERVED_AT_ONCE + 2):
            agent.ask(number, "fs/read_text_file")
        await quiet()
        agent.update("later")
        await quiet()
        assert room.heard[1:] == ["wants fs/read_text_file"] * SERVED_AT_ONCE
        for number in range(2):
            room.answers[number](Result(number, raw({"content": "x"})))
            await quiet()
        assert room.heard[SERVED_AT_ONCE + 1 :] == ["wants fs/read_text_file"] * 2 + ["later"]


@pytest.mark.parametrize(("method", "wait_s"), [("fs/read_text_file", 0.0), ("terminal/wait_for_exit", WAIT_S)])
async def test_requests_that_would_wait_too_long_are_refused(
    method: str, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.hosting.agent_connection.FILES_WAIT_S", wait_s)
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        for number in range(SERVED_AT_ONCE + 1):
            agent.ask(number, method)
        with anyio.fail_after(WAIT_S):
            [line] = await agent.link.receive()
        refused = msgspec.json.decode(line)
        assert (refused["id"], refused["error"]["code"]) == (SERVED_AT_ONCE, -32603)
        assert len(room.answers) == SERVED_AT_ONCE


async def test_a_forgotten_session_hears_nothing_more() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        connection.forget(room, AgentSessionId("a1"))
        agent.update("late")
        await agent.link.aclose()
        await quiet()
        assert room.heard == ["opened a1"]


async def test_a_full_session_holds_its_agent_back() -> None:
    async with connected(max_frames=4) as (connection, agent):
        room = await opened(connection, agent)
        room.is_full = True
        agent.update("0")
        await quiet()
        for number in range(1, 5):
            agent.update(str(number))
        with pytest.raises(LimitExceeded):
            agent.update("5")
        room.is_full = False
        room.freed.set()
        await quiet()
        assert room.heard[1:] == ["0", "1", "2", "3", "4"]


# -- the end -------------------------------------------------------------------------------------------------


async def test_all_sessions_hear_that_the_agent_is_gone_after_its_last_words() -> None:
    async with connected() as (connection, agent):
        rooms = [await opened(connection, agent, name) for name in ("a1", "a2")]
        agent.update("last", "a2")
        await agent.link.aclose()
        await quiet()
        assert [room.heard[1:] for room in rooms] == [["gone agent_exited"], ["last", "gone agent_exited"]]
        assert not connection.is_alive


async def test_an_agent_that_asks_without_reading_is_let_go_and_nothing_else_is() -> None:
    async with connected(max_frames=8) as (connection, agent):
        room = await opened(connection, agent)
        for number in range(50):
            with anyio.fail_after(WAIT_S):
                try:
                    await agent.link.send(b'{"jsonrpc":"2.0","id":%d,"method":"fs/read_text_file"}' % number)
                except LinkBroken:
                    break
        await quiet()
        assert room.heard == ["opened a1", "gone agent_unresponsive"]
        assert not connection.is_alive


# -- one connection: its handshake, and logging in ---------------------------------------------------------


async def test_an_agent_that_refuses_the_handshake_is_said_so() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    asked: list[int] = []

    async def refuse() -> None:
        for _ in range(2):
            request = await agent.next("initialize")
            assert isinstance(request, Request)
            asked.append(msgspec.json.decode(request.params)["protocolVersion"])
            agent.send({"id": request.id, "error": {"code": -32022, "message": "no common version"}})

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(refuse)
            with pytest.raises(RemoteProtocolError) as refused:
                await connection.handshake()
            assert refused.value.context["jsonrpc"] == -32022
            await connection.aclose()
    assert connection.profile is None
    assert asked == [2, 1], "the newest version, then the oldest"


async def test_an_agent_that_goes_before_it_answers_is_broken() -> None:
    ours, theirs = memory_pair()
    connection = AgentConnection(LinkedAgent(ours), Limits())
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def go() -> None:
                await theirs.receive()
                await theirs.aclose()

            tasks.start_soon(connection.run)
            tasks.start_soon(go)
            with pytest.raises(LinkBroken):
                await connection.handshake()
    assert not connection.is_alive


async def test_an_agent_of_a_version_that_there_is_not_here_is_let_go() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(agent.answer, "initialize", {**V1, "protocolVersion": 3})
            with pytest.raises(RemoteProtocolError, match="speaks version 3"):
                await connection.handshake()
            await connection.aclose()
    assert connection.profile is None


async def test_a_login_that_is_a_program_is_never_asked_of_the_agent() -> None:
    ours, theirs = memory_pair()
    connection, agent = AgentConnection(LinkedAgent(ours), Limits()), HandAgent(theirs)
    methods = [{"id": "in-a-terminal", "name": "Log in", "type": "terminal"}]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            tasks.start_soon(agent.answer, "initialize", {**V1, "authMethods": methods})
            await connection.handshake()
            with pytest.raises(LocalProtocolError, match="run it in a terminal"):
                await connection.authenticate("in-a-terminal")
            await connection.aclose()
    assert theirs.waiting == 0, "nothing was sent"


# -- what an agent can make a connection keep: bounded, whatever names it thinks of ------------------------


async def test_updates_of_many_made_up_sessions_are_held_within_one_bound() -> None:
    async with connected(limits=Limits(agent_inputs=16)) as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        agent.update("mine")
        for number in range(40):
            agent.update("boo", f"made-up-{number}")
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert room.heard == ["opened a1", "mine"]
        assert connection.strays == {"unknown_session": 25, "held": 15}


async def test_the_room_of_what_was_held_is_free_again_once_its_session_is_open() -> None:
    async with connected(limits=Limits(agent_inputs=16)) as (connection, agent):
        for session_id in ("a1", "a2"):
            room = Room()
            connection.open_session(room, "session/new", NEW, room.opened, None)
            for number in range(16):
                agent.update(str(number), session_id)
            await agent.answer("session/new", {"sessionId": session_id})
            await quiet()
            assert len(room.heard) == 17
        assert not connection.strays


async def test_notifications_of_many_made_up_names_are_counted_under_few() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        for number in range(3 * KEPT_STRAYS):
            agent.send({"method": f"_made/up/{number}", "params": {}})
        agent.send({"method": "_made/up/0", "params": {}})
        agent.send({"method": "_long" * 1000, "params": {}})
        await quiet()
        assert len(connection.strays) == KEPT_STRAYS + 1
        assert connection.strays["_made/up/0"] == 2
        assert connection.strays.total() == 3 * KEPT_STRAYS + 2
        assert max(map(len, connection.strays)) <= KEPT_STRAYS
        assert room.heard == ["opened a1"]


async def test_a_dismissed_connection_tells_its_sessions_at_once_and_only_once() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        connection.dismiss("agent_recycled")
        assert room.heard == ["opened a1", "gone agent_recycled"]
        assert (connection.is_alive, connection.is_dismissed) == (False, True)
        await connection.aclose()
        await quiet()
        assert room.heard == ["opened a1", "gone agent_recycled"]


# -- child sessions ------------------------------------------------------------------------------------------


def announce(agent: HandAgent, child: str, on: str = "a1") -> None:
    update = {"sessionUpdate": "subagent_update", "sessionId": child}
    agent.send({"method": "session/update", "params": {"sessionId": on, "update": update}})


async def test_a_child_is_heard_with_its_session_once_it_was_announced() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        agent.update("too early", "c1")
        announce(agent, "c1")
        agent.update("inside", "c1")
        announce(agent, "c2", on="c1")
        agent.send(
            {"id": "q", "method": "session/request_permission", "params": {"sessionId": "c2", "options": []}}
        )
        agent.send({"id": "f", "method": "fs/read_text_file", "params": {"sessionId": "c1", "path": "/x"}})
        await quiet()
        assert room.heard[1:] == [
            "announced c1",
            "c1: inside",
            "c1: announced c2",
            "c2 asked 'q'",
            "wants fs/read_text_file",
        ]
        assert connection.strays == {"unknown_session": 1}
        connection.forget(room, AgentSessionId("a1"))
        agent.update("gone", "c1")
        await quiet()
        assert connection.strays == {"unknown_session": 2}


async def test_children_that_are_announced_before_the_session_is_known_keep_their_place() -> None:
    async with connected() as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        agent.update("one")
        announce(agent, "c1")
        agent.update("two", "c1")
        agent.update("three")
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert room.heard == ["opened a1", "one", "announced c1", "c1: two", "three"]
        assert not connection.strays


async def test_a_child_stays_whose_it_was_first() -> None:
    async with connected() as (connection, agent):
        first, second = await opened(connection, agent), await opened(connection, agent, "a2")
        announce(agent, "c1")
        announce(agent, "c1", on="a2")
        announce(agent, "a1", on="a2")
        agent.update("whose?", "c1")
        agent.update("mine", "a1")
        await quiet()
        assert first.heard[1:] == ["announced c1", "c1: whose?", "mine"]
        assert second.heard[1:] == ["announced c1", "announced a1"]


async def test_children_that_the_log_knows_are_heard_from_the_asking_on() -> None:
    async with connected() as (connection, agent):
        room = Room()
        room.children = frozenset({"c1"})
        connection.open_session(room, "session/load", NEW, room.opened, AgentSessionId("a1"))
        agent.update("again", "c1")
        await quiet()
        assert room.heard == ["c1: again"]
