"""Laws of shadows: a reader on another node sees the session's log, whatever is rung, lost or moved (H1 to H4).

Two nodes share a log in memory. One owns the session; on the other one readers come, disconnect and resume, and
some peek, while rings are lost, the session moves to the other node and back, and is trimmed. At the end every
reader has every event once and in order, and both nodes know the same state.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from hashlib import sha256
from typing import Any

import anyio
from anyio.abc import TaskGroup
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.driving import World, fall_idle, stored
from tests.support.shared_log import Belfry

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.base import Position
from turnwire.runtime.node import Node, open_node
from turnwire.session.inputs import Archive, Rename
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet
from turnwire_testing.scripted.agent import ScriptedSource

S1 = SessionId("s1")
TINY = Limits(ring_events=16, page_events=16, snapshot_events=100)
ACTS = st.lists(
    st.sampled_from(["say", "say much", "read", "cut", "peek", "lose", "mend", "sweep", "move", "settle"]),
    min_size=8,
    max_size=30,
)


class Reader:
    """Reads a session on one node from a position, until it is stopped, and resumes there."""

    def __init__(self, node: Node, after: Position) -> None:
        self.node = node
        self.after = after
        self.start = after.offset
        self.frames: list[bytes] = []
        self.scope = anyio.CancelScope()

    def begin(self, tasks: TaskGroup) -> None:
        self.scope = anyio.CancelScope()
        tasks.start_soon(self._run, self.scope)

    async def _run(self, scope: anyio.CancelScope) -> None:
        with scope:
            async with aclosing(self.node.follow(S1, self.after)) as pages:
                async for page in pages:
                    self.frames += page.frames
                    self.after = Position(self.after.epoch, page.offset)


class Pair:
    """Two nodes, and a session that one of them has."""

    def __init__(self, belfry: Belfry, nodes: list[Node], clock: ManualClock, tasks: TaskGroup) -> None:
        self.belfry = belfry
        self.nodes = nodes
        self.clock = clock
        self.tasks = tasks
        self.owner = 0
        self.said = 0
        self.readers: list[Reader] = []

    async def act(self, act: str) -> None:
        match act:
            case "say":
                await self.say(1)
            case "say much":
                await self.say(40)
            case "read":
                head = await self.belfry.log.head(S1)
                reader = Reader(self.nodes[1 - self.owner], Position(head.epoch, head.head // 2))
                self.readers.append(reader)
                reader.begin(self.tasks)
            case "cut" if self.readers:
                reader = self.readers[0]
                reader.scope.cancel()
                await quiet()
                self.readers = [*self.readers[1:], reader]
                # It comes back on any node.
                reader.node = self.nodes[self.said % 2]
                reader.begin(self.tasks)
            case "peek":
                await self.check_states()
            case "lose":
                self.belfry.loses = True
            case "mend":
                self.belfry.mend()
            case "sweep":
                await self.belfry.sweep()
            case "move":
                await fall_idle(self.clock)
                assert not self.nodes[self.owner].loaded
                self.owner = 1 - self.owner
            case _:
                await quiet()

    async def say(self, count: int) -> None:
        for _ in range(count):
            self.said += 1
            await self.nodes[self.owner].submit(S1, Archive(at=self.said, archived=bool(self.said % 2)))

    async def check_states(self) -> None:
        near = await self.nodes[self.owner].session(S1)
        far = await self.nodes[1 - self.owner].peek(S1)
        assert (far.state, far.head, far.epoch) == (near.state, near.head, near.epoch)
        assert far.tail.head == far.head
        assert S1 not in self.nodes[1 - self.owner].loaded, "who only reads claims nothing"


async def play(acts: list[str]) -> None:
    belfry, clock = Belfry(), ManualClock()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(ScriptedSource("v1"))
        nodes: list[Node] = []
        for _ in range(2):
            end = belfry.end()
            opened = open_node(end, source, clock=clock, limits=TINY, bell=end.bell)
            nodes.append(await stack.enter_async_context(opened))
        await World(nodes[0], belfry.log, source, clock).create()
        await quiet()
        async with anyio.create_task_group() as tasks:
            pair = Pair(belfry, nodes, clock, tasks)
            for act in acts:
                await pair.act(act)
            # A lost ring costs time: the next look finds all.
            await belfry.sweep()
            await quiet()
            log = [each.body for each in await stored(belfry.log, S1)]
            for reader in pair.readers:
                read = sha256(b"\n".join(reader.frames)).hexdigest()
                told = f"{acts}: {len(reader.frames)} events behind {reader.start} of {len(log)}"
                assert read == sha256(b"\n".join(log[reader.start :])).hexdigest(), told
            await pair.check_states()
            tasks.cancel_scope.cancel()


def test_a_session_that_cannot_be_folded_ends_its_readers_and_disturbs_nobody_else() -> None:
    async def run() -> None:
        belfry, clock, read = Belfry(), ManualClock(), anyio.Event()
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(ScriptedSource("v1"))
            ends = [belfry.end(), belfry.end()]
            nodes = [
                await stack.enter_async_context(open_node(end, source, clock=clock, limits=TINY, bell=end.bell))
                for end in ends
            ]
            await World(nodes[0], belfry.log, source, clock).create()
            await fall_idle(clock)
            shadow = await nodes[1].peek(S1)

            async def follow() -> None:
                async with aclosing(nodes[1].follow(S1, Position(shadow.epoch, shadow.head))) as pages:
                    async for _ in pages:
                        pass
                read.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await quiet()
                again = (await belfry.log.read(S1, Position(shadow.epoch, 0), max_events=1, max_bytes=1))[0].body
                await ends[0].append(S1, [again], expected=shadow.head, unsettled=False, durable=False)
                await read.wait()
            other = await nodes[1].create(cwd="/work")
            assert (await nodes[1].peek(other)).head > 0

    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await run()

    anyio.run(bounded)


@given(ACTS)
@example(["peek", "say", "settle"])
@example(["read", "settle", "lose", "say", "say much"])
@example(["read", "peek", "move", "peek", "say much", "cut", "move", "lose", "say"])
@settings(max_examples=30, deadline=None)
def test_readers_on_another_node_see_every_event_once_and_in_order(acts: list[str]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await play(acts)

    anyio.run(bounded)


async def ended_while_it_stores() -> None:
    belfry, clock = Belfry(), ManualClock()
    ends = [belfry.end(), belfry.end()]
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(ScriptedSource("v1"))
        near, far = [
            await stack.enter_async_context(open_node(end, source, clock=clock, limits=TINY, bell=end.bell))
            for end in ends
        ]
        await World(near, belfry.log, source, clock).create()
        await quiet()
        shadow = await near.peek(S1)
        stored, told, append = anyio.Event(), anyio.Event(), ends[0].append

        async def told_later(*given: Any, **more: Any) -> int:
            head = await append(*given, **more)
            stored.set()
            await told.wait()
            return head

        ends[0].append = told_later  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.submit, S1, Archive(at=1, archived=True))
            await stored.wait()
            # The loop runs once more: the awaited events have arrived before it is stopped.
            told.set()
            near._put_away(near.loaded[S1])  # pyright: ignore[reportPrivateUsage]
        for title in ("one", "two", "three"):
            await far.submit(S1, Rename(at=2, title=title))
        await quiet()
        there = await far.session(S1)
        assert (await near.peek(S1)) is shadow
        assert (shadow.state, shadow.head) == (there.state, there.head)


def test_a_loop_that_is_ended_while_it_stores_leaves_no_gap_in_what_is_known_of_its_session() -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await ended_while_it_stores()

    anyio.run(bounded)
