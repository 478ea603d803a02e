"""Readers without tasks: each is written every event once, in order, however fast its client accepts them.

A publisher appends the turns of an agent; readers attach at random positions, are full for a while, or disconnect.
Rings and pages are tiny, so that readers fall out of the ring and catch up from the log all the time. The seeds are
fixed.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.properties.test_projected import S1, TINY, Publisher, publishing
from tests.server.reading import Chunked

from turnwire.errors import LogUnavailable
from turnwire.log.base import Position
from turnwire.projections.envelope import Shape
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import ANYBODY, Tokens
from turnwire.server.connections import Holder
from turnwire.server.daemon.clients import Clients
from turnwire.server.daemon.daemon import Daemon, StopSignal
from turnwire.server.daemon.deadlines import Deadlines
from turnwire.server.readers import fanout
from turnwire.server.readers.event_stream import SessionStream
from turnwire.server.readers.fanout import WRITE, Fanout, fanout_of
from turnwire.server.telemetry.metrics import Metrics
from turnwire_testing.clock import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SHAPES = pytest.mark.parametrize("shape", list(Shape))
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Answer:
    """A response whose client accepts bytes when the test allows it."""

    def __init__(self, after: int) -> None:
        self.holder: Holder | None = None
        self.is_full = False
        self.after = after
        self.wire = bytearray(HEAD)
        self.is_over = False

    def write(self, chunk: bytes) -> None:
        assert not self.is_over, "nothing is written behind the end"
        assert not self.is_full, "nothing is written to a client that takes nothing"
        self.wire += chunk

    def end(self, chunk: bytes) -> None:
        self.write(chunk)
        self.is_over = True

    def drop(self) -> None:
        self.is_over = True

    def make_room(self) -> None:
        if self.is_full:
            self.is_full = False
            if self.holder is not None:
                self.holder.has_room()

    def leave(self) -> None:
        self.is_over = True
        if self.holder is not None:
            self.holder.left()

    def events(self) -> bytes:
        """Return the events after the opening."""
        return Chunked().feed(bytes(self.wire)).partition(b"id: %d\n\n" % self.after)[2]


class Place:
    """A published session, and its readers."""

    def __init__(self, publisher: Publisher, daemon: Daemon) -> None:
        self.publisher = publisher
        self.daemon = daemon
        self.answers: list[Answer] = []
        self.gone: list[Answer] = []

    async def happens(self, chance: random.Random) -> None:
        """Something."""
        answers = self.answers
        match chance.choice(("say", "say", "come", "fill", "room", "leave", "wait", "wait")):
            case "say":
                await self.publisher.say(chance.choice((1, 2, 5, 40)))
            case "come":
                answers.append(self.read(chance.randint(0, self.publisher.tail.head)))
            case "fill" if answers:
                chance.choice(answers).is_full = True
            case "room" if answers:
                chance.choice(answers).make_room()
            case "leave" if answers:
                self.gone.append(answers.pop(chance.randrange(len(answers))))
                self.gone[-1].leave()
            case _:
                for _ in range(chance.choice((1, 5, 50))):
                    await anyio.lowlevel.checkpoint()

    def read(self, after: int) -> Answer:
        publisher, answer = self.publisher, Answer(after)
        endpoint = SimpleNamespace(path="/session/{session_id}/events")
        call = cast("Any", SimpleNamespace(who=ANYBODY, client_id=None, daemon=self.daemon, endpoint=endpoint))
        readers = fanout_of(self.daemon, publisher.tail, S1, publisher.shape)
        SessionStream(call, answer, readers, Position(publisher.tail.epoch, after), replay_to=None).begin([])
        return answer

    def counted(self) -> int:
        return len(self.daemon.metrics.subscribers)


@asynccontextmanager
async def place(shape: Shape, versions: tuple[int, ...] = (1, 2)) -> AsyncGenerator[Place]:
    publisher, clock = await publishing(shape, versions), ManualClock()

    async def tail(_: object) -> object:
        return publisher.tail

    node = SimpleNamespace(log=publisher.log, limits=TINY, tail=tail, head=publisher.log.head)
    async with anyio.create_task_group() as tasks:
        daemon = SimpleNamespace(
            node=node,
            limits=TINY,
            tasks=tasks,
            tokens=Tokens(TokenFile(None, clock), clock, None),
            clients=Clients(cast("Any", node), clock),
            metrics=Metrics(clock),
            deadlines=Deadlines(TINY.heartbeat_s),
            stopping=StopSignal(),
        )
        with anyio.fail_after(WAIT_S):
            yield Place(publisher, cast("Any", daemon))


@pytest.mark.guarantee("G9", "G10", "G11")
@SHAPES
@pytest.mark.parametrize("seed", range(6))
async def test_every_reader_is_written_every_event_once_whatever_its_client_takes(shape: Shape, seed: int) -> None:
    chance = random.Random(seed)
    async with place(shape) as there:
        publisher = there.publisher
        await publisher.say(60)
        for _ in range(120):
            await there.happens(chance)
            assert there.counted() == len(there.answers)
        for each in there.answers:
            each.make_room()
        publisher.tail.end()
        while not all(each.is_over for each in there.answers):
            await anyio.lowlevel.checkpoint()
        assert there.counted() == 0
        await quiet()
        for each in there.answers:
            assert each.events() == b"".join(publisher.frames[each.after :]), each.after
        for each in there.gone:
            assert b"".join(publisher.frames[each.after :]).startswith(each.events()), each.after


async def test_many_readers_are_told_in_slices_and_each_event_is_written_to_each_once() -> None:
    async with place(Shape.V1) as there:
        answers = [there.read(0) for _ in range(350)]
        await quiet()
        slices, at_once = 0, 1000
        look = Fanout._look_at_some  # pyright: ignore[reportPrivateUsage]

        def counting(self: Fanout) -> None:
            nonlocal slices
            slices += 1
            before = sum(len(each.wire) > len(HEAD) for each in answers)
            look(self)
            assert sum(len(each.wire) > len(HEAD) for each in answers) - before <= at_once // WRITE

        for each in answers:
            each.after, each.wire = 0, bytearray(HEAD)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Fanout, "_look_at_some", counting)
            patched.setattr(fanout, "AT_ONCE", at_once)
            await there.publisher.say(3)
            while not all(len(each.wire) > len(HEAD) for each in answers):
                await anyio.lowlevel.checkpoint()
        assert slices >= 4
        assert {Chunked().feed(bytes(each.wire)) for each in answers} == {b"".join(there.publisher.frames)}
        there.publisher.tail.end()


async def test_event_published_between_two_slices_reaches_readers_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with place(Shape.V1) as there:
        answers = [there.read(0) for _ in range(100)]
        await quiet()
        monkeypatch.setattr(fanout, "AT_ONCE", 1000)
        await there.publisher.say(1)
        while not any(each.events() for each in answers):
            await anyio.lowlevel.checkpoint()
        assert not all(each.events() for each in answers)
        await there.publisher.say(1)
        while {each.events() for each in answers} != {b"".join(there.publisher.frames)}:
            await anyio.lowlevel.checkpoint()
        there.publisher.tail.end()


async def test_a_session_whose_readers_have_left_is_kept_by_nobody() -> None:
    async with place(Shape.V1) as there:
        first, second = there.read(0), there.read(0)
        await there.publisher.say(2)
        await quiet()
        assert fanout._fanouts  # pyright: ignore[reportPrivateUsage]
        first.leave()
        second.leave()
        assert not fanout._fanouts  # pyright: ignore[reportPrivateUsage]
        await there.publisher.say(2)
        assert len(there.publisher.frames) == 4


async def test_a_log_that_cannot_go_on_ends_the_reader_that_needs_it_and_no_other() -> None:
    async with place(Shape.V1) as there:
        await there.publisher.say(200)

        async def read(*_: object, **__: object) -> None:
            raise LogUnavailable("the disk is gone")

        live = there.read(200)
        cast("Any", there.publisher.log).read = read
        behind = there.read(0)
        while not behind.is_over:
            await anyio.lowlevel.checkpoint()
        await quiet()
        assert not live.is_over
        assert there.counted() == 1
        there.publisher.tail.end()


@pytest.mark.parametrize("missed", [3, 300])
async def test_a_reader_that_has_room_again_is_told_what_it_missed_although_nothing_new_comes(missed: int) -> None:
    async with place(Shape.V1) as there:
        answer = there.read(0)
        await quiet()
        answer.is_full = True
        await there.publisher.say(missed)
        await quiet()
        assert answer.events() == b""
        answer.make_room()
        while answer.events() != b"".join(there.publisher.frames):
            await anyio.lowlevel.checkpoint()
        there.publisher.tail.end()


async def test_a_reader_whose_next_events_are_trimmed_is_notified_once_and_continues_at_the_oldest_event() -> None:
    async with place(Shape.V1, (1,)) as there:
        publisher = there.publisher
        answer = there.read(0)
        answer.is_full = True
        await publisher.say(200)
        await publisher.log.trim(S1, upto=150)
        await quiet()
        answer.make_room()
        while b"\nid: 200\n" not in answer.events():
            await anyio.lowlevel.checkpoint()
        notice, _, rest = answer.events().partition(b"\n\n")
        assert notice.startswith(b"event: state_resync_required\n")
        assert b'"earliestAvailableId":151' in notice
        assert re.findall(rb"^id: (\d+)$", rest, re.MULTILINE) == [b"%d" % each for each in range(151, 201)]
        publisher.tail.end()


async def test_a_reader_of_a_stored_event_that_is_not_published_yet_does_not_get_it_again() -> None:
    async with place(Shape.V1) as there:
        publisher = there.publisher
        await publisher.say(3)
        published, publisher.tail.publish = publisher.tail.publish, lambda _: None  # type: ignore[method-assign]
        await publisher.say(1)
        answer = there.read(4)
        await quiet()
        page = await publisher.log.read(S1, Position(publisher.tail.epoch, 3), max_events=1, max_bytes=1 << 20)
        publisher.tail.publish = published  # type: ignore[method-assign]
        publisher.tail.publish([each.body for each in page])
        await quiet()
        assert answer.events() == b""
        await publisher.say(1)
        while answer.events() != publisher.frames[4]:
            await anyio.lowlevel.checkpoint()
        publisher.tail.end()
