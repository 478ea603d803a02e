"""An ACP client for tests over a WebSocket: all received messages are in one order. Every wait is bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.server.acp.http_client import WAIT_S, Heard, initialize, is_answer, new, prompt, ready, request
from tests.support.daemons import Running
from websockets.asyncio.client import ClientConnection, connect

from turnwire.limits import MiB


class Socket:
    """One open socket."""

    def __init__(self, running: Running, wire: ClientConnection) -> None:
        self.running = running
        self.wire = wire
        assert wire.response is not None
        self.connection_id = wire.response.headers.get("Acp-Connection-Id", "")
        """The id in the upgrade response, or in the answer to `initialize`."""
        self._last_id = 0

    @property
    def cwd(self) -> Path:
        return self.running.daemon.roots[0]

    async def send(self, message: Any) -> None:
        await self.wire.send(json.dumps(message))

    async def next(self) -> Heard:
        """Return the next message, with its event id if the client requested ids."""
        with anyio.fail_after(WAIT_S):
            text = await self.wire.recv()
        assert isinstance(text, str)
        message = json.loads(text)
        meta = message.get("params", {}).get("_meta", {})
        return Heard(meta.get("turnwire", {}).get("eventId"), message)

    async def until(self, found: Callable[[Heard], bool]) -> list[Heard]:
        heard = [await self.next()]
        while not found(heard[-1]):
            heard.append(await self.next())
        return heard

    async def answer(self, request_id: int | str) -> dict[str, Any]:
        return (await self.until(lambda each: is_answer(each, request_id)))[-1].message

    async def call(self, method: str, params: Any) -> Any:
        """Send a request and return its result."""
        self._last_id += 1
        await self.send(request(method, params, self._last_id))
        answer = await self.answer(self._last_id)
        assert "result" in answer, answer
        if (said := ready(method, params, answer["result"])) is not None:
            await self.send(said)
        return answer["result"]

    async def start(self, version: int = 1, **capabilities: Any) -> dict[str, Any]:
        """Initialize."""
        await self.send(initialize(version, "init", **capabilities))
        agreed = (await self.answer("init"))["result"]
        self.connection_id = agreed["_meta"]["turnwire"]["connectionId"]
        return agreed

    async def new(self) -> str:
        return (await self.call("session/new", new(self.cwd, 0)["params"]))["sessionId"]

    async def prompt(self, session_id: str, text: str) -> int:
        self._last_id += 1
        await self.send(prompt(session_id, text, self._last_id))
        return self._last_id

    def cut(self) -> None:
        """Lose the socket as a network does: without a word."""
        self.wire.transport.abort()

    async def closed(self) -> int | None:
        """The code with which the server closes."""
        with anyio.fail_after(WAIT_S):
            await self.wire.wait_closed()
        return self.wire.close_code


def url_of(running: Running, query: str = "") -> str:
    return running.url.replace("http", "ws", 1) + "/acp" + query


@asynccontextmanager
async def open_socket(
    running: Running, query: str = "", headers: dict[str, str] | None = None, **options: Any
) -> AsyncGenerator[Socket]:
    """Open a socket without sending anything."""
    given = running.headers if headers is None else headers
    options = {"max_size": 64 * MiB, "ping_interval": None, "proxy": None} | options
    async with connect(url_of(running, query), additional_headers=given, **options) as wire:
        yield Socket(running, wire)


@asynccontextmanager
async def started(running: Running, version: int = 1, **capabilities: Any) -> AsyncGenerator[Socket]:
    """Connect a client that has initialized."""
    async with open_socket(running) as socket:
        await socket.start(version, **capabilities)
        yield socket
