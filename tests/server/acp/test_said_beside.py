"""An agent's messages other than updates and about no session: vendor notifications, the end of an elicitation."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.http_client import Heard, connect, load
from tests.server.acp.socket_client import Socket, started
from tests.support.daemons import running_daemon

from turnwire.server.access.tokens import Role

pytestmark = pytest.mark.anyio

AGENT = (sys.executable, str(Path(__file__).with_name("telling_agent.py")))
NEWS, COMPLETE, CREATE = "_telling/news", "elicitation/complete", "elicitation/create"
PAGES: dict[str, Any] = {"elicitation": {"url": {}}}


async def until_ended(socket: Socket, request_id: int) -> list[Heard]:
    """All that came up to the answer."""
    return await socket.until(lambda each: "method" not in each.message and each.message["id"] == request_id)


def named(heard: list[Heard], method: str) -> list[Any]:
    return [each.message["params"] for each in heard if each.method == method]


async def listing(socket: Socket) -> list[Heard]:
    """Return all messages so far, by an answer that comes after them."""
    await socket.send({"jsonrpc": "2.0", "id": "list", "method": "session/list", "params": {}})
    return await socket.until(lambda each: each.message.get("id") == "list")


async def test_news_of_an_agent_reach_each_client_of_its_sessions_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_daemon(tmp_path / "data", agent=AGENT))
        first, second, stranger = [await stack.enter_async_context(started(running)) for _ in range(3)]
        one, _, other = await first.new(), await first.new(), await second.new()
        _, secret = await running.daemon.tokens.issue("eve", Role.OBSERVER)
        observer = await stack.enter_async_context(started(running._replace(token=secret)))
        await observer.send(load(other, tmp_path, "l"))
        await observer.answer("l")
        heard = await until_ended(first, await first.prompt(one, "news"))
        assert named(heard, NEWS) == [{"from": "told-1"}], "once, though two sessions of it are the agent's"
        for each in (second, observer):
            [news] = named(await each.until(lambda heard: heard.method == NEWS), NEWS)
            assert news == {"from": "told-1"}, "as it came"
        assert named(await listing(stranger), NEWS) == [], "it has no session of this agent"


async def test_news_come_on_the_stream_of_the_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data", agent=AGENT) as running, running.client() as http:
        client = await connect(running, http)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as session:
                await session.until(lambda each: '"method"' in each.text)
                request_id = await client.prompt(session_id, "news")
                assert (await connection.next()).method == NEWS
                heard = await session.until(lambda each: each.message.get("id") == request_id)
                assert named(heard, NEWS) == []


async def test_the_end_of_an_elicitation_is_told_to_those_who_were_asked(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_daemon(tmp_path / "data", agent=AGENT))
        able, also, apart = [await stack.enter_async_context(started(running, **PAGES)) for _ in range(3)]
        unable = await stack.enter_async_context(started(running))
        session_id = await able.new()
        await apart.new()
        for each in (also, unable):
            await each.send(load(session_id, tmp_path, "l"))
            await each.answer("l")
        request_id = await able.prompt(session_id, "elicit e-1")
        question = (await able.until(lambda each: each.method == CREATE))[-1].message
        assert question["params"]["elicitationId"] == "e-1"
        await also.until(lambda each: each.method == CREATE)
        await able.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
        heard = await until_ended(able, request_id)
        assert named(heard, COMPLETE) == [{"elicitationId": "e-1"}]
        assert named(await also.until(lambda each: each.method == COMPLETE), COMPLETE) == [{"elicitationId": "e-1"}]
        for each in (unable, apart):
            assert named(await listing(each), COMPLETE) == []
