"""An ACP client for tests over Streamable HTTP: it sends each message as one POST, and receives on its streams.

It uses an HTTP client of a running daemon and returns messages as they came. Every wait is bounded.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
from tests.support.daemons import Running, running_daemon

from turnwire.limits import MiB
from turnwire.wire.sse import SseEvent, SseReader
from turnwire_testing.patience import WAIT_S

PATH = "/acp"
EVENTS = "text/event-stream"
YES: dict[str, Any] = {"outcome": {"outcome": "selected", "optionId": "yes"}}


def initialize(version: int = 1, request_id: int | str = 0, **capabilities: Any) -> dict[str, Any]:
    """The first message of a client."""
    info = {"name": "test", "version": "1"}
    if version == 2:
        params = {"protocolVersion": 2, "capabilities": capabilities, "info": info}
    else:
        params = {"protocolVersion": version, "clientCapabilities": capabilities, "clientInfo": info}
    return request("initialize", params, request_id)


def request(method: str, params: Any, request_id: int | str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def notification(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def prompt(session_id: str, text: str, request_id: int | str) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text}]
    return request("session/prompt", {"sessionId": session_id, "prompt": blocks}, request_id)


def new(cwd: Path, request_id: int | str) -> dict[str, Any]:
    return request("session/new", {"cwd": str(cwd), "mcpServers": []}, request_id)


def load(session_id: str, cwd: Path, request_id: int | str, **members: Any) -> dict[str, Any]:
    return request(
        "session/load", {"sessionId": session_id, "cwd": str(cwd), "mcpServers": [], **members}, request_id
    )


class Heard(NamedTuple):
    """A message of a stream, and the event id that it came with."""

    id: int | None
    message: dict[str, Any]

    @property
    def method(self) -> str | None:
        return self.message.get("method")

    @property
    def update(self) -> dict[str, Any]:
        return self.message["params"]["update"]

    @property
    def text(self) -> str:
        """Return the text of a message chunk; empty for any other message."""
        if self.method != "session/update" or self.update["sessionUpdate"] != "agent_message_chunk":
            return ""
        return self.update["content"]["text"]


class Stream:
    """One open stream."""

    def __init__(self, response: httpx.Response) -> None:
        """The ids of a stream begin with the cursor that it was opened with."""
        self.response = response
        self.bytes = b""
        self.sse = SseReader(64 * MiB)
        self.ids = Ids(response.request.headers.get("Last-Event-ID"))
        self._chunks = response.aiter_raw()
        self._ready: list[Heard] = []

    async def next(self) -> Heard:
        """The next message. Raises `StopAsyncIteration` when the stream has ended."""
        with anyio.fail_after(WAIT_S):
            while not self._ready:
                self._take(await anext(self._chunks))
        return self._ready.pop(0)

    async def until(self, found: Callable[[Heard], bool]) -> list[Heard]:
        """Messages up to the first one that is looked for."""
        heard = [await self.next()]
        while not found(heard[-1]):
            heard.append(await self.next())
        return heard

    async def answer(self, request_id: int | str) -> dict[str, Any]:
        """Return the answer to a request; earlier messages are dropped."""
        return (await self.until(lambda each: is_answer(each, request_id)))[-1].message

    async def ask(self, method: str = "session/request_permission") -> dict[str, Any]:
        """The next question of the agent."""
        return (await self.until(lambda each: each.method == method))[-1].message

    async def until_bytes(self, part: bytes) -> None:
        with anyio.fail_after(WAIT_S):
            while part not in self.bytes:
                self._take(await anext(self._chunks))

    async def to_the_end(self) -> list[Heard]:
        """Return the rest of the messages until the stream ends by itself."""
        with anyio.fail_after(WAIT_S):
            async for chunk in self._chunks:
                self._take(chunk)
        heard, self._ready = self._ready, []
        return heard

    def _take(self, chunk: bytes) -> None:
        self.bytes += chunk
        self._ready += self.ids.heard(self.sse.feed(chunk))


class Ids:
    """Tracks which events of a stream have their own id: a reader's id stays until the next one."""

    def __init__(self, last: str | None = None) -> None:
        self.last = last

    def heard(self, events: list[SseEvent]) -> list[Heard]:
        found: list[Heard] = []
        for event in events:
            own = int(event.id) if event.id is not None and event.id != self.last else None
            self.last = event.id
            found.append(Heard(own, json.loads(event.data)))
        return found


OPENS = frozenset({"session/new", "session/load", "session/resume", "session/attach", "session/fork"})
"""Methods after which a client sends that it is ready for the session."""


def ready(method: str, params: Any, result: Any) -> dict[str, Any] | None:
    """Return the ready notification after an answer that opens a session; None for any other."""
    if method not in OPENS:
        return None
    return notification("session/ready", {"sessionId": result.get("sessionId") or params["sessionId"]})


def is_mark(heard: Heard) -> bool:
    """The end of a turn."""
    return heard.method == "session/update" and heard.update["sessionUpdate"] == "turn_complete"


def is_answer(heard: Heard, request_id: int | str) -> bool:
    message = heard.message
    return "method" not in message and message["id"] == request_id and type(message["id"]) is type(request_id)


class Client:
    """One ACP client that has initialized."""

    def __init__(
        self, running: Running, http: httpx.AsyncClient, connection_id: str, agreed: dict[str, Any]
    ) -> None:
        self.running = running
        self.http = http
        self.connection_id = connection_id
        self.agreed = agreed
        """The result of `initialize`."""
        self._last_id = 0

    @property
    def cwd(self) -> Path:
        return self.running.daemon.roots[0]

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def headers(self, session_id: str | None = None, **more: str) -> dict[str, str]:
        """Return the headers of a message or a stream, of a session or of none."""
        named = {} if session_id is None else {"Acp-Session-Id": session_id}
        return {"Acp-Connection-Id": self.connection_id} | named | more

    async def post(self, message: Any, session_id: str | None = None, status: int = 202) -> httpx.Response:
        answer = await self.http.post(PATH, json=message, headers=self.headers(session_id))
        assert answer.status_code == status, answer.text
        if status == 202:
            assert answer.content == b""
        return answer

    @asynccontextmanager
    async def stream(self, session_id: str | None = None, **more: str) -> AsyncGenerator[Stream]:
        """Open a stream that has begun."""
        headers = self.headers(session_id, Accept=EVENTS, **more)
        async with self.http.stream("GET", PATH, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            stream = Stream(response)
            await stream.until_bytes(b"\n\n")
            yield stream

    async def call(self, stream: Stream, method: str, params: Any, session_id: str | None = None) -> Any:
        """Send a request, receive its answer on a stream, and return its result."""
        request_id = self.next_id()
        await self.post(request(method, params, request_id), session_id)
        answer = await stream.answer(request_id)
        assert "result" in answer, answer
        if (said := ready(method, params, answer["result"])) is not None:
            await self.post(said)
        return answer["result"]

    async def new(self, stream: Stream) -> str:
        """Open a new session; its answer comes on the connection's stream."""
        return (await self.call(stream, "session/new", new(self.cwd, 0)["params"]))["sessionId"]

    async def prompt(self, session_id: str, text: str) -> int:
        request_id = self.next_id()
        await self.post(prompt(session_id, text, request_id), session_id)
        return request_id


async def connect(running: Running, http: httpx.AsyncClient, version: int = 1, **capabilities: Any) -> Client:
    """Connect a client that has initialized."""
    answer = await http.post(PATH, json=initialize(version, **capabilities))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert "result" in told, told
    return Client(running, http, answer.headers["Acp-Connection-Id"], told["result"])


class Talk(NamedTuple):
    """A client with one session and both streams open."""

    client: Client
    connection: Stream
    session_id: str
    session: Stream


@asynccontextmanager
async def connected(data: Path, **options: Any) -> AsyncGenerator[Client]:
    """Connect a client to a separate daemon."""
    async with running_daemon(data, **options) as running, running.client() as http:
        yield await connect(running, http)


@asynccontextmanager
async def talking(data: Path, **options: Any) -> AsyncGenerator[Talk]:
    """Connect a client to a separate daemon, with a new session."""
    async with connected(data, **options) as client, client.stream() as connection:
        session_id = await client.new(connection)
        async with client.stream(session_id) as session:
            yield Talk(client, connection, session_id, session)
