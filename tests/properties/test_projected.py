"""Readers of a busy session in every shape: each sees the result of one whole fold of the log, whatever its pace.

A publisher appends the turns of an agent, readers attach at random points, stall, are cut and resume. Rings and
pages are tiny, so that every reader moves between ring and log all the time, and folds begin everywhere. The seeds
are fixed, so a failure can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import anyio
import pytest
from tests.unit.projections.translate.speaking import raw, text

from turnwire.errors import PositionLost
from turnwire.ids import AgentSessionId, ClientId, Epoch, MessageId, PromptId, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import Position, Snapshot
from turnwire.projections.envelope import Shape, ShapeFold
from turnwire.projections.view import VIEW_VERSION, View, encode_view
from turnwire.runtime.folds import VIEW
from turnwire.runtime.follow import Page
from turnwire.runtime.tail import Tail
from turnwire.server.readers import fanout
from turnwire.server.readers.fanout import ProjectedLog, ProjectedRing
from turnwire.session import events as ev
from turnwire.session.codec import encode, encode_all
from turnwire_testing.faults import FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
TINY = Limits(ring_events=16, ring_bytes=64 * KiB, page_events=16, page_bytes=16 * KiB)
SHAPES = pytest.mark.parametrize("shape", list(Shape))
AGENTS = pytest.mark.parametrize("versions", [(1,), (2,), (1, 2, 1, 2)], ids=["v1", "v2", "both"])


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the distance of stored folds as small as the rings."""
    monkeypatch.setattr(fanout, "APART", 40)
    monkeypatch.setattr(fanout, "KEPT", 8)


def life(versions: tuple[int, ...]) -> Iterator[ev.AnyEvent]:
    """Return an endless session: turns of agents of these versions, one agent after the other."""
    yield ev.SessionCreated(at=0, session_id=S1, cwd="/work")
    turn = 0
    while True:
        for number, version in enumerate(versions):
            if turn < 1 or len(versions) > 1:
                agent = AgentSessionId(f"a{number}")
                end = ev.TurnEnd.RESPONSE if version == 1 else ev.TurnEnd.IDLE
                yield ev.AgentStarted(at=0, agent_session_id=agent, protocol_version=version, turn_end=end)
            for _ in range(3):
                turn += 1
                yield from a_turn(PromptId(f"p{turn}"), turn, version)


def a_turn(prompt_id: PromptId, turn: int, version: int) -> Iterator[ev.AnyEvent]:
    author, client_id = f"author{turn % 3}", ClientId(f"c{turn % 5}")
    yield ev.PromptAccepted(at=turn, prompt_id=prompt_id, after_offset=0, author=author, client_id=client_id)
    blocks = raw([text("a"), text("b")][: turn % 2 + 1])
    yield ev.UserMessage(at=turn, prompt_id=prompt_id, message_id=MessageId(f"m{turn}"), content=blocks)
    yield ev.TurnStarted(at=turn, prompt_id=prompt_id)

    def said(kind: str, **members: object) -> ev.SessionUpdated:
        update = raw({"sessionUpdate": kind, **members})
        return ev.SessionUpdated(at=turn, kind=kind, update=update, prompt_id=prompt_id)

    call = {"toolCallId": f"t{turn % 4}"}
    item = {"type": "content", "content": text("x" * 700)}
    if version == 1:
        yield said("tool_call", title="T", **call)
        yield from (said("agent_message_chunk", content=text(f"{turn}.{word}")) for word in range(turn % 7))
        yield said("tool_call_update", status="completed", **call)
        yield said("turn_complete", stopReason="end_turn")
    else:
        yield said("state_update", state="running")
        yield said("agent_message", messageId=f"m{turn % 6}", content=[text(f"whole {turn}")])
        yield from (said("tool_call_content_chunk", content=item, **call) for _ in range(turn % 9))
        yield said("tool_call_update", status="completed", **call)
    yield ev.TurnCompleted(at=turn, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


class Publisher:
    """A busy session, its ring in one shape, and all events ever published in it."""

    def __init__(self, log: EventLog, epoch: Epoch, shape: Shape, versions: tuple[int, ...]) -> None:
        self.log = log
        self.tail = Tail(TINY, epoch, 0)
        self.shape = shape
        self.ring = self.new_ring()
        self.frames: list[bytes] = []
        self._events = life(versions)
        self._whole = ShapeFold(S1, shape)

    def new_ring(self) -> ProjectedRing:
        return ProjectedRing(ProjectedLog(self.log, S1, self.tail.epoch, self.shape, TINY), self.tail)

    async def say(self, count: int) -> None:
        new = encode_all([next(self._events) for _ in range(count)])
        await self.log.append(S1, new, expected=self.tail.head, unsettled=False, durable=False)
        self.frames += self._whole.project(new)
        self.tail.publish(new)

    def follow(self, after: int) -> aclosing[AsyncGenerator[Page]]:
        return aclosing(self._pages(self.ring, after))

    async def _pages(self, ring: ProjectedRing, after: int) -> AsyncGenerator[Page]:
        while True:
            async with aclosing(ring.catch_up(self.tail, after)) as pages:
                async for page in pages:
                    yield page
                    after = page.offset
            if not await self.tail.wait(after):
                return

    def check(self, cursor: int, page: Page) -> int:
        """Check that the page follows the cursor, and equals the result of the whole fold."""
        assert page.offset == cursor + len(page.frames)
        assert page.frames == self.frames[cursor : page.offset], f"after {cursor}"
        return page.offset


async def publishing(shape: Shape, versions: tuple[int, ...]) -> Publisher:
    log = FaultyLog(MemoryEventLog(), [])
    return Publisher(log, (await log.create(S1)).epoch, shape, versions)


@pytest.mark.guarantee("G9", "G10", "G11")
@SHAPES
@AGENTS
async def test_every_reader_sees_every_event_once_and_as_all_others(
    shape: Shape, versions: tuple[int, ...]
) -> None:
    publisher = await publishing(shape, versions)
    await publisher.say(100)
    running = 0

    async def read(seed: int) -> None:
        nonlocal running
        running += 1
        chance = random.Random(seed)
        for _ in range(5):
            cursor = chance.randint(0, publisher.tail.head)
            for _ in range(2):
                pages_left = chance.randint(1, 6)
                async with publisher.follow(cursor) as pages:
                    async for page in pages:
                        cursor = publisher.check(cursor, page)
                        pages_left -= 1
                        if not pages_left:
                            break
                        for _ in range((0, 2, 20)[seed % 3]):
                            await anyio.lowlevel.checkpoint()
        running -= 1

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for seed in range(15):
                tasks.start_soon(read, seed)
            await anyio.lowlevel.checkpoint()
            chance = random.Random(str(shape))
            while running:
                # Folds from the start of the log are as slow as the log is long.
                await publisher.say(chance.choice((1, 1, 2, 5, 20, 60)) if publisher.tail.head < 500 else 1)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            publisher.tail.end()
    assert publisher.tail.head > 300


@pytest.mark.guarantee("G9")
@SHAPES
@AGENTS
async def test_a_reader_that_begins_behind_any_event_gets_the_rest(shape: Shape, versions: tuple[int, ...]) -> None:
    publisher = await publishing(shape, versions)
    await publisher.say(110)
    publisher.tail.end()
    for after in range(111):
        # In the state left by the earlier readers, and in that after a restart.
        for ring in (publisher.ring, publisher.new_ring()):
            cursor = after
            async with aclosing(ring.catch_up(publisher.tail, after)) as pages:
                async for page in pages:
                    cursor = publisher.check(cursor, page)
            assert cursor == 110


@pytest.mark.guarantee("G10")
@SHAPES
@AGENTS
async def test_each_event_is_folded_once_for_a_hundred_live_readers(
    shape: Shape, versions: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    take = ShapeFold.project

    def counting(self: ShapeFold, bodies: list[bytes], *rest: object) -> list[bytes]:
        before = self.offset
        taken = take(self, bodies, *rest)  # pyright: ignore[reportArgumentType]
        folded.extend(range(before + 1, self.offset + 1))
        return taken

    publisher = await publishing(shape, versions)
    counts: list[int] = []

    async def read() -> None:
        cursor = 0
        async with publisher.follow(0) as pages:
            async for page in pages:
                cursor = publisher.check(cursor, page)
        counts.append(cursor)

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(read)
            await quiet()
            for _ in range(50):
                with monkeypatch.context() as patch:
                    await publisher.say(4)
                    patch.setattr(ShapeFold, "project", counting)
                    for _ in range(10):
                        await anyio.lowlevel.checkpoint()
            publisher.tail.end()
    assert counts == [200] * 100
    assert folded == list(range(1, 201))


@SHAPES
@AGENTS
async def test_a_reader_that_stalls_goes_on_where_it_was(shape: Shape, versions: tuple[int, ...]) -> None:
    """Alone it retains the shared fold; next to a fast reader it falls out of the ring and returns to it."""
    for others in (0, 1):
        publisher = await publishing(shape, versions)
        slow = fast = 0
        with anyio.fail_after(WAIT_S):
            async with publisher.follow(0) as stalling, publisher.follow(0) as running:
                for _ in range(6):
                    await publisher.say(70)
                    while others and fast < publisher.tail.head:
                        fast = publisher.check(fast, await anext(running))
                    slow = publisher.check(slow, await anext(stalling))
                while slow < publisher.tail.head:
                    slow = publisher.check(slow, await anext(stalling))


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("shape", [Shape.V1, Shape.AGENT])
async def test_a_reader_in_the_present_needs_no_log_where_nothing_is_translated(shape: Shape) -> None:
    publisher = await publishing(shape, (1,))
    await publisher.say(400)
    assert isinstance(publisher.log, FaultyLog)
    publisher.ring = publisher.new_ring()
    with anyio.fail_after(WAIT_S):
        for after in (publisher.tail.head, publisher.tail.head - 7, publisher.tail.first - 1):
            async with publisher.follow(after) as pages:
                await publisher.say(3)
                publisher.check(after, await anext(pages))
    assert publisher.log.calls["read"] == 0


@SHAPES
async def test_what_was_passed_over_once_is_not_read_again(shape: Shape) -> None:
    publisher = await publishing(shape, (1,))
    await publisher.say(1000)
    assert isinstance(publisher.log, FaultyLog)
    reads: list[int] = []
    with anyio.fail_after(WAIT_S):
        for _ in range(2):
            before = publisher.log.calls["read"]
            async with publisher.follow(800) as pages:
                publisher.check(800, await anext(pages))
            reads.append(publisher.log.calls["read"] - before)
    assert reads[0] > 40
    # A fold that translates is as long as the session, and only one is cached.
    assert reads[1] > 40 if shape is Shape.V2 else reads[1] < 15


# -- logs without their beginning ----------------------------------------------------------------------------


async def trimmed(shape: Shape, versions: tuple[int, ...]) -> Publisher:
    """Return a session whose beginning is trimmed except for its view."""
    publisher = await publishing(shape, versions)
    await publisher.say(200)
    view = View()
    page = await publisher.log.read(S1, Position(publisher.tail.epoch, 0), max_events=200, max_bytes=1 << 30)
    for event in life(versions):
        view.apply(event)
        if encode(event) == page[-1].body:
            break
    await publisher.log.save_snapshot(S1, Snapshot(VIEW, 200, VIEW_VERSION, encode_view(view)))
    await publisher.log.trim(S1, upto=100)
    return publisher


@pytest.mark.guarantee("G9")
@SHAPES
@pytest.mark.parametrize("versions", [(1,), (2,)], ids=["v1", "v2"])
async def test_of_a_trimmed_log_the_kept_view_knows_who_took_part(shape: Shape, versions: tuple[int, ...]) -> None:
    publisher = await trimmed(shape, versions)
    publisher.ring = publisher.new_ring()
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(60) as pages:
            with pytest.raises(PositionLost) as lost:
                await anext(pages)
        assert lost.value.context["why"] == "trimmed"
        publisher.tail.end()
        async with publisher.follow(100) as pages:
            frames = [frame async for page in pages for frame in page.frames]
    assert len(frames) == 100
    named = [frame.split(b'"author":')[-1][:10] for frame in frames]
    assert named == [frame.split(b'"author":')[-1][:10] for frame in publisher.frames[100:]]
    if shape is Shape.AGENT or shape.version in versions:
        assert frames == publisher.frames[100:]


@SHAPES
@AGENTS
async def test_a_ring_that_fell_behind_what_is_trimmed_goes_on(shape: Shape, versions: tuple[int, ...]) -> None:
    publisher = await publishing(shape, versions)
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(0) as pages:
            await publisher.say(10)
            await anext(pages)
        await publisher.say(300)
        await publisher.log.trim(S1, upto=200)
        cursor = publisher.tail.head
        async with publisher.follow(cursor) as pages:
            await publisher.say(5)
            page = await anext(pages)
    assert page.offset == cursor + len(page.frames)
    assert b'"id":%d,' % (cursor + 1) in page.frames[0]
