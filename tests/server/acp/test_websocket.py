"""ACP on a WebSocket: one order for everything, the same access, and a socket that may be lost without harm."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.acp.http_client import WAIT_S, is_answer, load, new, prompt
from tests.server.acp.socket_client import open_socket, started, url_of
from tests.server.reading import ended
from tests.server.seats import Seat
from tests.support.daemons import Running, running_daemon
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role
from turnwire.server.app import create_app
from turnwire.server.listener import listen
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(running: Running, limits: Limits) -> AsyncGenerator[Running]:
    """Serve the same daemon a second time, by a server with other limits."""
    ready, stop, urls = anyio.Event(), anyio.Event(), list[str]()

    def heard(url: str) -> None:
        urls.append(url)
        ready.set()

    async with anyio.create_task_group() as tasks:
        app = create_app(running.daemon)
        tasks.start_soon(partial(listen, app, host="127.0.0.1", port=0, ready=heard, stop=stop, limits=limits))
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        yield running._replace(url=urls[0])
        stop.set()


async def refused(running: Running, query: str = "", headers: dict[str, str] | None = None) -> int:
    """The status with which an upgrade is refused."""
    with pytest.raises(InvalidStatus) as caught:
        async with open_socket(running, query, headers):
            pass
    return caught.value.response.status_code


async def test_a_socket_names_its_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, open_socket(running) as one, open_socket(running) as two:
        named = one.connection_id
        assert len(named) >= 22
        assert named != two.connection_id
        await one.start()
        assert one.connection_id == named


async def test_a_binary_frame_is_ignored_and_text_after_it_is_heard(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, open_socket(running) as socket:
        await socket.wire.send(b"\x00\x01")
        await socket.wire.send(json.dumps(new(socket.cwd, 1)).encode())
        assert (await socket.start())["protocolVersion"] == 1


@pytest.mark.parametrize(
    ("text", "code"), [("{", -32700), (json.dumps([prompt("s", "x", 1)]), -32600), ("[]", -32600), ('"x"', -32600)]
)
async def test_what_is_no_message_gets_one_error_and_the_socket_stays(tmp_path: Path, text: str, code: int) -> None:
    async with running_daemon(tmp_path / "d") as running, started(running) as socket:
        await socket.wire.send(text)
        message = (await socket.next()).message
        assert (message["id"], message["error"]["code"]) == (None, code)
        assert ("batches" in message["error"]["message"]) == text.startswith("[")
        await socket.new()


async def test_all_sessions_are_on_one_socket(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, started(running) as socket:
        sessions = [await socket.new() for _ in range(3)]
        asked = {await socket.prompt(each, f"say 1 {each}"): each for each in sessions}
        answered: set[int] = set()
        texts: dict[str, str] = {}
        while answered != set(asked):
            heard = await socket.next()
            if heard.text:
                texts[heard.message["params"]["sessionId"]] = heard.text
            elif heard.method is None:
                answered.add(heard.message["id"])
        assert texts == {each: each for each in sessions}


@pytest.mark.guarantee("G8")
async def test_a_turn_goes_on_when_its_socket_is_lost_and_a_new_socket_loads_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d") as running:
        async with started(running) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, f"say 1 before\ngate {gate}\nsay 1 after")
            await socket.until(lambda each: each.text == "before")
            socket.cut()
        gate.touch()
        await ended(running, SessionId(session_id))
        async with started(running) as socket:
            await socket.send(load(session_id, socket.cwd, "l"))
            heard = await socket.until(lambda each: is_answer(each, "l"))
            assert [each.text for each in heard if each.text] == ["before", "after"]


@pytest.mark.guarantee("G9")
async def test_a_new_socket_resumes_behind_the_last_event_that_the_old_one_saw(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        ids: dict[str, Any] = {"_meta": {"turnwire": {"eventIds": True}}}
        async with started(running, **ids) as socket:
            session_id = await socket.new()
            await socket.prompt(session_id, "flood 50")
            heard = await socket.until(lambda each: each.text.startswith("20"))
            socket.cut()
        last = heard[-1].id
        assert last is not None
        await ended(running, SessionId(session_id))
        async with started(running, **ids) as socket:
            after = {"turnwire": {"after": last}}
            await socket.send(load(session_id, socket.cwd, "r", _meta=after) | {"method": "session/resume"})
            more = await socket.until(lambda each: is_answer(each, "r"))
        shown = [each.id for each in more if each.text]
        assert shown[0] == last + 1
        assert len([each for each in heard + more if each.text]) == 50


@pytest.mark.guarantee("G8")
async def test_a_socket_that_names_its_connection_goes_on_with_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "d") as running:
        async with started(running) as socket:
            connection_id, session_id = socket.connection_id, await socket.new()
            asked = await socket.prompt(session_id, f"say 1 before\ngate {gate}\nsay 1 after")
            await socket.until(lambda each: each.text == "before")
            socket.cut()
        async with open_socket(running, f"?connection={connection_id}") as socket:
            gate.touch()
            # No initialize, no load: the answer to the prompt that the lost socket sent comes here.
            heard = await socket.until(lambda each: is_answer(each, asked))
            assert heard[-1].message["result"]["stopReason"] == "end_turn"
            assert [each.text for each in heard if each.text] == ["after"]


async def test_a_newer_socket_takes_the_place_of_one_that_is_still_open(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "d") as running,
        started(running) as old,
        open_socket(running, f"?connection={old.connection_id}") as socket,
    ):
        assert await old.closed() == 4001
        await socket.new()


async def test_a_connection_ends_when_its_grace_time_is_over(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", limits=Limits(connection_grace_s=0.2)) as running:
        async with started(running) as socket:
            session_id = SessionId(await socket.new())
            socket.cut()
        async with running.client() as http:
            await Seat(running, http, session_id).until(ev.ClientDetached)
        assert await refused(running, f"?connection={socket.connection_id}") == 404


@pytest.mark.guarantee("G13")
async def test_a_connection_of_another_credential_is_not_there(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, started(running) as socket:
        _, secret = await running.daemon.tokens.issue("bob", Role.CONTROLLER)
        bob = {"Authorization": f"Bearer {secret}"}
        assert await refused(running, f"?connection={socket.connection_id}", bob) == 404
        assert await refused(running, "?connection=nobody") == 404
        await socket.new()


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_access_is_the_same_for_an_upgrade(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with running_daemon(tmp_path / "d") as running:
        given = headers if status == 401 else running.headers | headers
        assert await refused(running, headers=given) == status


@pytest.mark.guarantee("G13")
async def test_our_own_page_may_open_a_socket(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "d") as running,
        open_socket(running, headers=running.headers | {"Origin": running.url}) as socket,
    ):
        await socket.start()


@pytest.mark.guarantee("G13")
async def test_what_is_in_the_address_of_a_socket_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_daemon(tmp_path / "d") as running:
        async with open_socket(running, "?note=hush-hush") as socket:
            await socket.start()
        assert await refused(running, "?token=hush-hush") == 400
    assert "hush-hush" not in caplog.text


async def test_a_refused_upgrade_is_no_error_of_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_daemon(tmp_path / "d") as running:
        assert await refused(running, headers={}) == 401
        assert await refused(running, headers=running.headers | {"Origin": "null"}) == 403
        assert await refused(running, "?connection=nobody") == 404
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_sockets_are_closed_when_the_daemon_stops(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, started(running) as socket:
        await socket.prompt(await socket.new(), "never")
        running.daemon.stopping.set()
        with anyio.fail_after(WAIT_S):
            assert await socket.closed() == 1001
        assert await refused(running) in (503, 403)


async def test_too_many_connections_are_refused_at_the_upgrade(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", limits=Limits(acp_connections=1)) as running, started(running):
        assert await refused(running) == 503


async def test_an_upgrade_elsewhere_is_404(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url_of(running) + "/else", additional_headers=running.headers, proxy=None):
                pass
        assert caught.value.response.status_code == 404


async def test_a_client_that_answers_no_ping_is_let_go(tmp_path: Path) -> None:
    class Deaf(ClientConnection):
        """A client that reads pings and sends nothing."""

        def data_received(self, data: bytes) -> None:
            if self.protocol.state.name != "OPEN" or data[0] != 0x89:
                super().data_received(data)

    async with (
        running_daemon(tmp_path / "d") as running,
        served(running, Limits(heartbeat_s=0.1)) as quick,
        open_socket(quick) as alive,
        open_socket(quick, create_connection=Deaf) as deaf,
    ):
        await alive.start()
        with anyio.fail_after(WAIT_S):
            assert await deaf.closed() in (1011, 1006)
        await alive.new()


@pytest.mark.guarantee("G10")
async def test_a_socket_that_nobody_reads_is_let_go_and_delays_nobody(tmp_path: Path) -> None:
    limits = Limits(write_timeout_s=0.5)
    async with running_daemon(tmp_path / "d", limits=limits) as running, started(running) as socket:
        session_id = await socket.new()
        async with started(running) as lazy:
            await lazy.call("session/load", load(session_id, lazy.cwd, 0)["params"])
            lazy.wire.transport.pause_reading()
            asked = await socket.prompt(session_id, "flood 20000 1000")
            heard = await socket.until(lambda each: is_answer(each, asked))
            assert len([each for each in heard if each.text]) == 20_000
            with anyio.fail_after(WAIT_S):
                while b"turnwire_subscribers_stalled_total 1.0" not in running.daemon.metrics.render():
                    await anyio.lowlevel.checkpoint()
            lazy.wire.transport.resume_reading()
            with anyio.fail_after(WAIT_S), suppress(ConnectionClosed):
                while True:
                    await lazy.wire.recv()
