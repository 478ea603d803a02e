"""Reading on any node of several that share a database: events stored on one are read on the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from hashlib import sha256
from typing import NamedTuple

import anyio
import msgspec
import pytest
from tests.patience import SOON_S
from tests.support.driving import World, stored
from tests.support.postgres import PostgresServer

from turnwire.errors import SessionNotFound
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.base import Position
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire.log.postgres_bell import MOST_BYTES, Notice, PostgresBell, notices
from turnwire.runtime.node import Node, open_node
from turnwire.session.events import AgentStarted
from turnwire.session.inputs import Close, Rename
from turnwire.session.state import Phase
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
CUT = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'turnwire {}'"


class Two(NamedTuple):
    """Two nodes of one database; the first has the session."""

    near: Node
    far: Node
    world: World
    logs: list[PostgresEventLog]

    async def say(self, count: int) -> None:
        for number in range(count):
            await self.near.submit(S1, Rename(at=number, title=f"title {number}"))

    async def read(self, node: Node, upto: int, after: int = 0) -> list[bytes]:
        """Return the events for a reader on a node up to an event."""
        head = await node.head(S1)
        frames: list[bytes] = []
        with anyio.fail_after(WAIT_S):
            async with aclosing(node.follow(S1, Position(head.epoch, after))) as pages:
                async for page in pages:
                    frames += page.frames
                    if page.offset >= upto:
                        break
        return frames


@asynccontextmanager
async def two_nodes(postgres: PostgresServer, limits: Limits | None = None) -> AsyncGenerator[Two]:
    address, clock, limits = postgres.new_log(), ManualClock(), limits or Limits()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(ScriptedSource("v1"))
        nodes: list[Node] = []
        logs: list[PostgresEventLog] = []
        for _ in range(2):
            opened = open_postgres_log(address, limits=limits, alone=False)
            log = await stack.enter_async_context(opened)
            node = open_node(log, source, clock=clock, limits=limits, bell=log.bell)
            nodes.append(await stack.enter_async_context(node))
            logs.append(log)
        two = Two(nodes[0], nodes[1], World(nodes[0], logs[0], source, clock), logs)
        await two.world.create()
        await two.world.until_kind(AgentStarted)
        yield two


@pytest.mark.guarantee("G9", "G10")
async def test_readers_of_two_nodes_see_the_same_events_in_the_same_order(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        read: list[str] = []

        async def follow(node: Node) -> None:
            read.append(_hash(await two.read(node, 200)))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                for node in (two.near, two.far) * 5:
                    tasks.start_soon(follow, node)
                await two.say(200)
        log = [each.body for each in await stored(two.world.log, S1)]
        assert set(read) == {_hash(log)}
        assert S1 not in two.far.loaded, "reading claims nothing"


async def test_a_look_sees_what_was_stored_before_it_on_any_node(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        for number in range(20):
            await two.near.submit(S1, Rename(at=1, title=f"title {number}"))
            near, far = await two.near.peek(S1), await two.far.peek(S1)
            assert (far.state, far.head) == (near.state, near.head)
            view, _ = await two.far.newest(S1)
            assert view.session.title == f"title {number}"
            assert (await two.far.head(S1)).head == near.head


async def test_a_reader_misses_nothing_when_bell_and_ears_are_cut(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        frames: list[bytes] = []

        async def follow() -> None:
            frames.extend(await two.read(two.far, 60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(60):
                if number % 20 == 10:
                    await anyio.to_thread.run_sync(postgres.ask, CUT.format("ears"))
                    await anyio.to_thread.run_sync(postgres.ask, CUT.format("bell"))
                await two.say(1)
        log = [each.body for each in await stored(two.world.log, S1)]
        assert frames == log[: len(frames)]
        assert len(frames) >= 60


async def test_a_ring_that_was_lost_costs_time_and_no_event(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresBell, "tell", _unheard)
    async with two_nodes(postgres) as two:
        tail = await two.far.tail(S1)
        head = tail.head
        await two.say(3)
        with anyio.fail_after(SOON_S):
            assert await tail.wait(head + 2)
        assert tail.head == head + 3


def _unheard(bell: PostgresBell, heads: Mapping[SessionId, int]) -> None:
    """Behave as if its node died in each of these instants."""


async def test_a_session_that_ends_or_is_deleted_ends_for_readers_of_other_nodes(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        tail = await two.far.tail(S1)
        await two.near.submit(S1, Close(at=1, reason="done"))
        with anyio.fail_after(WAIT_S):
            while await tail.wait(tail.head):
                pass
        assert (await two.far.peek(S1)).state.phase is Phase.CLOSED
        await two.world.create("s2")
        other = await two.far.tail(SessionId("s2"))
        await two.near.delete(SessionId("s2"))
        with anyio.fail_after(WAIT_S):
            while await other.wait(other.head):
                pass
        with pytest.raises(SessionNotFound):
            await two.far.peek(SessionId("s2"))


async def test_a_session_that_is_made_again_is_another_one_on_every_node(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        await two.say(5)
        first = await two.far.peek(S1)
        await two.near.delete(S1)
        await two.world.create()
        near = await two.near.session(S1)
        with anyio.fail_after(WAIT_S):
            while near.state.agent is None:
                await near.tail.wait(near.tail.head)
        second = await two.far.peek(S1)
        assert second.epoch != first.epoch
        assert first.tail.is_over
        assert second.state == near.state


async def test_what_is_trimmed_before_it_was_read_is_skipped_by_those_who_come_next(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresBell, "tell", _unheard)
    async with two_nodes(postgres, Limits(snapshot_events=100)) as two:
        far = await two.far.peek(S1)
        await two.say(50)
        await two.near.retain(S1, keep_events=2)
        again = await two.far.peek(S1)
        assert again.tail is far.tail
        assert again.head == (await two.near.head(S1)).head
        assert again.state == (await two.near.peek(S1)).state


async def test_a_word_is_heard_by_the_other_nodes_and_after_a_break(postgres: PostgresServer) -> None:
    async with two_nodes(postgres) as two:
        near, far = two.logs[0].bell, two.logs[1].bell
        await two.far.tail(S1)
        with anyio.fail_after(WAIT_S):
            near.ring("tokens")
            await far.heard("tokens")
            assert not far.is_deaf
            await anyio.to_thread.run_sync(postgres.ask, CUT.format("ears"))
            await far.heard("tokens")


async def test_a_node_that_has_the_log_alone_rings_nothing(postgres: PostgresServer) -> None:
    async with open_postgres_log(postgres.new_log(), limits=Limits()) as log:
        assert log.bell.is_alone
        await log.create(S1)
        assert await log.append(S1, [b"1"], expected=0, unsettled=False, durable=True) == 1
        [[count]] = postgres.ask("select count(*) from pg_stat_activity where application_name = 'turnwire ears'")
        assert count == "0"


def test_what_is_due_fits_into_notices_however_much_it_is() -> None:
    heads = {SessionId(f"{'long' * 100}{number}"): number for number in range(500)}
    due = Notice(heads=heads, words=["tokens"])
    parts = [msgspec.json.decode(each, type=Notice) for each in notices(due)]
    assert {name: head for each in parts for name, head in each.heads.items()} == heads
    assert [word for each in parts for word in each.words] == ["tokens"]
    assert all(len(each.encode()) <= MOST_BYTES for each in notices(due))
    assert notices(Notice(heads={SessionId("x" * 9000): 1})) == ["[{},[]]"], "then everybody looks"


def _hash(frames: list[bytes]) -> str:
    return sha256(b"\n".join(frames[:200])).hexdigest()
