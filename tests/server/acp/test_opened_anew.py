"""A session that is reopened on its connection: open requests are repeated, completed ones are answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.acp.http_client import YES, Client, Heard, connect, is_answer, load, request
from tests.server.acp.socket_client import Socket, open_socket, started
from tests.server.reading import ended
from tests.support.daemons import Running, running_daemon
from websockets.exceptions import InvalidStatus

from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.session import events as ev
from turnwire.session.codec import decode

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G9")]

VERSIONS = pytest.mark.parametrize("version", [1, 2])
IDS: dict[str, Any] = {"_meta": {"turnwire": {"eventIds": True}}}
MARKED: dict[str, Any] = {"_meta": {"turnwire": {"eventIds": True}}, "session": {"turnComplete": {}}}
WAYS: dict[str, dict[str, Any]] = {
    "pending": {"historyPolicy": "pending_only"},
    "full": {"historyPolicy": "full"},
    "cursor": {"_meta": {"turnwire": {"after": 1}}},
    "resume": {},
}


def opening(way: str, session_id: str, cwd: Path, request_id: str) -> dict[str, Any]:
    """Return a request that opens the session in one of the ways."""
    if way == "resume":
        return load(session_id, cwd, request_id) | {"method": "session/resume"}
    return request("session/attach", {"sessionId": session_id, **WAYS[way]}, request_id)


def is_question(heard: Heard) -> bool:
    return heard.method == "session/request_permission"


def is_over(heard: Heard) -> bool:
    """Return True for the end of a turn, in either version."""
    if heard.method == "session/update":
        return "stopReason" in heard.update
    return "stopReason" in heard.message.get("result", {})


async def settled(running: Running, session_id: str) -> None:
    await ended(running, SessionId(session_id))


async def everything(socket: Socket) -> list[Heard]:
    """Return all messages sent before this: a request without a session is answered after them."""
    await socket.send(request("session/list", {}, "all"))
    return (await socket.until(lambda each: is_answer(each, "all")))[:-1]


# -- questions -----------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("way", WAYS)
async def test_an_open_question_is_asked_again_under_its_id_when_its_session_is_opened_anew(
    tmp_path: Path, version: int, way: str
) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running:
        async with started(running, version) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, "ask t yes,no")
            asked = (await socket.until(is_question))[-1].message
            socket.cut()
        async with open_socket(running, f"?connection={socket.connection_id}") as socket:
            await socket.send(opening(way, session_id, socket.cwd, "o"))
            heard = await socket.until(is_question)
            assert heard[-1].message["id"] == asked["id"]
            assert any(is_answer(each, "o") for each in heard), "G6: behind the answer"
            assert not [each for each in await everything(socket) if is_question(each)], "once"
            await socket.send({"jsonrpc": "2.0", "id": asked["id"], "result": YES})
            heard = await socket.until(is_over)
            assert "selected yes" in [each.text for each in heard]


@VERSIONS
async def test_a_question_that_somebody_else_answered_meanwhile_is_taken_back(tmp_path: Path, version: int) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, started(running) as other:
        async with started(running, version) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, "ask t yes,no\nask u yes,no")
            asked = (await socket.until(is_question))[-1].message
            socket.cut()
        await other.send(load(session_id, other.cwd, "l"))
        theirs = (await other.until(is_question))[-1].message
        await other.send({"jsonrpc": "2.0", "id": theirs["id"], "result": YES})
        await other.until(is_question)
        async with open_socket(running, f"?connection={socket.connection_id}&attaches=true") as socket:
            await socket.send(opening("cursor", session_id, socket.cwd, "o"))
            heard = await socket.until(is_question)
            assert heard[-1].message["id"] != asked["id"], "the second one"
            gone = [each.message["params"] for each in heard if each.method == "$/cancel_request"]
            assert gone == [{"requestId": asked["id"]}]


@VERSIONS
async def test_a_stream_that_is_opened_behind_a_question_does_not_ask_it_again(
    tmp_path: Path, version: int
) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, running.client() as http:
        client = await connect(running, http, version)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as stream:
                await client.prompt(session_id, "ask t yes,no")
                asked = await stream.ask()
                async with client.stream(session_id) as second:
                    await client.post({"jsonrpc": "2.0", "id": asked["id"], "result": YES}, session_id)
                    heard = await second.until(lambda each: each.text == "selected yes")
                    assert not any(map(is_question, heard))


# -- prompts -------------------------------------------------------------------------------------------------


async def ended_unheard(client: Client, gate: anyio.Path) -> tuple[str, list[int]]:
    """Return a session with two prompts, of which the second is queued, and that both end while no client reads."""
    async with client.stream() as connection:
        session_id = await client.new(connection)
        async with client.stream(session_id) as stream:
            first = await client.prompt(session_id, f"say 1 begun\ngate {gate}")
            await stream.until(lambda each: each.text == "begun")
            second = await client.prompt(session_id, "say 1 more")
    await gate.touch()
    await settled(client.running, session_id)
    return session_id, [first, second]


@VERSIONS
@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_that_ended_while_nobody_read_is_answered_when_its_session_is_opened_anew(
    tmp_path: Path, version: int, way: str
) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, running.client() as http:
        client = await connect(running, http, version)
        session_id, prompts = await ended_unheard(client, anyio.Path(tmp_path / "gate"))
        # v2 answers a prompt when its message is in the conversation: the first one was before the stream was lost.
        owed = prompts if version == 1 else prompts[1:]
        await client.post(opening(way, session_id, client.cwd, "o"))
        async with client.stream(session_id) as stream, client.stream() as connection:
            await connection.answer("o")
            asked = await client.prompt(session_id, "say 1 last")
            heard = await stream.until(lambda each: is_answer(each, asked))
        answers = [each.message["id"] for each in heard if "method" not in each.message]
        assert answers == [*owed, asked], "each once"


@VERSIONS
async def test_a_prompt_that_runs_when_its_session_is_opened_anew_is_answered_once_at_its_end(
    tmp_path: Path, version: int
) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, started(running, version) as socket:
        session_id = await socket.new()
        first = await socket.prompt(session_id, f"say 1 begun\ngate {gate}\nsay 1 ended")
        heard = await socket.until(lambda each: each.text == "begun")
        second = await socket.prompt(session_id, "say 1 more")
        for way in WAYS:
            await socket.send(opening(way, session_id, socket.cwd, way))
            heard += await socket.until(lambda each, way=way: is_answer(each, way))
        gate.touch()
        heard += await socket.until(lambda each: each.text == "more")
        heard += await socket.until(is_over)
        heard += await everything(socket)
        for request_id in (first, second):
            assert [is_answer(each, request_id) for each in heard].count(True) == 1


@VERSIONS
@pytest.mark.parametrize("way", [*WAYS, None])
async def test_a_prompt_of_a_session_that_its_client_left_is_answered_once(
    tmp_path: Path, version: int, way: str | None
) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, started(running, version) as socket:
        session_id = await socket.new()
        await socket.prompt(session_id, f"say 1 begun\ngate {gate}")
        await socket.until(lambda each: each.text == "begun")
        waiting = await socket.prompt(session_id, "say 1 more")
        await socket.call("session/detach", {"sessionId": session_id})
        heard: list[Heard] = []
        if way is not None:
            await socket.send(opening(way, session_id, socket.cwd, "o"))
            heard += await socket.until(lambda each: is_answer(each, "o"))
        gate.touch()
        heard += await socket.until(lambda each: is_answer(each, waiting))
        await settled(running, session_id)
        heard += await everything(socket)
        assert [is_answer(each, waiting) for each in heard].count(True) == 1
        if way is None:
            await socket.send(opening("pending", session_id, socket.cwd, "o"))
            await socket.answer("o")
        # The id is free again.
        await socket.send(request("session/prompt", _words(session_id, "say 1 again"), waiting))
        assert "result" in await socket.answer(waiting)


def _words(session_id: str, text: str) -> dict[str, Any]:
    return {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}


async def test_a_prompt_of_a_session_that_its_client_left_is_answered_on_the_connections_stream(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, running.client() as http:
        client = await connect(running, http)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as stream:
                asked = await client.prompt(session_id, f"say 1 begun\ngate {gate}")
                await stream.until(lambda each: each.text == "begun")
            await client.call(connection, "session/detach", {"sessionId": session_id})
            gate.touch()
            assert (await connection.answer(asked))["result"]["stopReason"] == "end_turn"


# -- numbers -------------------------------------------------------------------------------------------------


def at_rest(version: int) -> Callable[[Heard], bool]:
    """Return True once a v1 or a v2 client has received all of its turn."""

    def found(heard: Heard) -> bool:
        return is_over(heard) and (heard.method is None) == (version == 1)

    return found


@pytest.mark.parametrize(("version", "able"), [(1, IDS), (1, MARKED), (2, IDS)])
@pytest.mark.parametrize("is_same", [True, False])
async def test_every_event_that_has_a_frame_shows_its_number_and_behind_the_last_nothing_comes(
    tmp_path: Path, version: int, able: dict[str, Any], is_same: bool
) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running:
        async with started(running, version, **able) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, "say 2 hi\ntool t1 read look\nask t yes,no")
            heard = await socket.until(is_question)
            await socket.send({"jsonrpc": "2.0", "id": heard[-1].message["id"], "result": YES})
            heard += await socket.until(at_rest(version))
            socket.cut()
        seen = [each.id for each in heard if each.id is not None]
        assert seen == sorted(set(seen))
        assert seen[-1] == (await running.daemon.node.head(SessionId(session_id))).head, "also the end"
        assert await shown_kinds(running, session_id, set(seen)) == SHOWN[version]
        query = f"?connection={socket.connection_id}&attaches=true" if is_same else ""
        async with open_socket(running, query) as socket:
            if not is_same:
                await socket.start(version, **able)
            params = {"sessionId": session_id, "_meta": {"turnwire": {"after": seen[-1]}}}
            await socket.send(request("session/attach", params, "a"))
            more = await socket.until(lambda each: is_answer(each, "a"))
            more += await everything(socket)
        # A client that joins a session on a new connection receives its state.
        states = [each for each in more if each.method == "session/update" and "state" in each.update]
        assert len(states) == (1 if version == 2 and not is_same else 0)
        assert [each for each in more if each not in states and not is_answer(each, "a")] == []


SHOWN: dict[int, set[type[ev.AnyEvent]]] = {
    1: {ev.SessionUpdated, ev.PermissionRequested, ev.TurnCompleted},
    2: {
        *(ev.SessionUpdated, ev.PermissionRequested, ev.TurnCompleted),
        *(ev.UserMessage, ev.TurnStarted, ev.TurnBlocked, ev.TurnUnblocked),
    },
}


async def shown_kinds(running: Running, session_id: str, seen: set[int]) -> set[type[ev.AnyEvent]]:
    """Return the kinds of events that came with their numbers; none of these kinds came without."""
    head = await running.daemon.log.head(SessionId(session_id))
    start = Position(head.epoch, 0)
    stored = await running.daemon.log.read(SessionId(session_id), start, max_events=1000, max_bytes=1 << 20)
    kinds = {number: type(decode(each.body)) for number, each in enumerate(stored, 1)}
    shown = {kinds[number] for number in seen}
    assert {number for number, kind in kinds.items() if kind in shown} == seen
    return shown


# -- a socket that says from where ---------------------------------------------------------------------------


@VERSIONS
async def test_a_socket_that_attaches_hears_what_the_last_one_lost_and_nothing_twice(
    tmp_path: Path, version: int
) -> None:
    gate, more = tmp_path / "gate", tmp_path / "more"
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running:
        async with started(running, version, **IDS) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, f"say 1 one\ngate {gate}\nflood 300")
            seen = (await socket.until(lambda each: each.text == "one"))[-1].id
            waiting = await socket.prompt(session_id, f"gate {more}\nsay 1 last")
            gate.touch()
            # Frames that arrive here count as lost: the client resumes from its cursor as if they had not come.
            await socket.until(lambda each: each.text.startswith("299"))
            socket.cut()
        async with open_socket(running, f"?connection={socket.connection_id}&attaches=true") as socket:
            more.touch()
            await settled(running, session_id)
            assert await everything(socket) == [], "nothing before it says from where"
            await socket.send(request("session/attach", _after(session_id, seen), "a"))
            heard = await socket.until(lambda each: is_answer(each, "a"))
            heard += await everything(socket)
        assert [each.text.split()[0] for each in heard if each.text] == [*map(str, range(300)), "last"]
        if version == 1:
            assert [is_answer(each, waiting) for each in heard].count(True) == 1
        own = [each for each in heard if each.method == "session/update" and "user_message" in str(each.update)]
        assert len(own) == (1 if version == 2 else 0), "its own prompts are told as they are live"


async def test_what_waited_for_a_socket_that_took_nothing_does_not_come_twice(tmp_path: Path) -> None:
    count = 8_000
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running, started(running, **IDS) as stalled:
        session_id = await stalled.new()
        await stalled.prompt(session_id, f"say 1 begun\nflood {count} 1000")
        seen = (await stalled.until(lambda each: each.text == "begun"))[-1].id
        stalled.wire.transport.pause_reading()
        await settled(running, session_id)
        async with open_socket(running, f"?connection={stalled.connection_id}&attaches=true") as socket:
            await socket.send(request("session/attach", _after(session_id, seen), "a"))
            heard = await socket.until(lambda each: is_answer(each, "a"))
            heard += await everything(socket)
        stalled.wire.transport.abort()
        assert [int(each.text.split()[0]) for each in heard if each.text] == list(range(count))


def _after(session_id: str, seen: int | None) -> dict[str, Any]:
    return {"sessionId": session_id, "historyPolicy": "pending_only", "_meta": {"turnwire": {"after": seen}}}


async def test_a_session_whose_cursor_is_refused_goes_on_where_it_stood(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running:
        async with started(running) as socket:
            session_id = await socket.new()
            asked = await socket.prompt(session_id, f"say 1 one\ngate {gate}\nsay 1 two")
            await socket.until(lambda each: each.text == "one")
            socket.cut()
        async with open_socket(running, f"?connection={socket.connection_id}&attaches=true") as socket:
            await socket.send(request("session/attach", _after(session_id, 10**6), "a"))
            refused = (await socket.answer("a"))["error"]
            assert (refused["code"], refused["data"]["code"]) == (-32002, "position_lost")
            gate.touch()
            heard = await socket.until(lambda each: is_answer(each, asked))
            assert [each.text for each in heard if each.text] == ["two"]


async def test_a_socket_goes_on_with_a_connection_whose_last_socket_did_not_attach(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", ready_timeout=0.0) as running:
        async with started(running) as socket:
            session_id = await socket.new()
            socket.cut()
        named = f"?connection={socket.connection_id}"
        async with open_socket(running, f"{named}&attaches=true") as silent:
            silent.cut()
        async with open_socket(running, named) as socket:
            assert "result" in await socket.answer(await socket.prompt(session_id, "say 1 x"))
        with pytest.raises(InvalidStatus) as caught:
            async with open_socket(running, f"{named}&attaches=perhaps"):
                pass
        assert caught.value.response.status_code == 400
