"""A hosted session in a node, with agents played by the test: the time of each request, and the results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import anyio
import msgspec
import pytest
from tests.support.agents import READY, V1, HandAgent, HandSource
from tests.support.driving import check_ends, content, events_of, of, open_world, prompt, texts

from turnwire.ids import PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import Node, open_node
from turnwire.session import events as ev
from turnwire.session.inputs import AnswerPermission, Cancel, Prompt, WhenBusy
from turnwire.session.speech import RESPONSE_S
from turnwire.wire.jsonrpc import Notification, Request, raw
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
STEERS: dict[str, object] = {"protocolVersion": 1, "agentCapabilities": {"_meta": {"steering": {}}}}
MARKS: dict[str, object] = {
    "protocolVersion": 1,
    "agentCapabilities": {"sessionCapabilities": {"turnComplete": {}}},
}
DONE = {"stopReason": "end_turn"}


class Stage:
    """A node with one session and agents played by the test."""

    def __init__(self, node: Node, log: MemoryEventLog, source: HandSource, clock: ManualClock) -> None:
        self.node = node
        self.log = log
        self.source = source
        self.clock = clock

    async def ask(self, text: str = "hello", prompt_id: str = "p1", when: WhenBusy = WhenBusy.QUEUE) -> None:
        with anyio.fail_after(WAIT_S):
            await self.node.submit(S1, prompt(text, prompt_id, when))

    async def events(self) -> list[ev.AnyEvent]:
        await quiet()
        return await events_of(self.log, S1)

    async def ends(self) -> list[str]:
        """Return the ends of the turns: the stop reason or the error's code."""
        events = await self.events()
        check_ends(events)
        return [
            each.stop_reason if isinstance(each, ev.TurnCompleted) else each.code
            for each in events
            if isinstance(each, ev.TurnCompleted | ev.TurnFailed)
        ]


class HeldLog(MemoryEventLog):
    """A log on a slow disk."""

    gate: anyio.Event | None = None
    """Event that the next appends wait for."""

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        if self.gate is not None:
            await self.gate.wait()
        return await super().append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    log, source, clock = MemoryEventLog(), HandSource(max_frames=4), ManualClock()
    async with open_node(log, source, clock=clock) as node:
        await node.create("/work", session_id=S1)
        yield Stage(node, log, source, clock)


async def prompted(agent: HandAgent) -> Request:
    request = await agent.next("session/prompt")
    assert isinstance(request, Request)
    return request


@pytest.mark.guarantee("G2")
async def test_the_agent_is_asked_after_the_prompt_is_stored_and_with_its_bytes(stage: Stage) -> None:
    agent = await stage.source.agent()
    await agent.greet()
    await stage.ask("wörds")
    request = await prompted(agent)
    params = msgspec.json.decode(request.params)
    assert params == {"sessionId": "a1", "prompt": [{"type": "text", "text": "wörds"}]}
    assert [each.prompt_id for each in of(await events_of(stage.log, S1), ev.TurnStarted)] == ["p1"]
    agent.send({"id": request.id, "result": DONE})
    assert await stage.ends() == ["end_turn"]


async def test_prompts_wait_for_the_session_of_the_agent_and_then_go_one_by_one(stage: Stage) -> None:
    agent = await stage.source.agent()
    await stage.ask(prompt_id="p1")
    await stage.ask(prompt_id="p2")
    await agent.greet()
    for _ in range(2):
        request = await prompted(agent)
        await quiet()
        agent.send({"id": request.id, "result": DONE})
    assert await stage.ends() == ["end_turn", "end_turn"]


async def test_a_prompt_cancelled_before_the_agent_was_asked_is_over_at_once(stage: Stage) -> None:
    agent = await stage.source.agent()
    await stage.ask()
    await stage.node.submit(S1, Cancel(at=1))
    assert await stage.ends() == ["cancelled"]
    await stage.ask(prompt_id="p2")
    await agent.greet()
    request = await prompted(agent)
    agent.send({"id": request.id, "result": DONE})
    assert await stage.ends() == ["cancelled", "end_turn"]


@pytest.mark.parametrize(("code", "ends"), [(-32000, "auth_required"), (-32603, "agent_launch_failed")])
async def test_an_agent_that_refuses_its_session_ends_the_turn_and_is_asked_again(
    stage: Stage, code: int, ends: str
) -> None:
    agent = await stage.source.agent()
    await stage.ask()
    await agent.answer("initialize", {"protocolVersion": 1})
    refused = await agent.next("session/new")
    assert isinstance(refused, Request)
    agent.send({"id": refused.id, "error": {"code": code, "message": "log in"}})
    assert await stage.ends() == [ends]
    await stage.ask(prompt_id="p2")
    await agent.answer("session/new", {"sessionId": "a1"})
    request = await prompted(agent)
    agent.send({"id": request.id, "result": DONE})
    assert await stage.ends() == [ends, "end_turn"]


async def test_an_agent_that_goes_during_the_handshake_ends_the_turn(stage: Stage) -> None:
    agent = await stage.source.agent()
    await stage.ask()
    await agent.next("initialize")
    await agent.link.aclose()
    assert await stage.ends() == ["agent_launch_failed"]


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("is_ready_first", [False, True])
async def test_a_turn_that_a_lost_agent_ended_is_asked_of_no_other(is_ready_first: bool) -> None:
    """It began when the agent was gone already, and that was not detected yet."""
    log, source, clock = HeldLog(), HandSource(max_frames=4), ManualClock()
    async with open_node(log, source, clock=clock) as node:
        await node.create("/work", session_id=S1)
        stage = Stage(node, log, source, clock)
        agent = await source.agent()
        await agent.greet()
        await stage.ask("one", "p1")
        request = await prompted(agent)
        await stage.ask("two", "p2")
        beginning = log.gate = anyio.Event()
        agent.send({"id": request.id, "result": DONE})
        await quiet()
        await agent.link.aclose()
        await quiet()
        ending = log.gate = anyio.Event()
        beginning.set()
        await quiet()
        fresh = await source.agent(1)
        if is_ready_first:
            await fresh.greet(session_id="b1")
            await quiet()
        ending.set()
        assert await stage.ends() == ["end_turn", "agent_exited"]
        await stage.ask("three", "p3")
        if not is_ready_first:
            await fresh.greet(session_id="b1")
        request = await prompted(fresh)
        assert b"three" in bytes(request.params)
        fresh.send({"id": request.id, "result": DONE})
        assert await stage.ends() == ["end_turn", "agent_exited", "end_turn"]


async def test_an_agent_that_goes_before_its_first_prompt_is_sent_ends_the_turn_and_nothing_else() -> None:
    log, source, clock = HeldLog(), HandSource(max_frames=4), ManualClock()
    async with open_node(log, source, clock=clock) as node:
        await node.create("/work", session_id=S1)
        stage = Stage(node, log, source, clock)
        agent = await source.agent()
        await stage.ask("one", "p1")
        starting = log.gate = anyio.Event()
        await agent.greet()
        await quiet()
        starting.set()
        # The end of the link is not read before the session continues.
        await agent.link.aclose()
        assert await stage.ends() == ["agent_exited"]
        await stage.ask("two", "p2")
        fresh = await source.agent(1)
        await fresh.greet(session_id="b1")
        fresh.send({"id": (await prompted(fresh)).id, "result": DONE})
        assert await stage.ends() == ["agent_exited", "end_turn"]


async def test_an_agent_that_does_not_read_is_replaced_and_the_next_prompt_runs_on_a_fresh_one(
    stage: Stage,
) -> None:
    agent = await stage.source.agent()
    await agent.greet()
    await stage.ask()
    await prompted(agent)
    await stage.ask(prompt_id="p2")
    for number in range(5):
        agent.ask(number)
        await quiet()
    questions = of(await stage.events(), ev.PermissionRequested)
    chosen = raw({"outcome": {"outcome": "selected", "optionId": "yes"}})
    for each in questions:
        await stage.node.submit(
            S1, AnswerPermission(at=1, request_id=each.request_id, answer=chosen, option_id="yes")
        )
    fresh = await stage.source.agent(1)
    await fresh.greet(session_id="b1")
    request = await prompted(fresh)
    fresh.send({"id": request.id, "result": DONE})
    assert await stage.ends() == ["agent_unresponsive", "end_turn"]


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_marker_ends_the_turn_whose_request_it_names_and_no_other(stage: Stage, as_text: bool) -> None:
    agent = await stage.source.agent()
    await agent.greet(MARKS)
    await stage.ask()
    request = await prompted(agent)

    def mark(request_id: object) -> None:
        update = {"sessionUpdate": "turn_complete", "promptRequestId": request_id, "stopReason": "end_turn"}
        agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": update}})

    mark(999)
    mark("another")
    await quiet()
    assert not of(await events_of(stage.log, S1), ev.TurnCompleted)
    mark(str(request.id) if as_text else request.id)
    await quiet()
    stage.clock.advance(RESPONSE_S)
    assert await stage.ends() == ["end_turn"]
    agent.send({"id": request.id, "result": DONE})
    assert await stage.ends() == ["end_turn"]


@pytest.mark.parametrize("is_marked_first", [True, False])
async def test_what_the_answer_beside_a_marker_says_was_used_is_kept(stage: Stage, is_marked_first: bool) -> None:
    agent = await stage.source.agent()
    await agent.greet(MARKS)
    await stage.ask()
    request = await prompted(agent)
    update = {"sessionUpdate": "turn_complete", "promptRequestId": request.id, "stopReason": "end_turn"}
    mark = {"method": "session/update", "params": {"sessionId": "a1", "update": update}}
    answer = {"id": request.id, "result": {"stopReason": "end_turn", "usage": {"totalTokens": 3}}}
    for each in (mark, answer) if is_marked_first else (answer, mark):
        agent.send(each)
        await quiet()
    assert await stage.ends() == ["end_turn"]
    [end] = of(await stage.events(), ev.TurnCompleted)
    assert isinstance(end.usage, msgspec.Raw)
    assert bytes(end.usage) == b'{"totalTokens":3}'


@pytest.mark.parametrize(
    ("outcome", "kind"), [("injected", ev.PromptInjected), ("promptRequired", ev.SteerDeclined)]
)
async def test_steering_is_injected_or_waits_for_its_own_turn(
    stage: Stage, outcome: str, kind: type[ev.Event]
) -> None:
    agent = await stage.source.agent()
    await agent.greet(STEERS)
    await stage.ask()
    request = await prompted(agent)
    await stage.ask("left!", "p2", WhenBusy.STEER)
    await agent.answer("_session/steering", {"outcome": outcome})
    await quiet()
    agent.send({"id": request.id, "result": DONE})
    await quiet()
    if outcome != "injected":
        own = await prompted(agent)
        agent.send({"id": own.id, "result": DONE})
    assert await stage.ends() == ["end_turn", "end_turn"]
    assert len(of(await stage.events(), kind)) == 1


async def test_the_second_rung_names_the_request_of_the_prompt(stage: Stage) -> None:
    agent = await stage.source.agent()
    await agent.greet()
    await stage.ask()
    request = await prompted(agent)
    await stage.node.submit(S1, Cancel(at=1))
    await agent.next("session/cancel")
    await quiet()
    stage.clock.advance(Limits().cancel_grace_s)
    named = await agent.next("$/cancel_request")
    assert msgspec.json.decode(named.params) == {"requestId": request.id}
    agent.update("stopping")
    agent.send({"id": request.id, "error": {"code": -32800, "message": "cancelled"}})
    assert await stage.ends() == ["cancelled"]
    assert texts(await stage.events(), "p1") == ["stopping"]


async def test_an_update_that_names_no_kind_ends_nothing(stage: Stage) -> None:
    agent = await stage.source.agent()
    await agent.greet()
    agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": {"x": 1}}})
    agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": 7}})
    agent.update("fine")
    assert texts(await stage.events()) == ["fine"]


# -- the response that is owed after a turn has ended ------------------------------------------------------


async def end_by_marker(stage: Stage, agent: HandAgent, request: Request) -> None:
    """End the turn of this request by its marker; the response stays owed."""
    update = {"sessionUpdate": "turn_complete", "promptRequestId": request.id, "stopReason": "end_turn"}
    agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": update}})
    await quiet()
    stage.clock.advance(RESPONSE_S)


async def marked(stage: Stage) -> tuple[HandAgent, Request]:
    """Return an agent whose turn ended by its marker while a second prompt waits, and the unanswered request."""
    agent = await stage.source.agent()
    await agent.greet(MARKS)
    await stage.ask(prompt_id="p1")
    await stage.ask(prompt_id="p2")
    request = await prompted(agent)
    await end_by_marker(stage, agent, request)
    assert len(of(await stage.events(), ev.TurnCompleted)) == 1
    assert agent.waiting() == 0, "the second prompt waits for the response"
    return agent, request


async def test_prompt_waits_for_response_of_turn_that_a_marker_ended(stage: Stage) -> None:
    agent, request = await marked(stage)
    agent.send({"id": request.id, "result": DONE})
    assert (await prompted(agent)).id != request.id


async def test_prompt_is_sent_after_grace_period_without_response(stage: Stage) -> None:
    agent, request = await marked(stage)
    stage.clock.advance(Limits().cancel_grace_s)
    assert (await prompted(agent)).id != request.id


async def test_each_owed_response_has_its_full_grace_period(stage: Stage) -> None:
    agent, request = await marked(stage)
    agent.send({"id": request.id, "result": DONE})
    second = await prompted(agent)
    await stage.ask(prompt_id="p3")
    await end_by_marker(stage, agent, second)
    await quiet()
    # The grace period of the first response ends; the one of the second began `RESPONSE_S` later.
    stage.clock.advance(Limits().cancel_grace_s - RESPONSE_S)
    await quiet()
    assert agent.waiting() == 0, "the third prompt waits for the second response"
    stage.clock.advance(RESPONSE_S)
    assert (await prompted(agent)).id != second.id


# -- what an agent hears first from us, and in which form: the handshake before all else, and readiness ----


async def test_no_session_is_asked_for_before_the_agent_has_initialized() -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            first = await agent.next("initialize")
            assert isinstance(first, Request)
            await quiet()
            assert agent.waiting() == 0, "nothing follows an `initialize` that is not answered"
            agent.send({"id": first.id, "result": V1})
            assert isinstance(await agent.next("session/new"), Request)


async def test_an_agent_that_refuses_to_initialize_is_never_asked_for_a_session() -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            for _ in range(2):
                request = await agent.next("initialize")
                assert isinstance(request, Request)
                agent.send({"id": request.id, "error": {"code": -32603, "message": "no"}})
            await quiet()
            assert agent.waiting() == 0


@pytest.mark.parametrize("offers_ready", [True, False])
async def test_readiness_is_a_notification_sent_once_and_only_to_an_agent_that_offers_it(
    offers_ready: bool,
) -> None:
    source = HandSource()
    with anyio.fail_after(WAIT_S):
        async with open_node(MemoryEventLog(), source) as node:
            await node.create("/work")
            agent = await source.agent()
            await agent.greet(READY if offers_ready else V1)
            if offers_ready:
                assert isinstance(await agent.next("session/ready"), Notification)
            await quiet()
            assert agent.waiting() == 0


# -- time limits of prompts --------------------------------------------------------------------------------


async def test_one_timer_serves_the_time_limits_of_all_prompts(stage: Stage) -> None:
    agent = await stage.source.agent()
    await agent.greet()
    await quiet()
    before = stage.clock.sleepers
    for prompt_id, after_s in (("p1", 30), ("p2", 10), ("p3", 20)):
        given = prompt("hello", prompt_id)
        deadline_at = stage.clock.now_ms() + after_s * 1000
        await stage.node.submit(
            S1, msgspec.structs.replace(given, at=stage.clock.now_ms(), deadline_at=deadline_at)
        )
    await quiet()
    assert stage.clock.sleepers == before + 1
    ended: list[str] = []
    for _ in range(2):
        stage.clock.advance(10)
        ended += [each.prompt_id for each in of(await stage.events(), ev.TurnCompleted)][len(ended) :]
    assert ended == ["p2", "p3"]


async def test_the_node_cancels_a_turn_at_its_deadline() -> None:
    async with open_world(MemoryEventLog()) as world:
        given = Prompt(
            at=world.clock.now_ms(),
            prompt_id=PromptId("a"),
            content=content("never"),
            deadline_at=world.clock.now_ms() + 2000,
        )
        await world.node.submit(world.session_id, given)
        await world.until_kind(ev.PromptSent)
        await quiet()
        world.clock.advance(1.9)
        await quiet()
        assert (await world.node.session(world.session_id)).state.turn is not None
        world.clock.advance(0.1)
        end = await world.end("a")
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by) == ("cancelled", "deadline")


async def test_a_closed_session_is_timed_no_more() -> None:
    async with open_world(MemoryEventLog()) as world:
        await quiet()
        before = world.clock.sleepers
        given = Prompt(
            at=world.clock.now_ms(),
            prompt_id=PromptId("a"),
            content=content("never"),
            deadline_at=world.clock.now_ms() + 2000,
        )
        await world.node.submit(world.session_id, given)
        await world.until_kind(ev.PromptSent)
        await quiet()
        assert world.clock.sleepers == before + 1
        await world.node.delete(world.session_id)
        await quiet()
        assert world.clock.sleepers <= before
