"""Following what a log keeps: nothing is skipped in silence, and nothing that a reader has is given again."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest
from tests.support.driving import WAIT_S, open_world

from turnwire.core import events as ev
from turnwire.core.codec import encode
from turnwire.core.shape import Shape
from turnwire.ids import ClientId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.log.base import Position
from turnwire.runtime.follow import Page
from turnwire.server.streams.session_stream import Lost, follow_kept
from turnwire.testing.patience import quiet

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G9")]

DETACHED = encode(ev.ClientDetached(at=1, client_id=ClientId("c")))


async def test_a_reader_whose_events_were_trimmed_while_it_stalled_is_told_and_goes_on() -> None:
    limits = Limits(page_events=16, ring_events=16)
    async with open_world(MemoryEventLog(), limits=limits) as world:
        session_id = world.session_id
        await world.prompt("say 200 word")
        await world.end()
        epoch = (await world.node.head(session_id)).epoch
        with anyio.fail_after(WAIT_S):
            async with aclosing(follow_kept(world.node, session_id, Position(epoch, 0), Shape.V1)) as pages:
                first = await anext(pages)
                assert isinstance(first, Page)
                earliest = await world.node.retain(session_id, keep_events=20)
                assert await anext(pages) == Lost("trimmed", first.offset, earliest)
                following = await anext(pages)
                assert isinstance(following, Page)
                assert following.offset - len(following.frames) == earliest - 1


async def test_a_reader_that_knows_what_is_stored_and_not_yet_shown_does_not_get_it_again() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        session_id = world.session_id
        await world.prompt("hello")
        await world.end()
        session = await world.node.session(session_id)
        head = session.tail.head
        await log.append(session_id, [DETACHED], expected=head, unsettled=False, durable=True)
        got: list[Page | Lost] = []

        async def read() -> None:
            position = Position(session.epoch, head + 1)
            async with aclosing(follow_kept(world.node, session_id, position, Shape.V1)) as pages:
                got.append(await anext(pages))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await quiet()
                session.tail.publish([DETACHED])
                await quiet()
                assert got == []
                await log.append(session_id, [DETACHED], expected=head + 1, unsettled=False, durable=True)
                session.tail.publish([DETACHED])
        (page,) = got
        assert isinstance(page, Page)
        assert (page.offset, len(page.frames)) == (head + 2, 1)
        assert page.frames[0].startswith(b"id: %d\n" % (head + 2))
