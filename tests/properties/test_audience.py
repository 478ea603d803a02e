"""Readers without tasks: each is written every event once, in order, whatever its client takes and when.

A publisher appends the turns of an agent; readers come at random places, are full for a while, or leave. Rings and
pages are tiny, so that readers fall behind the ring and catch up from the log all the time. The seeds are fixed.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.properties.test_follow_shaped import S1, TINY, Publisher, publishing
from tests.server.reading import Chunked

from turnwire.core.shape import Shape
from turnwire.errors import LogUnavailable
from turnwire.log.base import Position
from turnwire.server.access.identity import ANYBODY
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import Tokens
from turnwire.server.daemon.clients import Clients
from turnwire.server.daemon.daemon import Daemon, StopSignal
from turnwire.server.daemon.deadlines import Deadlines
from turnwire.server.open_answer import Holder
from turnwire.server.streams import audience
from turnwire.server.streams.audience import WRITE, Audience, Reader, audience_of
from turnwire.server.streams.session_stream import SessionStream
from turnwire.server.streams.shaped import shaped_ring
from turnwire.server.telemetry.metrics import Metrics
from turnwire.testing.clock import ManualClock
from turnwire.testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SHAPES = pytest.mark.parametrize("shape", list(Shape))
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Answer:
    """An answer whose client takes what the test lets it take."""

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
        """What came behind the opening."""
        return Chunked().feed(bytes(self.wire)).partition(b"id: %d\n\n" % self.after)[2]


class Place:
    """A session that is published, and its readers."""

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
        head = cast("Any", SimpleNamespace(session_id=S1, head=publisher.tail.head))
        stream = SessionStream(head, Position(publisher.tail.epoch, after), publisher.shape, [], replays=False)
        call = cast("Any", SimpleNamespace(who=ANYBODY, client_id=None, daemon=self.daemon))
        ring = shaped_ring(self.daemon.node, publisher.tail, S1, publisher.shape)
        Reader(call, answer, stream, audience_of(self.daemon, ring, publisher.tail)).begin()
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


@pytest.mark.requirement("G9", "G10", "G11", "R76")
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
        look = Audience._look_at_some  # pyright: ignore[reportPrivateUsage]

        def counting(self: Audience) -> None:
            nonlocal slices
            slices += 1
            before = sum(len(each.wire) > len(HEAD) for each in answers)
            look(self)
            assert sum(len(each.wire) > len(HEAD) for each in answers) - before <= at_once // WRITE

        for each in answers:
            each.after, each.wire = 0, bytearray(HEAD)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Audience, "_look_at_some", counting)
            patched.setattr(audience, "AT_ONCE", at_once)
            await there.publisher.say(3)
            while not all(len(each.wire) > len(HEAD) for each in answers):
                await anyio.lowlevel.checkpoint()
        assert slices >= 4
        assert {Chunked().feed(bytes(each.wire)) for each in answers} == {b"".join(there.publisher.frames)}
        there.publisher.tail.end()


async def test_a_session_whose_readers_have_left_is_kept_by_nobody() -> None:
    async with place(Shape.V1) as there:
        first, second = there.read(0), there.read(0)
        await there.publisher.say(2)
        await quiet()
        assert audience._audiences  # pyright: ignore[reportPrivateUsage]
        first.leave()
        second.leave()
        assert not audience._audiences  # pyright: ignore[reportPrivateUsage]
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
