"""The link over Streamable HTTP: streams, order, headers, and the handling of rejections and cuts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from tests.support.acp_endpoint import CONNECTION, Endpoint, served

from turnwire.errors import LinkBroken
from turnwire.hosting.streamable import StreamableLink
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

LIMITS = Limits(stop_eof_s=0.5, replay_quiet_s=0.2, reconnect_s=2)


class Client:
    """The link with functions for a test's sends and receives."""

    def __init__(self, link: StreamableLink) -> None:
        self.link = link
        self._received: list[Any] = []

    async def send(self, **message: Any) -> None:
        await self.link.send(msgspec.json.encode({"jsonrpc": "2.0", **message}))

    async def next(self) -> Any:
        with anyio.fail_after(WAIT_S):
            while not self._received:
                self._received += [msgspec.json.decode(each) for each in await self.link.receive()]
        return self._received.pop(0)

    async def broken(self) -> str:
        """Wait until the link is broken; why it is."""
        with anyio.fail_after(WAIT_S):
            while True:
                try:
                    await self.link.receive()
                except LinkBroken as broken:
                    return str(broken)


@asynccontextmanager
async def linked(endpoint: Endpoint, *, initialized: bool = True) -> AsyncGenerator[Client]:
    async with served(endpoint.serve) as url, httpx.AsyncClient() as http, anyio.create_task_group() as tasks:
        client = Client(StreamableLink(url, http, LIMITS))
        tasks.start_soon(client.link.run)
        try:
            if initialized:
                await client.send(id=1, method="initialize", params={})
                assert (await client.next())["id"] == 1
            yield client
        finally:
            await client.link.aclose()


async def new_session(client: Client, endpoint: Endpoint, session_id: str = "s1") -> None:
    await client.send(id=2, method="session/new", params={})
    await endpoint.heard()
    endpoint.say({"id": 2, "result": {"sessionId": session_id}})
    assert (await client.next())["result"] == {"sessionId": session_id}


def update(text: str, session_id: str = "s1") -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": session_id, "update": {"text": text}}}


async def test_every_request_carries_the_names_and_cookies_it_was_given() -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        await client.send(id=3, method="session/prompt", params={"sessionId": "s1"})
        posted = await endpoint.heard()
        assert posted.headers["acp-session-id"] == "s1"
        later = [headers for _, headers in endpoint.requests[1:]]
        assert {headers["acp-connection-id"] for headers in later} == {CONNECTION}
        assert {headers["acp-protocol-version"] for headers in later} == {"1"}
        assert {headers["cookie"] for headers in later} == {"affinity=here"}
    assert endpoint.requests[-1][0] == "DELETE"
    assert endpoint.is_over


async def test_a_frame_about_a_session_waits_for_the_stream_of_the_session() -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        await client.send(id=3, method="session/prompt", params={"sessionId": "s1"})
        await endpoint.heard()
        order = [(method, headers.get("acp-session-id")) for method, headers in endpoint.requests]
        assert order.index(("GET", "s1")) < order.index(("POST", "s1"))
        endpoint.say(update("one"), "s1")
        endpoint.say({"id": 3, "result": {"stopReason": "end_turn"}}, "s1")
        assert [(await client.next()).get("id") for _ in range(2)] == [None, 3]


async def test_the_answer_to_a_load_does_not_overtake_the_history() -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await client.send(id=2, method="session/load", params={"sessionId": "old"})
        posted = await endpoint.heard()
        assert posted.headers["acp-session-id"] == "old"
        endpoint.say({"id": 2, "result": {}})
        for text in ("one", "two"):
            endpoint.say(update(text, "old"), "old")
        assert [(await client.next()).get("id") for _ in range(3)] == [None, None, 2]


async def test_a_session_that_is_known_only_once_loaded_is_loaded_and_then_followed() -> None:
    endpoint = Endpoint()
    endpoint.statuses[("GET", "old")] = [404]
    async with linked(endpoint) as client:
        await client.send(id=2, method="session/load", params={"sessionId": "old"})
        await endpoint.heard()
        endpoint.say(update("told on the connection", "old"))
        endpoint.say({"id": 2, "result": {}})
        assert [(await client.next()).get("id") for _ in range(2)] == [None, 2]
        with anyio.fail_after(WAIT_S):
            await endpoint.lanes["old"].opened.wait()
        endpoint.say(update("told on its own", "old"), "old")
        assert (await client.next())["params"]["update"] == {"text": "told on its own"}


async def test_an_answer_to_the_agent_goes_where_its_question_came_from() -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        endpoint.say({"id": "q", "method": "session/request_permission", "params": {"sessionId": "s1"}}, "s1")
        endpoint.say({"id": "e", "method": "elicitation/create", "params": {}})
        for _ in range(2):
            await client.send(id=(await client.next())["id"], result={})
        headers = {(posted := await endpoint.heard()).message["id"]: posted.headers for _ in range(2)}
        assert headers["q"]["acp-session-id"] == "s1"
        assert "acp-session-id" not in headers["e"]


async def test_taking_a_request_back_goes_where_the_request_went() -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        await client.send(id=3, method="session/prompt", params={"sessionId": "s1"})
        await client.send(method="$/cancel_request", params={"requestId": 3})
        await endpoint.heard()
        assert (await endpoint.heard()).headers["acp-session-id"] == "s1"


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("session_id", [None, "s1"])
async def test_a_stream_that_is_cut_goes_on_behind_its_last_number(session_id: str | None) -> None:
    endpoint = Endpoint()
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        endpoint.say(update("before"), session_id)
        await client.next()
        endpoint.cut(session_id)
        for text in ("after", "and again"):
            endpoint.say(update(text), session_id)
        assert [(await client.next())["params"]["update"]["text"] for _ in range(2)] == ["after", "and again"]
        assert endpoint.lanes[session_id].resumed_from[1:] == [str(1 if session_id else 2)]


@pytest.mark.parametrize("session_id", [None, "s1"])
async def test_a_stream_without_numbers_that_is_cut_breaks_the_link(session_id: str | None) -> None:
    endpoint = Endpoint(numbered=False)
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        endpoint.say(update("before"), session_id)
        await client.next()
        endpoint.cut(session_id)
        assert "was cut" in await client.broken()


async def test_a_session_that_is_closed_may_end_its_stream() -> None:
    endpoint = Endpoint(numbered=False)
    async with linked(endpoint) as client:
        await new_session(client, endpoint)
        await client.send(id=3, method="session/close", params={"sessionId": "s1"})
        await endpoint.heard()
        endpoint.cut("s1")
        endpoint.say({"id": 3, "result": {}})
        assert (await client.next())["id"] == 3
        await client.send(id=4, method="session/list", params={})
        assert (await endpoint.heard()).message["id"] == 4


@pytest.mark.parametrize("status", [400, 409, 413, 429, 500, 503])
async def test_a_request_that_is_not_accepted_fails_alone(status: int) -> None:
    endpoint = Endpoint()
    endpoint.statuses[("POST", "session/list")] = [status]
    async with linked(endpoint) as client:
        await client.send(id="l", method="session/list", params={})
        failed = await client.next()
        assert (failed["id"], failed["error"]["data"]) == ("l", {"status": status})
        await client.send(id=3, method="session/list", params={})
        assert (await endpoint.heard()).message["id"] == 3


@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_a_connection_that_is_gone_breaks_the_link(status: int) -> None:
    endpoint = Endpoint()
    endpoint.statuses[("POST", "session/list")] = [status]
    async with linked(endpoint) as client:
        await client.send(id=2, method="session/list", params={})
        assert str(status) in await client.broken()


async def test_a_notification_that_is_not_accepted_breaks_the_link() -> None:
    endpoint = Endpoint()
    endpoint.statuses[("POST", "session/cancel")] = [500]
    async with linked(endpoint) as client:
        await client.send(method="session/cancel", params={"sessionId": "s1"})
        assert "500" in await client.broken()


async def test_a_session_that_somebody_else_reads_fails_alone() -> None:
    endpoint = Endpoint()
    endpoint.statuses[("GET", "s1")] = [409]
    async with linked(endpoint) as client:
        await client.send(id=2, method="session/prompt", params={"sessionId": "s1"})
        assert (await client.next())["error"]["data"] == {"status": 409}
        await client.send(id=3, method="session/prompt", params={"sessionId": "s1"})
        assert (await endpoint.heard()).message["id"] == 3


async def test_a_refused_version_can_be_asked_again_on_a_new_connection() -> None:
    endpoint = Endpoint()
    refusal = {"code": -32022, "message": "version 1 only"}
    answers = [(400, {"id": 1, "error": refusal}), (200, {"id": 2, "result": {"protocolVersion": 1}})]
    endpoint.initialize = lambda _asked: answers.pop(0)
    async with linked(endpoint, initialized=False) as client:
        await client.send(id=1, method="initialize", params={})
        assert (await client.next())["error"] == refusal
        await client.send(id=2, method="initialize", params={})
        assert (await client.next())["result"] == {"protocolVersion": 1}


async def test_what_is_no_answer_to_initialize_breaks_the_link() -> None:
    endpoint = Endpoint()
    endpoint.initialize = lambda _asked: (502, {"says": "a proxy"})
    async with linked(endpoint, initialized=False) as client:
        await client.send(id=1, method="initialize", params={})
        assert "502" in await client.broken()
