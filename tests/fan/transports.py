"""The transports of a bare client: pipes, Streamable HTTP, a WebSocket.

Each yields an open client that is initialized and reads all the time. Everything ends with its block.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from tests.fan.clients import OPENING, Client, Json, hello
from tests.fan.http_clients import HEADERS, PATH, Posted, Web, open_web
from tests.fan.matrix import Pair
from tests.fan.programs import Host, Programs, StdioProcess
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket

from turnwire.limits import MiB
from turnwire.wire.sse import SseReader


def request(method: str, params: Json, request_id: int | str) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


class PipedClient(Client):
    """A client over the pipes of a process. One at a time; the process retains its state between two of them."""

    def __init__(self, pair: Pair, programs: Programs, process: StdioProcess) -> None:
        super().__init__(pair, programs.cwd, process.numbers)
        self._process = process
        self._mine: set[str] = set()

    async def send(self, message: Json) -> None:
        self._process.write(message)

    def take(self, message: Json) -> None:
        told: Json = message.get("params") or message.get("result") or {}
        session_id: str | None = told.get("sessionId")
        if session_id not in self._process.old_sessions:
            self._mine |= {session_id} if session_id else set()
            super().take(message)

    async def read(self) -> None:
        while True:
            await anyio.wait_readable(self._process.read_fd)
            chunk = os.read(self._process.read_fd, 1 * MiB)
            assert chunk, self._process.program.err.read_text()
            for line in self._process.lines.feed(chunk):
                assert isinstance(line, bytes)
                self.take(json.loads(line))

    async def greet(self) -> None:
        """Initialize the first client of a process, after it has tried requests that may not come before."""
        process = self._process
        if not process.agreed:
            process.early = await self.answer(await self.ask("session/new", cwd=self.cwd, mcpServers=[]))
            process.agreed = await self.call("initialize", **hello(self.pair))
        self.early, self.agreed = process.early, process.agreed
        self.frames.clear()

    def leave(self) -> None:
        self._process.old_sessions |= self._mine


@asynccontextmanager
async def over_pipes(pair: Pair, programs: Programs, process: StdioProcess) -> AsyncGenerator[Client]:
    client = PipedClient(pair, programs, process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.read)
        await client.greet()
        yield client
        client.leave()
        tasks.cancel_scope.cancel()


class HttpClient(Client):
    """Over Streamable HTTP: a POST for each frame, a stream for the connection and one for each session."""

    def __init__(self, pair: Pair, programs: Programs, web: Web, tasks: TaskGroup) -> None:
        super().__init__(pair, programs.cwd)
        self.posts: list[Posted] = []
        """The answers to all frames that were sent."""
        self._web = web
        self._tasks = tasks
        self._headers: dict[str, str] = {}
        self._opening: dict[int | str, str | None] = {}
        self._streams: dict[str | None, anyio.CancelScope] = {}
        self._cursors: dict[str | None, str] = {}
        self._came_on: dict[int, str | None] = {}
        """The session on whose stream each frame came, by its index among the frames."""

    def on(self, session_id: str | None, frame: Json) -> bool:
        """Return True if a frame came on the stream of this session; None: of the connection."""
        return self._came_on[self.place(frame)] == session_id

    async def greet(self, *, knocks: bool) -> None:
        if knocks:
            early = request("session/new", {"cwd": self.cwd, "mcpServers": []}, "early")
            self.early = {"status": (await self._web.post(early, {})).status}
        answer = await self._web.post(request("initialize", hello(self.pair), "init"), {})
        assert answer.status == 200, answer.body
        self.agreed = json.loads(answer.body)["result"]
        self._headers = {"Acp-Connection-Id": answer.headers["acp-connection-id"]}
        await self._open(None)

    async def send(self, message: Json) -> None:
        if message.get("method") in OPENING:
            self._opening[message["id"]] = message["params"].get("sessionId")
        self.posts.append(await self._web.post(message, self._headers))
        assert self.posts[-1].status == 202, self.posts[-1]

    def take(self, message: Json) -> None:
        super().take(message)
        if "method" not in message and message["id"] in self._opening:
            # The answer to `session/new` names the session; to the others the client has named it.
            session_id = self._opening.pop(message["id"])
            opened: Json = message.get("result", {"sessionId": None})
            session_id = opened.get("sessionId", session_id)
            if session_id is not None:
                self._tasks.start_soon(self._read_on, session_id)

    async def lose(self) -> None:
        for scope in self._streams.values():
            scope.cancel()

    async def come_back(self) -> None:
        for session_id in tuple(self._streams):
            await self._open(session_id)

    async def _open(self, session_id: str | None) -> None:
        await self._tasks.start(self._read, session_id)

    async def _read_on(self, session_id: str) -> None:
        await self._read(session_id, task_status=anyio.TASK_STATUS_IGNORED)

    async def _read(self, session_id: str | None, *, task_status: TaskStatus[None]) -> None:
        named = {"Acp-Session-Id": session_id} if session_id else {}
        cursor = {"Last-Event-ID": self._cursors[session_id]} if session_id in self._cursors else {}
        headers = {"Accept": "text/event-stream", **self._headers, **named, **cursor}
        with anyio.CancelScope() as self._streams[session_id]:
            async with self._web.stream(headers) as chunks:
                task_status.started()
                events = SseReader(64 * MiB)
                async for chunk in chunks:
                    for event in events.feed(chunk):
                        if event.id is not None:
                            self._cursors[session_id] = event.id
                        self._came_on[len(self.frames)] = session_id
                        self.take(json.loads(event.data))


@asynccontextmanager
async def over_http(pair: Pair, programs: Programs, host: Host, *, knocks: bool) -> AsyncGenerator[Client]:
    async with (
        open_web(host.url) as web,
        anyio.create_task_group() as tasks,
    ):
        client = HttpClient(pair, programs, web, tasks)
        await client.greet(knocks=knocks)
        yield client
        tasks.cancel_scope.cancel()


class SocketClient(Client):
    """Over a WebSocket."""

    def __init__(self, pair: Pair, programs: Programs, host: Host, stack: AsyncExitStack, tasks: TaskGroup) -> None:
        super().__init__(pair, programs.cwd)
        self._url = host.url.replace("http", "ws", 1) + PATH
        self._tasks = tasks
        self._wire: ClientConnection | None = None
        self._stack = stack
        self._reading = anyio.CancelScope()

    async def open(self, query: str = "") -> None:
        options: dict[str, Any] = {"max_size": 64 * MiB, "ping_interval": None, "proxy": None}
        opening = connect_socket(self._url + query, additional_headers=HEADERS, **options)
        self._wire = await self._stack.enter_async_context(opening)
        self._reading = anyio.CancelScope()
        self._tasks.start_soon(self._read, self._wire, self._reading)

    async def greet(self, *, knocks: bool) -> None:
        await self.open()
        if knocks:
            self.early = await self.answer(await self.ask("session/new", cwd=self.cwd, mcpServers=[]))
        self.agreed = await self.call("initialize", **hello(self.pair))
        self.frames.clear()

    async def send(self, message: Json) -> None:
        assert self._wire is not None
        await self._wire.send(json.dumps(message))

    async def lose(self) -> None:
        assert self._wire is not None
        self._reading.cancel()
        self._wire.transport.abort()
        await self._wire.wait_closed()

    async def come_back(self) -> None:
        await self.open(f"?connection={self.agreed['_meta']['turnwire']['connectionId']}")

    async def _read(self, wire: ClientConnection, scope: anyio.CancelScope) -> None:
        with scope:
            async for text in wire:
                self.take(json.loads(text))


@asynccontextmanager
async def over_socket(pair: Pair, programs: Programs, host: Host, *, knocks: bool) -> AsyncGenerator[Client]:
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        client = SocketClient(pair, programs, host, stack, tasks)
        await client.greet(knocks=knocks)
        yield client
        tasks.cancel_scope.cancel()
