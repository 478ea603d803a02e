"""MCP servers of a session that is opened again, or by a second client: started once, and ended for others."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.process.starting import is_listed, needs_linux

from agent_kit.script_model import echo_model
from turnwire.hosting.base import FrameLink
from turnwire_agent.agent import ModelAgent

pytestmark = [pytest.mark.anyio, needs_linux]

OLD = Path(__file__).with_name("agent_kit") / "mcp_old_server.py"
LONG_S = 60.0


class Peer:
    """A client by hand."""

    def __init__(self, link: FrameLink) -> None:
        self._link = link
        self._number = 0

    async def ask(self, method: str, **params: Any) -> tuple[Any, str]:
        """The result, and all that came before it."""
        self._number += 1
        frame = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._link.send(json.dumps(frame).encode())
        told = ""
        while True:
            for each in await self._link.receive():
                found = json.loads(each)
                if found.get("id") == self._number and "method" not in found:
                    return found["result"], told
                told += each.decode()

    async def help(self, session_id: str) -> str:
        """The answer to `/help`, which names the tools."""
        prompt = [{"type": "text", "text": "/help"}]
        return (await self.ask("session/prompt", sessionId=session_id, prompt=prompt))[1]


@asynccontextmanager
async def peer(built: ModelAgent) -> AsyncGenerator[Peer]:
    handle = await built.agent.source().connect()
    try:
        found = Peer(handle.link)
        await found.ask("initialize", protocolVersion=1, clientCapabilities={})
        yield found
    finally:
        await handle.aclose()


def server(folder: Path, name: str) -> dict[str, Any]:
    """One that writes down each of its processes."""
    program = shlex.join([sys.executable, "-I", "-S", str(OLD), "good"])
    script = f"echo $$ >> {shlex.quote(str(folder / name))}; exec {program}"
    return {"name": name, "command": "/bin/sh", "args": ["-c", script], "env": []}


def started(folder: Path, name: str) -> list[int]:
    return [int(each) for each in (folder / name).read_text().split()]


async def test_a_session_that_is_opened_again_keeps_its_servers(tmp_path: Path) -> None:
    where: dict[str, Any] = {"cwd": str(tmp_path), "mcpServers": [server(tmp_path, "one")]}
    with anyio.fail_after(LONG_S):
        async with peer(ModelAgent([echo_model()])) as client:
            session = (await client.ask("session/new", **where))[0]["sessionId"]
            for _ in range(3):
                await client.ask("session/load", sessionId=session, **where)
                assert "one__say_it" in await client.help(session)
            [pid] = started(tmp_path, "one")
        assert not is_listed(pid)


async def test_other_servers_come_when_the_old_ones_have_gone(tmp_path: Path) -> None:
    with anyio.fail_after(LONG_S):
        async with peer(ModelAgent([echo_model()])) as client:
            where: dict[str, Any] = {"cwd": str(tmp_path)}
            one, two = server(tmp_path, "one"), server(tmp_path, "two")
            session = (await client.ask("session/new", **where, mcpServers=[one]))[0]["sessionId"]
            await client.help(session)
            await client.ask("session/load", sessionId=session, **where, mcpServers=[two])
            assert [is_listed(each) for each in started(tmp_path, "one")] == [False]
            told = await client.help(session)
            assert "two__say_it" in told
            assert "one__say_it" not in told
            await client.ask("session/load", sessionId=session, **where, mcpServers=[])
            assert [is_listed(each) for each in started(tmp_path, "two")] == [False]
            assert "two__say_it" not in await client.help(session)


async def test_a_second_client_shares_the_servers_and_has_them_when_the_first_has_left(tmp_path: Path) -> None:
    where: dict[str, Any] = {"cwd": str(tmp_path), "mcpServers": [server(tmp_path, "one")]}
    built = ModelAgent([echo_model()])
    with anyio.fail_after(LONG_S):
        async with peer(built) as second:
            async with peer(built) as first:
                session = (await first.ask("session/new", **where))[0]["sessionId"]
                await first.help(session)
                await second.ask("session/load", sessionId=session, **where)
                assert "one__say_it" in await second.help(session)
                assert len(started(tmp_path, "one")) == 1
            assert "one__say_it" in await second.help(session)
            assert [is_listed(each) for each in started(tmp_path, "one")] == [False, True]
