"""A fake model server: accepts requests on a loopback socket and plays a script.

Its arguments are a script and an `Api`, which defines the wire format; it provides a URL and the received requests
(`Exchange`). A request that the real server would reject is rejected and uses up no reply. The server never sleeps:
it waits for events only.

A script has one reply for each request, made of steps. A step means the same for every server; its wire format
depends on the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeGuard, cast

import anyio
from anyio.abc import TaskGroup
from starlette.types import Message, Receive, Scope, Send

from turnwire.server.listener import listen

StopWord: TypeAlias = Literal["stop", "length", "refusal", "tools"]


@dataclass(frozen=True)
class Say:
    """Text of the answer, split into chunks of about the same size."""

    text: str
    pieces: int = 1


@dataclass(frozen=True)
class Think:
    """A block of thinking. Anthropic's API signs it. OpenAI's has none; there it is `reasoning_content`, as servers
    compatible with it send it.
    """

    text: str
    signature: str = "signed-by-the-fake"
    pieces: int = 1


@dataclass(frozen=True)
class CallTool:
    """A tool call. Several in one reply are parallel. Text as `arguments` is sent unchanged, valid or not."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None
    """The call's id; if empty, a unique one is generated."""
    pieces: int = 2


@dataclass(frozen=True)
class Stop:
    """The finish reason of the answer. Without it: `tools` after a tool call, else `stop`."""

    reason: StopWord
    text: str = ""
    """The model's explanation of a refusal, where the API has a field for it."""


@dataclass(frozen=True)
class Spend:
    """The tokens that the answer reports. `input` holds the cached ones, `output` those of the thoughts."""

    input: int = 10
    output: int = 5
    cached: int = 0
    thought: int = 0


@dataclass(frozen=True)
class Fail:
    """An error. As the first step it is the whole reply, with this status; later it is sent inside the stream."""

    status: int
    retry_after: float | None = None
    """Seconds. A whole number is sent as `Retry-After`, another one as `retry-after-ms`."""
    code: str | None = None
    """Such as `context_length_exceeded`, for errors that have more than their status."""
    text: str = "the fake was told to fail"


@dataclass(frozen=True)
class Cut:
    """The connection breaks here. As the first step: before anything of the reply was sent."""

    clean: bool = False
    """Instead of breaking, the stream just ends, without the end of the answer. Some proxies do this."""


@dataclass(frozen=True)
class Hang:
    """Nothing comes until `released` is set, or until the client goes away."""

    released: anyio.Event = field(default_factory=anyio.Event)


Step: TypeAlias = Say | Think | CallTool | Stop | Spend | Fail | Cut | Hang
Reply: TypeAlias = Sequence[Step]
Script: TypeAlias = Sequence[Reply] | Callable[[dict[str, Any]], Reply]
"""The replies in order, or a function from the body of a request to its reply."""


def split(text: str, pieces: int) -> list[str]:
    """Split `text` into at most `pieces` non-empty chunks."""
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)]


def ending(reply: Reply) -> Stop:
    """Return the end of `reply`: its `Stop`, else one derived from its steps."""
    told = [step for step in reply if isinstance(step, Stop)]
    calls = any(isinstance(step, CallTool) for step in reply)
    return told[-1] if told else Stop("tools" if calls else "stop")


def spent(reply: Reply) -> Spend:
    told = [step for step in reply if isinstance(step, Spend)]
    return told[-1] if told else Spend()


START_S = 20.0
"""Startup timeout of the server, sized for a busy machine."""

Body: TypeAlias = dict[str, Any]

Headers: TypeAlias = Mapping[str, str]


# -- the server ----------------------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """An error reply."""

    status: int
    body: Mapping[str, Any]


Frame: TypeAlias = bytes | Cut | Hang
"""Bytes of a stream, or an event in their place."""


class Api(Protocol):
    """The shapes of one API."""

    path: str
    """Pattern of the request paths."""
    root: str
    """The part of the path that belongs to the URL configured in a client."""

    def refuses(self, headers: Headers, body: Body) -> Refusal | None:
        """Return the real server's error for this request, if any."""
        ...

    def error(self, fail: Fail) -> Refusal: ...

    def frames(self, reply: Reply, body: Body) -> Iterator[Frame]:
        """The stream that a reply is."""
        ...


@dataclass(eq=False)
class Exchange:
    """One request and its outcome."""

    body: Body
    headers: Headers
    refused: str | None = None
    """Why it was refused as malformed."""
    gone: anyio.Event = field(default_factory=anyio.Event)
    """Set when the client disconnected before the end of the reply."""
    done: anyio.Event = field(default_factory=anyio.Event)
    """Set when nothing more will be sent."""


class FakeServer:
    """A server of one API. Use it as `async with`; `url` is the URL to configure in a client."""

    def __init__(self, api: Api, script: Script) -> None:
        self._api = api
        self._script = script
        self._replies = 0
        self._stop = anyio.Event()
        self._arrived = anyio.Event()
        self._stack = AsyncExitStack()
        self._address = ""
        self.exchanges: list[Exchange] = []
        """The requests so far, in order of arrival."""

    @property
    def url(self) -> str:
        return self._address + self._api.root

    @property
    def requests(self) -> list[Body]:
        """The bodies of the requests so far."""
        return [exchange.body for exchange in self.exchanges]

    async def arrival(self, number: int) -> Exchange:
        """The request of this number (the first is 1), once it is there."""
        while len(self.exchanges) < number:
            await self._arrived.wait()
        return self.exchanges[number - 1]

    async def __aenter__(self) -> Self:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._stop.set)
        try:
            await self._start(tasks)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self, tasks: TaskGroup) -> None:
        ready = anyio.Event()

        def listening(url: str) -> None:
            self._address = url
            ready.set()

        async def serve() -> None:
            # Stop the server with its flag instead of cancelling it: a cancelled server leaks its socket in the
            # loop.
            with anyio.CancelScope(shield=True):
                await listen(self, host="127.0.0.1", port=0, ready=listening, stop=self._stop)

        tasks.start_soon(serve)
        with anyio.fail_after(START_S):
            await ready.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        exchange = Exchange(body=await _read(receive), headers=_headers(scope))
        self.exchanges.append(exchange)
        self._arrived.set()
        self._arrived = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, receive, exchange)
            await self._answer(exchange, scope, send)
            exchange.done.set()
            tasks.cancel_scope.cancel()

    async def _answer(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        refusal = self._refusal(exchange, str(scope["path"]), str(scope["method"]))
        if refusal is not None:
            exchange.refused = json.dumps(refusal.body)
            return await _send_error(send, refusal)
        reply = self._next_reply(exchange.body)
        if reply is None:
            exchange.refused = f"the script has no reply for request {len(self.exchanges)}"
            return await _send_error(send, self._api.error(Fail(400, text=exchange.refused)))
        match list(reply[:1]):
            case [Fail() as fail]:
                await _send_error(send, self._api.error(fail), fail.retry_after)
            case [Cut(clean=False)]:
                # The server drops a connection whose answer was begun and not completed.
                await send({"type": "http.response.start", "status": 200, "headers": []})
            case _:
                await self._stream(reply, exchange, send)

    def _refusal(self, exchange: Exchange, path: str, method: str) -> Refusal | None:
        if method != "POST" or not re.fullmatch(self._api.path, path):
            return self._api.error(Fail(404, text=f"the fake serves POST {self._api.path} only"))
        return self._api.refuses(exchange.headers, exchange.body)

    def _next_reply(self, body: Body) -> Reply | None:
        if callable(self._script):
            return self._script(body)
        self._replies += 1
        return self._script[self._replies - 1] if self._replies <= len(self._script) else None

    async def _stream(self, reply: Sequence[Step], exchange: Exchange, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for frame in self._api.frames(reply, exchange.body):
            match frame:
                case bytes():
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
                case Hang():
                    await _either(frame.released, exchange.gone, self._stop)
                case Cut(clean=True):
                    break
                case Cut():
                    return
            if exchange.gone.is_set() or self._stop.is_set():
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read(receive: Receive) -> Body:
    """Return the body as JSON; anything but a JSON object becomes an empty one, which every API rejects."""
    whole = b""
    while True:
        message: Message = await receive()
        whole += message.get("body", b"")
        if not message.get("more_body"):
            break
    try:
        body: object = json.loads(whole)
    except ValueError:
        return {}
    return cast("Body", body) if isinstance(body, dict) else {}


def _headers(scope: Scope) -> Headers:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _watch(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.done.is_set():
        exchange.gone.set()


async def _either(*events: anyio.Event) -> None:
    """Return once one of them is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


async def _send_error(send: Send, refusal: Refusal, retry_after: float | None = None) -> None:
    headers = [(b"content-type", b"application/json")]
    if retry_after is not None and float(retry_after).is_integer():
        headers.append((b"retry-after", str(int(retry_after)).encode()))
    elif retry_after is not None:
        headers.append((b"retry-after-ms", str(round(retry_after * 1000)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(refusal.body).encode()})


# -- JSON of unknown shape; a wrong shape reads as empty ---------------------------------------------------


def is_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return True for a list of JSON objects."""
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def inner(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object below `key`."""
    value: object = body.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(body: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of objects below `key`."""
    value: object = body.get(key)
    return value if is_objects(value) else []
