"""What an agent can make a connection keep: bounded, whatever names it thinks of."""

from __future__ import annotations

import pytest
from tests.unit.runtime.test_connection import NEW, Room, connected, opened

from turnwire.limits import Limits
from turnwire.runtime.connection import KEPT_STRAYS
from turnwire.testing.patience import quiet

pytestmark = pytest.mark.anyio


async def test_updates_of_many_made_up_sessions_are_held_within_one_bound() -> None:
    async with connected(limits=Limits(agent_inputs=16)) as (connection, agent):
        room = Room()
        connection.open_session(room, "session/new", NEW, room.opened, None)
        agent.update("mine")
        for number in range(40):
            agent.update("boo", f"made-up-{number}")
        await agent.answer("session/new", {"sessionId": "a1"})
        await quiet()
        assert room.heard == ["opened a1", "mine"]
        assert connection.strays == {"unknown_session": 25, "held": 15}


async def test_the_room_of_what_was_held_is_free_again_once_its_session_is_open() -> None:
    async with connected(limits=Limits(agent_inputs=16)) as (connection, agent):
        for session_id in ("a1", "a2"):
            room = Room()
            connection.open_session(room, "session/new", NEW, room.opened, None)
            for number in range(16):
                agent.update(str(number), session_id)
            await agent.answer("session/new", {"sessionId": session_id})
            await quiet()
            assert len(room.heard) == 17
        assert not connection.strays


async def test_notifications_of_many_made_up_names_are_counted_under_few() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        for number in range(3 * KEPT_STRAYS):
            agent.send({"method": f"_made/up/{number}", "params": {}})
        agent.send({"method": "_made/up/0", "params": {}})
        agent.send({"method": "_long" * 1000, "params": {}})
        await quiet()
        assert len(connection.strays) == KEPT_STRAYS + 1
        assert connection.strays["_made/up/0"] == 2
        assert connection.strays.total() == 3 * KEPT_STRAYS + 2
        assert max(map(len, connection.strays)) <= KEPT_STRAYS
        assert room.heard == ["opened a1"]


async def test_a_dismissed_connection_tells_its_sessions_at_once_and_only_once() -> None:
    async with connected() as (connection, agent):
        room = await opened(connection, agent)
        connection.dismiss("agent_recycled")
        assert room.heard == ["opened a1", "gone agent_recycled"]
        assert (connection.is_alive, connection.is_dismissed) == (False, True)
        await connection.aclose()
        await quiet()
        assert room.heard == ["opened a1", "gone agent_recycled"]
