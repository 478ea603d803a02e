"""Several clients at one session, clients that disconnect, and clients' services for agents."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.acp import DIALECTS, V1, V2, Client, Place, acp_daemon, connected

from turnwire.server.acp import client_state
from turnwire_testing import Profile

pytestmark = pytest.mark.anyio


def asks(frame: dict[str, Any]) -> bool:
    return frame.get("method") == "session/request_permission"


async def select(client: Client, asked: dict[str, Any], option: str) -> None:
    outcome = {"outcome": {"outcome": "selected", "optionId": option}}
    await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": outcome})


async def five(stack: AsyncExitStack, place: Place) -> tuple[str, list[Client]]:
    """Five clients at one session, in four dialects."""
    dialects = [*DIALECTS.values(), V2]
    clients = [await stack.enter_async_context(connected(place, each)) for each in dialects]
    session_id = await clients[0].new()
    for client in clients[1:]:
        await client.open("session/resume", session_id)
        await client.notify("session/ready", sessionId=session_id)
    return session_id, clients


@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_five_clients_see_one_session_alike(profile: Profile) -> None:
    async with acp_daemon(profile) as place, AsyncExitStack() as stack:
        session_id, clients = await five(stack, place)
        request_ids = [await each.prompt(session_id, f"say 2 turn{place}") for place, each in enumerate(clients)]
        for client, request_id in zip(clients, request_ids, strict=True):
            assert "result" in await client.answer(request_id)
        for client in clients:
            await client.until(lambda _, each=client: each.kinds().count("says turn4") == 2)
            if client.version == 2:
                await client.idle(5)
        spoken = [[each for each in client.kinds() if each.startswith("says")] for client in clients]
        assert spoken[0] == [f"says turn{number}" for number in range(5) for _ in range(2)]
        assert all(each == spoken[0] for each in spoken)
        # Others' prompts are shown, the client's own is known: v2 sends all of them, v1 those of others.
        shown = [sum(each.startswith("user_message") for each in client.kinds()) for client in clients]
        assert shown == [4, 4, 5, 5, 5]
        # Each is answered once, and receives no answer of another.
        for client in clients:
            answered = [each["id"] for each in client.frames if "method" not in each]
            assert len(answered) == len(set(answered))


async def test_a_question_waits_for_a_client_that_comes_later() -> None:
    async with acp_daemon() as place:
        async with connected(place, V1) as first:
            session_id = await first.new()
            await first.prompt(session_id, "ask t1 yes,no")
            await first.until(asks)
        async with connected(place, V2) as second:
            await second.open("session/resume", session_id)
            await select(second, await second.until(asks), "yes")
            await second.idle()
            assert "says selected yes" in second.kinds()


@pytest.mark.guarantee("G9")
async def test_a_lost_socket_that_comes_back_misses_nothing_that_it_had_not_read() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "say 1 begun\ngate g\nsay 300 more")
        await client.update("agent_message_chunk")
        client.stop_reading()
        place.source.gates.open("g")
        async with connected(place, V1) as other:
            await other.open("session/load", session_id)
            await other.until(lambda _: other.kinds().count("says more") == 300)
        client.read()
        assert (await client.answer(request_id))["result"]["stopReason"] == "end_turn"
        assert client.kinds().count("says more") == 300
        assert client.kinds().count("says begun") == 1


async def test_a_client_that_asks_and_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_state, "HELD_FRAMES", 64)
    async with acp_daemon() as place:
        client = Client(place)
        await client.ask("initialize", **V1)
        for _ in range(70):
            await client.send(b"[]")
        assert client.connection.is_closed
