"""The agents of a node: sharing, the number of starts, and the counting of failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support.agents import V1, HandAgent, HandSource
from tests.support.driving import WAIT_S

from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    LimitExceeded,
    LinkBroken,
    RemoteProtocolError,
    UnknownAgent,
)
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.agent_pool import (
    AgentPolicy,
    AgentPool,
    AgentPools,
    Availability,
    Breaker,
    HostedAgent,
    Sharing,
)
from turnwire.hosting.source import LinkedAgent
from turnwire.ids import AgentName, SessionId
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import raw
from turnwire_testing import ManualClock
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")
EACH = AgentPolicy(sharing=Sharing.SESSION)
LOADS: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}


class Failing(HandSource):
    """A source that fails a number of times before it returns an agent."""

    def __init__(self, failures: int, *, definite: bool = False) -> None:
        super().__init__()
        self.left = failures
        self.tries = 0
        self._definite = definite

    async def connect(self) -> LinkedAgent:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise AgentLaunchFailed("the program was not found", definite=self._definite)
        return await super().connect()


class Rig:
    """The agents, and the test's means to play them."""

    def __init__(self, agents: AgentPool, source: HandSource, clock: ManualClock) -> None:
        self.agents = agents
        self.source = source
        self.clock = clock

    async def greet(self, number: int = 0, answer: object = V1) -> HandAgent:
        agent = await self.source.agent(number)
        await agent.answer("initialize", answer)
        return agent

    async def connect(self, session_id: SessionId = A, number: int = 0, answer: object = V1) -> AgentConnection:
        """Return the connection of a session whose agent has to be started."""
        found: list[AgentConnection] = []

        async def take() -> None:
            found.append(await self.agents.connection(session_id))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                await self.greet(number, answer)
        return found[0]


@asynccontextmanager
async def house(
    source: HandSource | None = None, limits: Limits | None = None, policy: AgentPolicy | None = None
) -> AsyncGenerator[Rig]:
    clock, source = ManualClock(), source or HandSource()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            hosted = HostedAgent(source=source, policy=policy or AgentPolicy())
            agents = AgentPool(hosted, tasks, clock, limits or Limits())
            yield Rig(agents, source, clock)
            await agents.aclose()
            tasks.cancel_scope.cancel()


async def test_sessions_that_come_at_once_share_one_start() -> None:
    async with house() as given:
        found: list[AgentConnection] = []

        async def take(session_id: SessionId) -> None:
            found.append(await given.agents.connection(session_id))

        async with anyio.create_task_group() as tasks:
            for session_id in (A, B, C):
                tasks.start_soon(take, session_id)
            await given.greet()
        assert len(set(map(id, found))) == 1
        assert await given.agents.connection(A) is found[0]


async def test_each_session_has_an_agent_of_its_own_where_that_is_the_policy() -> None:
    async with house(policy=EACH) as given:
        first, second = await given.connect(A, 0), await given.connect(B, 1)
        assert first is not second
        assert await given.agents.connection(A) is first


async def test_agents_that_are_being_started_count_against_the_limit() -> None:
    async with house(limits=Limits(agent_processes=1), policy=EACH) as given:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(given.agents.connection, A)
            await given.source.agent()
            with pytest.raises(LimitExceeded):
                await given.agents.connection(B)
            await given.greet()
        with pytest.raises(LimitExceeded):
            await given.agents.connection(B)
        given.agents.release(A)
        await quiet()
        assert (await given.connect(B, 1)).is_alive


async def test_a_released_session_that_has_no_agent_is_nothing() -> None:
    async with house(policy=EACH) as given:
        given.agents.release(A)
        given.agents.used(A)
        assert given.agents.last_exit(A) is None


async def test_a_shared_agent_is_not_released_with_a_session() -> None:
    async with house() as given:
        connection = await given.connect(A)
        given.agents.release(A)
        await quiet()
        assert connection.is_alive


async def test_an_agent_that_dies_young_again_and_again_is_not_started() -> None:
    async with house(limits=Limits(breaker_failures=1)) as given:
        for number in range(2):
            await given.connect(A, number)
            await (await given.source.agent(number)).link.aclose()
            await quiet()
        with pytest.raises(AgentUnavailable):
            await given.agents.connection(A)
        given.clock.advance(Limits().breaker_first_s)
        assert (await given.connect(A, 2)).is_alive


async def test_an_agent_that_we_let_go_is_not_counted_against_it() -> None:
    async with house(limits=Limits(breaker_failures=0)) as given:
        connection = await given.connect(A)
        await connection.aclose()
        await quiet()
        assert (await given.connect(A, 1)).is_alive


async def test_a_death_is_counted_once_also_if_the_next_session_comes_first() -> None:
    async with house(limits=Limits(breaker_failures=1)) as given:
        for number in range(2):
            connection = await given.connect(A, number)
            connection.is_alive = False
            if number == 0:
                continue
            with pytest.raises(AgentUnavailable):
                await given.agents.connection(A)


async def test_a_try_that_failed_is_counted_and_the_next_may_work() -> None:
    source = Failing(1)
    async with house(source) as given:
        with pytest.raises(AgentLaunchFailed):
            await given.agents.connection(A)
        assert (await given.connect(A)).is_alive
        assert source.tries == 2


async def test_a_command_that_cannot_be_started_is_tried_once_per_wait(caplog: pytest.LogCaptureFixture) -> None:
    source = Failing(100, definite=True)
    async with house(source) as given:
        for round_ in range(3):
            with pytest.raises(AgentLaunchFailed):
                await given.agents.connection(A)
            for _ in range(5):
                with pytest.raises(AgentUnavailable, match="the program was not found"):
                    await given.agents.connection(B)
            assert source.tries == round_ + 1
            given.clock.advance(Limits().breaker_most_s)
    assert [each.getMessage() for each in caplog.records] == [
        "no agent could be started: the program was not found"
    ]


@pytest.mark.parametrize("ends", ["refuses", "goes"])
async def test_an_agent_that_fails_its_handshake_is_let_go_and_counted_once(ends: str) -> None:
    async with house(limits=Limits(breaker_failures=1)) as given:
        for number in range(2):
            async with anyio.create_task_group() as tasks:

                async def play(number: int = number) -> None:
                    agent = await given.source.agent(number)
                    for _ in range(2 if ends == "refuses" else 0):
                        request = await agent.next("initialize")
                        agent.send({"id": getattr(request, "id", 0), "error": {"code": -32602, "message": "no"}})
                    if ends == "goes":
                        await agent.next("initialize")
                        await agent.link.aclose()

                tasks.start_soon(play)
                with pytest.raises(RemoteProtocolError if ends == "refuses" else LinkBroken):
                    await given.agents.connection(A)
        with pytest.raises(AgentUnavailable):
            await given.agents.connection(A)


@pytest.mark.parametrize("answer", [LOADS, V1])
async def test_an_idle_agent_without_sessions_is_let_go(answer: object) -> None:
    async with house(limits=Limits(agent_idle_s=60.0)) as given:
        connection = await given.connect(A, answer=answer)
        given.clock.advance(59.0)
        given.agents.dismiss_idle()
        assert connection.is_alive
        given.agents.used(A)
        given.clock.advance(59.0)
        given.agents.dismiss_idle()
        assert connection.is_alive, "it was used in between"
        given.clock.advance(1.0)
        given.agents.dismiss_idle()
        assert not connection.is_alive


async def test_idle_agent_that_owes_a_response_is_kept() -> None:
    async with house(limits=Limits(agent_idle_s=60.0)) as given:
        connection = await given.connect(A, answer=LOADS)
        responses: list[object] = []
        connection.peer.ask("session/list", raw({}), responses.append)
        given.clock.advance(60.0)
        given.agents.dismiss_idle()
        assert connection.is_alive
        await (await given.source.agent()).answer("session/list", {"sessions": []})
        await quiet()
        assert len(responses) == 1
        given.agents.dismiss_idle()
        assert not connection.is_alive


async def test_what_has_no_session_is_let_go_also_where_sessions_do_not_come_back() -> None:
    async with house(limits=Limits(agent_idle_s=60.0)) as given:
        connection = await given.connect(A, answer=LOADS)
        given.agents.keep_idle()
        given.clock.advance(60.0)
        given.agents.dismiss_idle()
        assert not connection.is_alive


# -- the breaker: how many failures are tolerated, how long it then says no, and what begins the count anew

LIMITS = Limits(breaker_failures=2, breaker_first_s=1.0, breaker_most_s=5.0)


def left(breaker: Breaker) -> float | None:
    """Return the remaining time of rejections; None if it does not reject."""
    try:
        breaker.check()
    except AgentUnavailable as error:
        seconds = error.context["retry_after_s"]
        assert isinstance(seconds, float)
        return seconds
    return None


def test_so_many_failures_in_a_row_are_bad_luck_and_the_next_is_a_loop(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(2):
        breaker.failed("it dies")
        assert left(breaker) is None
    breaker.failed("it dies")
    assert left(breaker) == 1.0


def test_the_wait_doubles_with_each_failure_up_to_the_most(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    waits: list[float | None] = []
    for _ in range(7):
        breaker.failed("it dies")
        waits.append(left(breaker))
        manual_clock.advance(10.0)
        assert left(breaker) is None
    assert waits == [None, None, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_long_row_of_failures_is_still_a_wait_of_the_most(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(3000):
        breaker.failed("it dies")
    assert left(breaker) == 5.0


def test_the_refusal_says_why_and_when_it_is_tried_again(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    breaker.failed("the program was not found", definite=True)
    manual_clock.advance(0.75)
    with pytest.raises(AgentUnavailable) as refused:
        breaker.check()
    assert str(refused.value) == "the program was not found; it is not started again for 1 s"
    assert refused.value.context == {"retry_after_s": 0.2}
    manual_clock.advance(0.25)
    assert left(breaker) is None


def test_a_definite_failure_is_not_tolerated_once(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    breaker.failed("no such program", definite=True)
    assert left(breaker) == 1.0


def test_a_success_begins_a_new_count_and_opens_at_once(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    for _ in range(3):
        breaker.failed("it dies")
    breaker.succeeded()
    assert left(breaker) is None
    for _ in range(2):
        breaker.failed("it dies")
    assert left(breaker) is None


def test_a_failure_is_news_the_first_time_and_when_its_reason_changes(manual_clock: ManualClock) -> None:
    breaker = Breaker(manual_clock, LIMITS)
    assert [breaker.failed(reason) for reason in ("a", "a", "b", "b", "a")] == [True, False, True, False, True]
    breaker.succeeded()
    assert breaker.failed("a"), "it had worked in between"


# -- several agents ------------------------------------------------------------------------------------------


async def test_agents_share_the_limit_on_how_many_run_and_nothing_else() -> None:
    clock, limits = ManualClock(), Limits(agent_processes=2)
    one, two = HandSource(), HandSource()
    hosted = [
        HostedAgent(name=AgentName(name), source=source, policy=EACH)
        for name, source in (("one", one), ("two", two))
    ]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            pools = AgentPools(hosted, tasks, clock, limits)
            first, second = pools.hosted()
            async with anyio.create_task_group() as starting:
                for pool, source, session_id in ((first, one, A), (second, two, B)):
                    starting.start_soon(pool.connection, session_id)
                    await source.agent()
                assert [each.availability for each in pools.hosted()] == [Availability.STARTING] * 2
                assert (first.running, second.running) == (1, 1)
                with pytest.raises(LimitExceeded):
                    await first.connection(C)
                starting.cancel_scope.cancel()
            await pools.aclose()
            tasks.cancel_scope.cancel()


async def test_an_agent_that_is_not_hosted_any_more_says_what_to_do_and_is_in_no_list() -> None:
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            pools = AgentPools([HostedAgent(source=HandSource())], tasks, ManualClock(), Limits())
            gone = pools.of(AgentName("gone"))
            with pytest.raises(AgentLaunchFailed, match=r"\[agents\.gone\]"):
                await gone.connection(A)
            assert gone.availability is Availability.UNAVAILABLE
            with pytest.raises(UnknownAgent, match="it hosts default"):
                pools.named(AgentName("gone"))
            assert [each.name for each in pools.hosted()] == ["default"]
            assert pools.named(None).recorded_name is None, "the default one may have a name later"
            tasks.cancel_scope.cancel()
