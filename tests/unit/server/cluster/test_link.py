"""Two nodes of one log: a request to a session on one node is executed by the other, once, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
import pytest
from msgspec import Raw
from tests.support.agents import HandAgent
from tests.support.cluster import Cut, Pair, linked_pair
from tests.support.driving import events_of, of, prompt

from turnwire.errors import (
    AnswerLost,
    LocalProtocolError,
    PromptNotFound,
    QueueFull,
    RemoteProtocolError,
    RequestRefused,
    SessionExists,
    SessionMoving,
    SessionNotFound,
)
from turnwire.ids import ClientId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.runtime.node import Fork
from turnwire.server.daemon.clients import There
from turnwire.session import events as ev
from turnwire.session.inputs import AnswerPermission, Attach, Cancel, Prompt, ReleaseQueue, Rename, Settle
from turnwire.session.permissions import PermissionAnswer
from turnwire.session.queue import Accepted
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import INTERNAL_ERROR, Failure, Notification, Request, Result, raw
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")
DONE = {"stopReason": "end_turn"}
FORKING: dict[str, Any] = {
    "protocolVersion": 1,
    "agentCapabilities": {"sessionCapabilities": {"fork": {}, "additionalDirectories": {}}},
}


@asynccontextmanager
async def time_passing(pair: Pair, *, lost_after: float | None = None) -> AsyncGenerator[None]:
    """Advance the time so that waits for an owner need no real time. The first node may be lost a while after its
    cable.
    """

    async def pass_time() -> None:
        while True:
            await anyio.wait_all_tasks_blocked()
            pair.clock.advance(0.2)
            if lost_after is not None and not pair.cable.is_there and pair.clock.monotonic() > lost_after:
                pair.lose_first()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_time)
        with anyio.fail_after(WAIT_S):
            yield
        tasks.cancel_scope.cancel()


async def asked(agent: HandAgent) -> Request:
    request = await agent.next("session/prompt")
    assert isinstance(request, Request)
    return request


async def prompts_in(pair: Pair) -> list[str]:
    return [each.prompt_id for each in of(await events_of(pair.log, S1), ev.PromptAccepted)]


# -- the session ---------------------------------------------------------------------------------------------


async def test_a_prompt_on_the_other_node_is_taken_by_the_owner_and_answered_with_its_head() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        two, reached = pair.nodes[2], list[int]()
        assert two.remote is not None

        async def reach(session_id: SessionId, head: int) -> None:
            reached.append(head)

        two.remote.reach = reach
        accepted = cast("Accepted", await two.submit(S1, prompt("hello", "p1")))
        assert accepted.prompt_id == "p1"
        [head] = reached
        assert head > accepted.after_offset
        agent.send({"id": (await asked(agent)).id, "result": DONE})
        await quiet()
        assert len(of(await events_of(pair.log, S1), ev.TurnCompleted)) == 1
        assert two.loaded.keys() == frozenset(), "the other node has not opened it"


async def test_a_refusal_of_the_owner_is_raised_as_the_same_class() -> None:
    async with linked_pair(Limits(queue_length=1)) as pair:
        two = pair.nodes[2]
        with pytest.raises(PromptNotFound):
            await two.submit(S1, Settle(at=1, prompt_id=PromptId("nope")))
        with pytest.raises(SessionNotFound):
            await two.submit(S2, Rename(at=1, title="x"))
        await two.submit(S1, prompt("never", "p1"))
        await two.submit(S1, prompt("never", "p2"))
        with pytest.raises(QueueFull) as refused:
            await two.submit(S1, prompt("never", "p3"))
        assert refused.value.context["limit"] == 1


@pytest.mark.guarantee("G2")
async def test_the_agent_is_asked_when_the_other_node_has_told_its_client() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        accepted, told = await pair.nodes[2].accept(S1, prompt("hello", "p1"))
        await quiet()
        assert (accepted.prompt_id, agent.waiting()) == ("p1", 0)
        told()
        told()
        await asked(agent)


async def test_the_agent_is_asked_when_the_link_breaks_before_the_client_was_told() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        _, told = await pair.nodes[2].accept(S1, prompt("hello", "p1"))
        await quiet()
        assert agent.waiting() == 0
        pair.cable.cut()
        await asked(agent)
        told()


async def test_a_turn_is_cancelled_and_a_permission_is_answered_from_either_node() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        await pair.nodes[2].submit(S1, prompt("hello", "p1"))
        request = await asked(agent)
        for number, life in enumerate((2, 1, 2)):
            agent.ask(f"q{number}")
            await quiet()
            permission = of(await events_of(pair.log, S1), ev.PermissionRequested)[-1]
            chosen = raw({"outcome": {"outcome": "selected", "optionId": "yes"}})
            answer = AnswerPermission(
                at=1, request_id=permission.request_id, answer=chosen, option_id="yes", client_id=ClientId("c")
            )
            won = cast("PermissionAnswer", await pair.nodes[life].submit(S1, answer))
            assert (won.won, bytes(won.answer)) == (True, bytes(chosen))
            assert (await agent.next_result()).id == f"q{number}"
            late = cast("PermissionAnswer", await pair.nodes[3 - life].submit(S1, answer))
            assert late.won, "an equal answer of the same client is the same"
        await pair.nodes[2].submit(S1, Cancel(at=1))
        await agent.next("session/cancel")
        agent.send({"id": request.id, "result": {"stopReason": "cancelled"}})
        await quiet()
        [ended] = of(await events_of(pair.log, S1), ev.TurnCompleted)
        assert ended.stop_reason == "cancelled"


async def test_a_session_is_deleted_through_its_owner() -> None:
    async with linked_pair() as pair:
        await pair.nodes[2].delete(S1)
        with pytest.raises(SessionNotFound):
            await pair.log.head(S1)


async def test_the_events_of_a_session_are_forgotten_by_its_owner() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        await pair.nodes[2].submit(S1, prompt("hello", "p1"))
        agent.send({"id": (await asked(agent)).id, "result": DONE})
        await quiet()
        before = await pair.log.head(S1)
        first = await pair.nodes[2].retain(S1, keep_events=2)
        assert first == before.head - 1
        assert (await pair.log.head(S1)).first == first
        assert pair.nodes[2].loaded.keys() == frozenset(), "the other node has not opened it"


async def test_a_fork_is_made_by_the_node_whose_agent_has_the_session() -> None:
    async with linked_pair() as pair:
        agent, two = await pair.sources[1].agent(), pair.nodes[2]
        with pytest.raises(LocalProtocolError, match="no agent has had"):
            await two.create("/work", fork=Fork(S1))
        await agent.greet(FORKING)
        await quiet()
        setup = Setup(raw([{"name": "m"}]), ("/more",), raw({"x": 1}))
        made = await two.create("/there", session_id=S2, setup=setup, fork=Fork(S1), author="ann", title="t")
        asked = await agent.answer("session/fork", {"sessionId": "a2"})
        await quiet()
        assert made == S2
        assert msgspec.json.decode(asked.params)["sessionId"] == "a1"
        [created] = of(await events_of(pair.log, S2), ev.SessionCreated)
        assert (created.cwd, created.fork_of, created.author, created.title) == ("/there", S1, "ann", "t")
        assert bytes(created.mcp_servers) == bytes(setup.mcp_servers)
        assert (created.additional_directories, created.meta) == (("/more",), setup.meta)
        assert pair.cluster.owner_of(S2) == 1
        with pytest.raises(SessionExists):
            await two.create("/there", session_id=S2, fork=Fork(S1))


async def test_a_fork_whose_answer_is_lost_is_not_made_again() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet(FORKING)
        await quiet()
        pair.cable.cut_at = (2, Cut.IN)
        with pytest.raises(AnswerLost):
            await pair.nodes[2].create("/work", session_id=S2, fork=Fork(S1))
        assert pair.cluster.owner_of(S2) == 1


# -- the link breaks -----------------------------------------------------------------------------------------


async def submit(pair: Pair, given: Prompt) -> Accepted:
    return cast("Accepted", await pair.nodes[2].submit(S1, given))


async def accept(pair: Pair, given: Prompt) -> Accepted:
    accepted, told = await pair.nodes[2].accept(S1, given)
    told()
    return accepted


Doing = Callable[[Pair, Prompt], Coroutine[Any, Any, Accepted]]
FRAMES = {submit: 2, accept: 3}
"""Number of frames of each case."""


async def test_a_submit_takes_two_frames_and_an_accept_three() -> None:
    for doing, frames in FRAMES.items():
        async with linked_pair() as pair:
            await doing(pair, prompt("hello", "p1"))
            await quiet()
            assert pair.cable.frames == frames


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize(("doing", "frame"), [(each, n + 1) for each, most in FRAMES.items() for n in range(most)])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_link_that_is_cut_anywhere_costs_no_prompt_and_makes_none_of_one(
    doing: Doing, frame: int, how: Cut, key: str | None
) -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        pair.cable.cut_at = (frame, how)
        async with time_passing(pair):
            accepted = await doing(pair, prompt("hello", "p1", key=key))
        assert (accepted.prompt_id, accepted.repeated) == ("p1", False)
        agent.send({"id": (await asked(agent)).id, "result": DONE})
        await quiet()
        assert agent.waiting() == 0, "the agent is asked once"
        events = await events_of(pair.log, S1)
        assert [each.prompt_id for each in of(events, ev.PromptAccepted)] == ["p1"]
        assert len(of(events, ev.TurnCompleted)) == 1


@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize(("doing", "frame"), [(submit, 1), (submit, 2), (accept, 1), (accept, 2)])
async def test_a_prompt_whose_owner_is_gone_before_it_answers_is_in_the_log_once(
    doing: Doing, frame: int, how: Cut
) -> None:
    async with linked_pair() as pair:
        pair.cable.cut_at = (frame, how)
        pair.cable.is_gone_after_cut = True
        async with time_passing(pair, lost_after=3):
            accepted = await doing(pair, prompt("hello", "p1"))
        assert accepted.prompt_id == "p1"
        assert await prompts_in(pair) == ["p1"]


async def test_what_may_not_be_done_twice_is_refused_if_nobody_knows_whether_it_was_done() -> None:
    async with linked_pair() as pair:
        pair.cable.cut_at = (1, Cut.BEHIND)
        pair.cable.is_gone_after_cut = True
        async with time_passing(pair, lost_after=3):
            with pytest.raises(SessionMoving):
                await pair.nodes[2].submit(S1, ReleaseQueue(at=1))
            await pair.nodes[2].submit(S1, Attach(at=1, client_id=ClientId("c")))


async def test_an_owner_that_lives_and_cannot_be_reached_is_waited_for_and_then_the_session_is_moving() -> None:
    async with linked_pair() as pair:
        pair.cable.is_gone = True
        async with time_passing(pair):
            with pytest.raises(SessionMoving) as refused:
                await pair.nodes[2].submit(S1, prompt("hello", "p1"))
        assert (refused.value.http_status, refused.value.retryable) == (503, True)
        assert pair.clock.monotonic() == pytest.approx(Limits().request_retry_s, abs=0.5)
        assert await prompts_in(pair) == []


async def test_a_session_whose_owner_is_gone_is_claimed_by_who_is_asked() -> None:
    async with linked_pair() as pair:
        await pair.nodes[2].submit(S1, Rename(at=1, title="one"))
        pair.lose_first()
        pair.cable.cut()
        pair.cable.is_gone = True
        async with time_passing(pair):
            await pair.nodes[2].submit(S1, Rename(at=1, title="two"))
        assert pair.nodes[2].loaded.keys() == {S1}
        assert [each.title for each in of(await events_of(pair.log, S1), ev.SessionRenamed)] == ["one", "two"]


async def test_a_session_that_went_to_another_node_is_found_there() -> None:
    async with linked_pair() as pair:
        await pair.nodes[2].submit(S1, Rename(at=1, title="one"))
        await pair.owners[1].release(S1)
        await pair.owners[2].claim(S1)
        async with time_passing(pair):
            await pair.nodes[2].submit(S1, Rename(at=1, title="two"))
        assert pair.nodes[2].loaded.keys() == {S1}


# -- its agent -----------------------------------------------------------------------------------------------


async def test_what_is_asked_of_an_agent_is_asked_by_the_node_that_has_it() -> None:
    async with linked_pair() as pair:
        agent, agents = await pair.sources[1].agent(), pair.nodes[2].agents
        with pytest.raises(LocalProtocolError):
            await agents.configure(S1, "session/set_mode", {"modeId": "m"})
        await agent.greet()
        await quiet()
        assert (await agents.explain(S1)).agent.connected
        await agents.wake(S1)
        await agents.notify(S1, "_x/told", {"n": raw(1)})
        said = await agent.next("_x/told")
        assert msgspec.json.decode(said.params) == {"n": 1, "sessionId": "a1"}
        answers: list[Result | Failure | Raw] = []

        async def call() -> None:
            answers.append(await agents.call(S1, "_x/ask", {"n": raw(2)}))
            answers.append(await agents.call(S1, "_x/ask", {"n": raw(3)}))
            answers.append(await agents.configure(S1, "session/set_mode", {"modeId": "m"}))
            with pytest.raises(RemoteProtocolError):
                await agents.configure(S1, "session/set_mode", {"modeId": "n"})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await agent.answer("_x/ask", {"x": [1]})
            refused = await agent.next("_x/ask")
            assert isinstance(refused, Request)
            agent.send({"id": refused.id, "error": {"code": 7, "message": "no", "data": {"why": 1}}})
            await agent.answer("session/set_mode", {})
            refused = await agent.next("session/set_mode")
            assert isinstance(refused, Request)
            agent.send({"id": refused.id, "error": {"code": 7, "message": "no"}})
        result, failure, configured = answers
        assert isinstance(result, Result)
        assert msgspec.json.decode(result.result) == {"x": [1]}
        assert isinstance(failure, Failure)
        assert (failure.error.code, failure.error.message) == (7, "no")
        assert failure.error.data
        assert msgspec.json.decode(failure.error.data) == {"why": 1}
        assert isinstance(configured, Raw)


async def test_a_call_whose_answer_is_lost_is_not_made_again() -> None:
    async with linked_pair() as pair:
        agent, agents = await pair.sources[1].agent(), pair.nodes[2].agents
        await agent.greet()
        await agents.wake(S1)

        async def call() -> None:
            with pytest.raises(AnswerLost):
                await agents.call(S1, "_x/ask", {})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await agent.next("_x/ask")
            pair.cable.cut()
        await quiet()
        assert agent.waiting() == 0


class Desk:
    """A client that serves files, and can be blocked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[tuple[str, int]] = []
        self.free = anyio.Event()
        self.was_withdrawn = False

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({"fs/read_text_file"})

    def serve(self, method: str, params: Raw, after: int) -> Coroutine[Any, Any, Raw]:
        path = msgspec.json.decode(params)["path"]
        self.asked.append((path, after))
        return self._serve(path)

    async def _serve(self, path: str) -> Raw:
        if path == "/missing":
            raise RequestRefused("none", jsonrpc=-32002, reason="missing", data={"uri": path})
        try:
            await self.free.wait()
        except BaseException:
            self.was_withdrawn = True
            raise
        return raw({"content": self.text})


def read(agent: HandAgent, number: int, path: str) -> None:
    params = {"sessionId": "a1", "path": path}
    agent.send({"id": number, "method": "fs/read_text_file", "params": params})


async def test_a_client_on_another_node_serves_its_files_and_what_it_leaves_goes_to_the_next() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        ann, bob = Desk("ann"), Desk("bob")
        bob.free.set()
        async with (
            pair.nodes[2].agents.offering(S1, ClientId("ann"), ann),
            pair.nodes[1].agents.offering(S1, ClientId("bob"), bob),
        ):
            read(agent, 1, "/a")
            await quiet()
            [(path, after)] = ann.asked
            assert (path, after) == ("/a", (await pair.log.head(S1)).head)
            ann.free.set()
            assert msgspec.json.decode((await agent.next_result()).result) == {"content": "ann"}
            ann.free = anyio.Event()
            read(agent, 2, "/b")
            await quiet()
            agent.send({"method": "$/cancel_request", "params": {"requestId": 2}})
            await quiet()
            assert ann.was_withdrawn
        await quiet()
        async with pair.nodes[1].agents.offering(S1, ClientId("bob"), bob):
            frames = agent.waiting()
            read(agent, 3, "/c")
            await quiet()
            assert [each[0] for each in bob.asked] == ["/c"]
            assert agent.waiting() == frames + 1


async def test_a_client_that_leaves_with_its_node_hands_its_request_to_the_next() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        ann, bob = Desk("ann"), Desk("bob")
        bob.free.set()
        async with (
            pair.nodes[2].agents.offering(S1, ClientId("ann"), ann),
            pair.nodes[1].agents.offering(S1, ClientId("bob"), bob),
        ):
            read(agent, 1, "/a")
            await quiet()
            pair.cable.is_gone = True
            pair.cable.cut()
            assert msgspec.json.decode((await agent.next_result()).result) == {"content": "bob"}


async def test_an_offer_is_made_again_when_the_link_is() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        ann = Desk("ann")
        ann.free.set()
        async with pair.nodes[2].agents.offering(S1, ClientId("ann"), ann):
            pair.cable.cut()
            await quiet()
            read(agent, 1, "/a")
            assert msgspec.json.decode((await agent.next_result()).result) == {"content": "ann"}


class Ear:
    """A client that receives an agent's frames."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    @property
    def client(self) -> object:
        return self

    def heard(self, said: Notification, after: int) -> None:
        self.told.append((said.method, after))

    def behind(self, after: int, act: Callable[[], None]) -> None:
        self.told.append(("behind", after))
        act()

    def heard_by_all(self, said: Notification) -> None:
        self.told.append((said.method, "all"))

    def completed(self, said: Notification) -> None:
        self.told.append((said.method, "completed"))


async def test_a_client_on_another_node_hears_what_the_agent_says_beside_updates_in_its_place() -> None:
    async with linked_pair() as pair:
        agent = await pair.sources[1].agent()
        await agent.greet()
        ear = Ear()
        await quiet()
        unlisten = await pair.nodes[2].agents.listen(S1, ear)
        assert unlisten is not None
        agent.update("one")
        agent.send({"method": "_x/in", "params": {"sessionId": "a1"}})
        await quiet()
        head = (await pair.log.head(S1)).head
        assert ear.told == [("_x/in", head)]
        agent.send({"method": "_x/all", "params": {}})
        agent.send({"method": "elicitation/complete", "params": {"elicitationId": "e"}})
        await quiet()
        assert ear.told[1:] == [
            ("behind", head),
            ("_x/all", "all"),
            ("behind", head),
            ("elicitation/complete", "completed"),
        ]
        unlisten()
        await quiet()
        agent.send({"method": "_x/in", "params": {"sessionId": "a1"}})
        await quiet()
        assert len(ear.told) == 5


# -- between nodes -------------------------------------------------------------------------------------------


async def test_a_node_says_who_is_there_and_whether_it_is_cut_off() -> None:
    async with linked_pair() as pair:
        heard: list[tuple[int, dict[SessionId, There], bool]] = []

        def hear(life: int, sessions: dict[SessionId, There], whole: bool) -> None:
            heard.append((life, sessions, whole))

        pair.links[1].serve(pair.nodes[1], hear, lambda: True)
        other = await pair.links[2].reach(1)
        other.present({S1: There(2, (ClientId("c"),))}, whole=False)
        assert await other.is_cut()
        assert heard == [(2, {S1: There(2, (ClientId("c"),))}, False)]
        back = await pair.links[1].reach(2)
        assert not await back.is_cut(), "the same link serves both"
        assert len(pair.cable.ends) == 2


async def test_a_word_that_is_not_known_is_refused_and_the_link_goes_on() -> None:
    async with linked_pair() as pair:
        other = await pair.links[2].reach(1)
        peer = other._peer  # pyright: ignore[reportPrivateUsage]
        answer = await peer.call("fly", raw({}))
        assert isinstance(answer, Failure)
        answer = await peer.call("wake", raw({"session": 3}))
        assert isinstance(answer, Failure)
        peer.notify("told", raw([]))
        peer.notify("serve", raw([]))
        answer = await peer.call(
            "serve", raw({"session": "s", "client": "c", "method": "m", "params": {}, "after": 1})
        )
        assert isinstance(answer, Failure)
        assert answer.error.code != INTERNAL_ERROR or answer.error.data
        assert not await other.is_cut()
