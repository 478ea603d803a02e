"""A message of ACP is a request like any other: audited, counted, and with a limit of connections per
credential.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.patience import SOON_S
from tests.security.intruding import attacked, bearer, issue
from tests.server.acp import http_client
from tests.server.acp.http_client import Heard, initialize, notification, request
from tests.server.acp.socket_client import open_socket
from tests.support.daemons import Running
from websockets.exceptions import InvalidStatus

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

CARRIERS = pytest.mark.parametrize("carrier", ["socket", "http"])
Until = Callable[[Callable[[Heard], bool]], Awaitable[list[Heard]]]


class Talker:
    """A client with one session, over any transport."""

    def __init__(self, session_id: str, send: Callable[[Any], Awaitable[Any]], until: Until) -> None:
        self.session_id = session_id
        self.send = send
        self.until = until


@asynccontextmanager
async def talker(daemon: Running, carrier: str, secret: str) -> AsyncGenerator[Talker]:
    if carrier == "socket":
        async with open_socket(daemon, headers=bearer(secret)) as socket:
            await socket.start()
            yield Talker(await socket.new(), socket.send, socket.until)
        return
    async with daemon.client(headers=bearer(secret)) as http:
        client = await http_client.connect(daemon, http)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as session:
                yield Talker(session_id, client.post, session.until)


@CARRIERS
async def test_each_change_over_acp_is_audited(
    tmp_path: Path, carrier: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwire.audit")
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.CONTROLLER)
        async with talker(daemon, carrier, secret) as client:
            session = {"sessionId": client.session_id}
            blocks = [{"type": "text", "text": "ask t1 yes,no\nnever"}]
            await client.send(request("session/prompt", session | {"prompt": blocks}, "p"))
            asked = (await client.until(lambda each: each.method == "session/request_permission"))[-1].message
            chosen = {"outcome": {"outcome": "selected", "optionId": asked["params"]["options"][0]["optionId"]}}
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": chosen})
            await client.send(notification("session/cancel", session))
            await client.until(lambda each: each.message.get("id") == "p")
            await client.send(request("session/delete", session, "d"))
            await client.send(request("session/list", {}, "l"))
            await client.send(request("session/set_mode", session | {"modeId": "none such"}, "m"))
            with anyio.fail_after(SOON_S):
                while not any(vars(each).get("method") == "session/set_mode" for each in caplog.records):
                    await anyio.lowlevel.checkpoint()
            session_id = client.session_id
    told = [vars(each) for each in caplog.records if vars(each).get("token_id") == token_id]
    messages = [each for each in told if each["route"] == "/acp" and "/" in each["method"]]
    assert {each["who"] for each in messages} == {"intruder"}
    assert {each["address"] for each in messages} == {"127.0.0.1"}
    assert sorted((each["method"], each["session_id"], each["status"]) for each in messages) == [
        ("session/cancel", session_id, 200),
        ("session/delete", session_id, 403),
        ("session/new", None, 200),
        ("session/prompt", session_id, 200),
        ("session/request_permission", session_id, 200),
        ("session/set_mode", session_id, 400),
    ]


async def test_messages_on_a_socket_count_as_requests(tmp_path: Path) -> None:
    rate = 20
    async with attacked(tmp_path, limits=Limits(request_rate=rate)) as daemon:
        _, secret = await issue(daemon, Role.CONTROLLER)
        async with open_socket(daemon, headers=bearer(secret)) as socket:
            await socket.start()
            began = anyio.current_time()
            for number in range(2 * rate):
                await socket.send(request("session/list", {}, number))
            # The rate is that of the credential, for any kind of message.
            async with daemon.client(headers=bearer(secret)) as client:
                assert 429 in [(await client.get("/capabilities")).status_code for _ in range(5)]
            # No message is lost; the second half had to wait.
            await socket.answer(2 * rate - 1)
            assert anyio.current_time() - began > 0.8
        async with daemon.client() as owner:
            assert (await owner.get("/capabilities")).status_code == 200


async def test_one_credential_cannot_use_up_all_connections(tmp_path: Path) -> None:
    limits = Limits(acp_connections=4, credential_acp_connections=2)
    async with attacked(tmp_path, limits=limits) as daemon:
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as guest, daemon.client() as owner:
            opened = [await guest.post("/acp", json=initialize()) for _ in range(3)]
            assert [each.status_code for each in opened] == [200, 200, 503]
            assert opened[-1].json()["code"] == "connection_limit_exceeded"
            assert (await owner.post("/acp", json=initialize())).status_code == 200
            # A place is free again when one of them ends.
            named = {"Acp-Connection-Id": opened[0].headers["acp-connection-id"]}
            assert (await guest.delete("/acp", headers=named)).status_code == 202
            with anyio.fail_after(SOON_S):
                while (await guest.post("/acp", json=initialize())).status_code != 200:
                    pass


async def test_sockets_that_are_opened_at_once_are_counted_too(tmp_path: Path) -> None:
    limits = Limits(credential_acp_connections=2)
    async with attacked(tmp_path, limits=limits) as daemon, AsyncExitStack() as stack:
        _, secret = await issue(daemon, Role.OBSERVER)
        statuses: list[int] = []

        async def open_one() -> None:
            try:
                await stack.enter_async_context(open_socket(daemon, headers=bearer(secret)))
                statuses.append(101)
            except InvalidStatus as refused:
                statuses.append(refused.response.status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(open_one)
        assert sorted(statuses) == [101, 101, 503, 503, 503, 503]


async def test_a_token_of_one_session_reaches_no_other_over_acp(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, open_socket(daemon) as owner:
        await owner.start()
        own, other = await owner.new(), await owner.new()
        _, secret = await issue(daemon, Role.CONTROLLER, session_id=SessionId(own))
        async with open_socket(daemon, headers=bearer(secret)) as guest:
            await guest.start()
            cwd = str(guest.cwd)
            tries: dict[str, dict[str, Any]] = {
                "session/load": {"sessionId": other, "cwd": cwd, "mcpServers": []},
                "session/prompt": {"sessionId": other, "prompt": [{"type": "text", "text": "hi"}]},
                "session/new": {"cwd": cwd, "mcpServers": []},
            }
            for method, params in tries.items():
                await guest.send(request(method, params, method))
                assert "error" in await guest.answer(method), method
            listed = await guest.call("session/list", {})
            assert [each["sessionId"] for each in listed["sessions"]] == [own]
