"""Nodes that share a log in PostgreSQL: sessions are claimed, released and taken over by real owners and fences."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import anyio
import pytest
from tests.support.agents import HandSource
from tests.support.driving import check_ends, events_of, prompt, texts
from tests.support.postgres import PostgresServer, schema_of

from turnwire.clock import SystemClock
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire.runtime.node import open_node
from turnwire.wire.jsonrpc import Request
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
QUICK = Limits(log_retry_s=0.05, database_s=2)


class Shared(NamedTuple):
    """A database and its rows about sessions."""

    server: PostgresServer
    address: str

    @asynccontextmanager
    async def life(self, name: str, place: str = "x", folder: str = "") -> AsyncGenerator[PostgresEventLog]:
        node = NodeIdentity(name, place, "", "", folder or name)
        async with open_postgres_log(self.address, limits=QUICK, node=node, alone=False) as log:
            yield log

    def bury(self, log: PostgresEventLog) -> None:
        """Declare an incarnation dead, as the other nodes do after missing beats."""
        statement = f"update tw_nodes set gone = true where id = {log.owners.life}"
        self.server.ask(statement, schema_of(self.address))

    def owner(self, session_id: str = "s1") -> str:
        [[owner]] = self.server.ask(
            f"select coalesce(owner, 0) from tw_sessions where name = '{session_id}'", schema_of(self.address)
        )
        return owner


@pytest.fixture
def shared(postgres: PostgresServer) -> Shared:
    return Shared(postgres, postgres.new_log())


async def reached(is_so: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(WAIT_S):
        while not await is_so():
            await SystemClock().sleep(0.01)


async def test_a_session_that_was_taken_ends_here_and_what_its_agent_says_is_in_no_log(shared: Shared) -> None:
    source = HandSource()
    async with (
        shared.life("a") as a,
        shared.life("b") as b,
        open_node(a, source, owners=a.owners, limits=QUICK) as node,
    ):
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await node.submit(S1, prompt("hello"))
        await agent.next("session/prompt")
        shared.bury(a)
        assert await b.owners.steal(a.owners.life, 10)
        before = await events_of(b, S1)
        agent.update("too late")
        await agent.next("session/cancel")

        async def is_put_away() -> bool:
            return not node.loaded

        await reached(is_put_away)
        assert await events_of(b, S1) == before


@pytest.mark.guarantee("G2")
async def test_a_database_that_is_away_costs_no_turn_and_no_word(shared: Shared) -> None:
    source = HandSource()
    async with shared.life("a") as a, open_node(a, source, owners=a.owners, limits=QUICK) as node:
        await node.create("/work", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        await node.submit(S1, prompt("hello"))
        request = cast("Request", await agent.next("session/prompt"))
        agent.update("before")
        shared.server.kill()
        for number in range(20):
            agent.update(f" {number}")
        shared.server.start()
        agent.update(" after")
        agent.send({"id": request.id, "result": {"stopReason": "end_turn"}})

        async def has_ended() -> bool:
            return not node.loaded[S1].state.unsettled

        await reached(has_ended)
        events = await events_of(a, S1)
    assert texts(events) == ["before", *(f" {number}" for number in range(20)), " after"]
    check_ends(events)
