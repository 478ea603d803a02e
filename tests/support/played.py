"""A daemon played by the test: real sockets, and an answer to each request that the test defines.

The input is one function from a request to its response; the result is a URL and a list of the requests. For
daemons that behave as ours never would: old ones, broken ones, and proxies in front of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.server.listener import Tls, listen
from turnwire_testing.patience import WAIT_S


class Request(NamedTuple):
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Play(NamedTuple):
    """A response: its chunks one after the other, then the end, or an unlimited wait."""

    status: int = 200
    pieces: tuple[bytes, ...] = ()
    headers: Mapping[str, str] = MappingProxyType({})
    stays_open: bool = False
    breaks: bool = False
    """The connection is dropped instead of ended."""


Answering = Callable[[Request], Play | Awaitable[Play]]


def told(value: object, status: int = 200, **headers: str) -> Play:
    """JSON."""
    named = {"content-type": "application/json"} | {key.replace("_", "-"): each for key, each in headers.items()}
    return Play(status, (msgspec.json.encode(value),), named)


def streamed(*pieces: bytes, stays_open: bool = False, breaks: bool = False) -> Play:
    """Server-sent events."""
    return Play(200, pieces, {"content-type": "text/event-stream"}, stays_open, breaks)


def frame(number: int | None, kind: str = "session_update", data: object = None, **more: object) -> bytes:
    """Return one event as a daemon sends it."""
    envelope: dict[str, object] = {
        "v": 1,
        "type": kind,
        "data": data or {},
        "_meta": {"serverTimestamp": 1},
        **more,
    }
    if number is not None:
        envelope["id"] = number
    named = b"" if number is None else b"id: %d\n" % number
    return named + b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(envelope))


def said(number: int, text: str = "x", prompt_id: str = "p1") -> bytes:
    """Return a chunk of the agent's message."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return frame(number, data={"sessionId": "s1", "update": update}, promptId=prompt_id)


class Played(NamedTuple):
    url: str
    asked: list[Request]


@asynccontextmanager
async def playing(answer: Answering) -> AsyncGenerator[Played]:
    """Run a played daemon that listens until the end of the block."""
    asked: list[Request] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request = Request(scope["method"], path, headers, body + message.get("body", b""))
        asked.append(request)
        play = answer(request)
        await _perform(play if isinstance(play, Play) else await play, receive, send)

    async with serving(app) as url:
        yield Played(url, asked)


@asynccontextmanager
async def serving(app: ASGIApp, tls: Tls | None = None) -> AsyncGenerator[str]:
    """Serve an application on a free port, cut off at the end of the block."""
    urls: list[str] = []
    ready, stop = anyio.Event(), anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await listen(app, host="127.0.0.1", port=0, tls=tls, ready=listening, stop=stop)

        tasks.start_soon(serve)
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        try:
            yield urls[0]
        finally:
            tasks.cancel_scope.cancel()


async def _perform(play: Play, receive: Receive, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in play.headers.items()]
    await send({"type": "http.response.start", "status": play.status, "headers": headers})
    for piece in play.pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if play.stays_open:
        while (await receive())["type"] != "http.disconnect":
            pass
    elif not play.breaks:
        await send({"type": "http.response.body", "body": b""})
