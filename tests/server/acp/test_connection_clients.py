"""Several clients at one session, clients that disconnect, and clients' services for agents."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.acp import DIALECTS, MARKED, V1, V2, Client, Place, acp_daemon, connected
from tests.support.driving import events_of

from turnwire.server.access.tokens import Identity, Role
from turnwire.server.acp import client_state
from turnwire.session.events import ClientDetached, TurnCompleted
from turnwire.session.inputs import Rename
from turnwire_testing import AgentOptions, Profile

pytestmark = pytest.mark.anyio

FILES: dict[str, Any] = {
    "protocolVersion": 1,
    "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True},
}
FORMS: dict[str, Any] = {"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}}}


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


async def test_all_controllers_are_asked_and_the_first_answer_wins() -> None:
    async with acp_daemon("v1plus") as place, AsyncExitStack() as stack:
        session_id, clients = await five(stack, place)
        observer = await stack.enter_async_context(connected(place, V1, Identity("eve", Role.OBSERVER)))
        await observer.open("session/resume", session_id)
        request_id = await clients[0].prompt(session_id, "ask t1 yes,no")
        asked = [await each.until(asks) for each in clients]
        await select(clients[3], asked[3], "no")
        await select(clients[1], asked[1], "yes")
        await clients[0].answer(request_id)
        assert "says selected no" in clients[0].kinds()
        for place_, client in enumerate(clients):
            if place_ not in (1, 3):
                withdrawn = await client.until(lambda each: each.get("method") == "$/cancel_request")
                assert withdrawn["params"]["requestId"] == asked[place_]["id"]
        assert not any(each.get("method") == "$/cancel_request" for each in clients[3].frames)
        await observer.until(lambda _: "says selected no" in observer.kinds())
        assert not any(map(asks, observer.frames))


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


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_that_leaves_ends_no_turn(dialect: str) -> None:
    async with acp_daemon() as place:
        async with connected(place, DIALECTS[dialect]) as first:
            session_id = await first.new()
            await first.prompt(session_id, "say 1 begun\ngate g\nsay 1 done")
            await first.update("agent_message_chunk")
        place.source.gates.open("g")
        async with connected(place, MARKED) as second:
            await second.open("session/load", session_id)
            await second.until(lambda _: "says done" in second.kinds())
            await second.update("turn_complete", stopReason="end_turn")
        events = await events_of(place.daemon.log, session_id)
        assert [each.stop_reason for each in events if isinstance(each, TurnCompleted)] == ["end_turn"]
        assert any(isinstance(each, ClientDetached) for each in events)


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


async def test_a_rename_from_elsewhere_is_heard() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await place.daemon.node.submit(session_id, Rename(at=1, title="Better"))
        assert await client.update("session_info_update", title="Better")


async def test_files_and_terminals_are_asked_of_the_client_that_offers_them() -> None:
    async with acp_daemon() as place, connected(place, V1) as plain, connected(place, FILES) as editor:
        session_id = await plain.new()
        await editor.open("session/resume", session_id)
        request_id = await plain.prompt(session_id, "read /unsaved/file")
        asked = await editor.until(lambda each: each.get("method") == "fs/read_text_file")
        assert asked["params"]["sessionId"] == session_id
        await editor.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": "unsaved"}})
        await plain.answer(request_id)
        assert any("unsaved" in each for each in plain.kinds())


async def test_a_client_that_leaves_hands_its_errand_on() -> None:
    async with acp_daemon() as place, connected(place, FILES) as second, AsyncExitStack() as stack:
        session_id = await second.new()
        first = await stack.enter_async_context(connected(place, FILES))
        await first.open("session/resume", session_id)
        request_id = await second.prompt(session_id, "read /unsaved/file")
        asked = await second.until(lambda each: each.get("method") == "fs/read_text_file")
        second.stop_reading()
        moved = await first.until(lambda each: each.get("method") == "fs/read_text_file")
        await first.send({"jsonrpc": "2.0", "id": moved["id"], "result": {"content": "from the other"}})
        second.read()
        await second.answer(request_id)
        assert any("from the other" in each for each in second.kinds())
        # The request was withdrawn, so its late answer is ignored.
        await second.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": "late"}})
        await second.call("session/list")


async def test_a_clients_error_is_the_agents_to_hear() -> None:
    async with acp_daemon() as place, connected(place, FILES) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "read /unsaved/file")
        asked = await client.until(lambda each: each.get("method") == "fs/read_text_file")
        error = {"code": -32002, "message": "no such buffer"}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        answer = await client.answer(request_id)
        assert "-32002" in str(answer) or any("no such buffer" in each for each in client.kinds())


async def test_only_a_client_that_can_show_a_form_is_sent_one() -> None:
    async with acp_daemon() as place, connected(place, V1) as plain, connected(place, FORMS) as able:
        session_id = await plain.new()
        await able.open("session/resume", session_id)
        request_id = await plain.prompt(session_id, "elicit name?")
        asked = await able.until(lambda each: each.get("method") == "elicitation/create")
        result = {"action": "accept", "content": {"value": "Ada"}}
        await able.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        await plain.answer(request_id)
        assert not any(each.get("method") == "elicitation/create" for each in plain.frames)


async def test_notifications_beside_acp_reach_every_client_under_our_name_of_the_session() -> None:
    options = AgentOptions(session_prefix="theirs")
    async with acp_daemon("v1", options) as place, connected(place, V1) as first, connected(place, V2) as second:
        session_id = await first.new()
        await second.open("session/resume", session_id)
        await first.answer(await first.prompt(session_id, 'notify _x/y {"sessionId":"theirs-1","n":[1,2]}'))
        for client in (first, second):
            heard = await client.until(lambda each: each.get("method") == "_x/y")
            assert heard["params"] == {"sessionId": session_id, "n": [1, 2]}


async def test_requests_beside_acp_go_to_the_agent_and_its_answer_comes_back() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        # The scripted agent has no such method, and that is its own answer.
        for params in ({"sessionId": session_id, "n": 1}, {"n": 1}):
            assert (await client.fails("_x/unknown", **params))["code"] == -32601
        assert (await client.fails("_x/unknown", sessionId="s_none"))["code"] == -32002
        await client.notify("_x/heard", sessionId=session_id)
        await client.notify("_x/heard", sessionId="s_none")
        assert "result" in await client.answer(await client.prompt(session_id, "say 1 x"))


async def test_a_client_that_asks_and_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_state, "HELD_FRAMES", 64)
    async with acp_daemon() as place:
        client = Client(place)
        await client.ask("initialize", **V1)
        for _ in range(70):
            await client.send(b"[]")
        assert client.connection.is_closed
