"""The initialization between an ACP client and turnwire, and invalid messages."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.acp import DIALECTS, V1, V2, Client, acp_daemon, connected

from turnwire.hosting.source import ProcessSource
from turnwire_testing import AgentOptions

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("method", ["session/new", "session/prompt", "session/list", "_x/y"])
async def test_requests_before_initialize_are_refused(method: str) -> None:
    async with acp_daemon() as place:
        client = Client(place)
        client.read()
        assert (await client.fails(method, cwd=place.cwd, mcpServers=[]))["code"] == -32600
        assert not client.connection.is_initialized


async def test_an_operator_may_hold_clients_to_v1() -> None:
    async with acp_daemon(protocol=1) as place, connected(place, V2) as client:
        assert client.version == 1


async def test_a_client_is_answered_although_no_agent_can_be_had() -> None:
    source = ProcessSource(["/nonexistent/agent"])
    async with acp_daemon(source=source) as place, connected(place) as client:
        assert client.version == 1
        error = await client.fails("session/new", cwd=place.cwd, mcpServers=[])
        assert error["data"]["code"] in {"agent_launch_failed", "agent_unavailable"}


async def test_the_last_initialize_counts_until_something_else_was_asked() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        assert (await client.call("initialize", **V2))["protocolVersion"] == 2
        await client.call("session/list")
        assert (await client.fails("initialize", **V1))["code"] == -32600


async def test_what_is_no_message_is_answered_once(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, int, Any]] = [
        (b"{nonsense", -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"session/list"}]', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"session/list"}', -32600, None),
    ]
    async with acp_daemon() as place, connected(place) as client:
        for line, code, named in cases:
            with subtests.test(repr((line, code, named))):
                before = len(client.frames)
                await client.send(line)
                answer = await client.until(lambda each: "error" in each, before)
                assert (answer["id"], answer["error"]["code"]) == (named, code)
                await client.call("session/list")


async def test_answers_to_nothing_and_unknown_notifications_are_ignored() -> None:
    async with acp_daemon() as place, connected(place) as client:
        before = len(client.frames)
        await client.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        await client.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}})
        await client.notify("no/such", sessionId="s")
        await client.call("session/list")
        assert len(client.frames) == before + 1


async def test_a_method_that_the_version_does_not_have_is_not_found(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["no/such", "session/load", "session/set_mode", "authenticate"]
    async with acp_daemon() as place, connected(place, V2) as client:
        for method in cases:
            with subtests.test(repr(method)):
                assert (await client.fails(method))["code"] == -32601


async def test_ids_come_back_with_their_value_and_type() -> None:
    async with acp_daemon() as place, connected(place) as client:
        for request_id in (2**53, "2", 2, -5, ""):
            await client.ask("session/list", request_id=request_id)
            answer = await client.until(
                lambda each, named=request_id: each.get("id") == named and type(each["id"]) is type(named), 1
            )
            assert "result" in answer


async def test_params_that_are_not_as_documented_are_refused_without_their_values() -> None:
    async with acp_daemon() as place, connected(place) as client:
        error = await client.fails("session/prompt", sessionId=["secret"], prompt=[])
        assert error["code"] == -32602
        assert "secret" not in str(error)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_agent_that_wants_a_login_is_logged_in_at(dialect: str) -> None:
    options = AgentOptions(auth_required=True)
    async with acp_daemon("v1", options) as place, connected(place, DIALECTS[dialect]) as client:
        error = await client.fails("session/new", cwd=place.cwd, mcpServers=[])
        assert error["code"] == -32000
        assert error["data"]["authMethods"]
        login = "auth/login" if client.version == 2 else "authenticate"
        assert (await client.fails(login, methodId="nonsense"))["code"] < 0
        assert await client.call(login, methodId="token") == {}
        assert await client.new()
