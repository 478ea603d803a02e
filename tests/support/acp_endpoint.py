"""A small `/acp` endpoint over Streamable HTTP that a test controls frame by frame.

It accepts POSTs and returns event streams, like a server of the protocol, on a real socket. A test decides the
content, stream and time of each event, the numbering of events, the statuses of responses, and the time when a
stream is cut.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from turnwire.hosting.network import NetworkLink
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S

CONNECTION = "connection-1"
RESULT = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}


class Posted:
    """One POST that was accepted."""

    def __init__(self, frame: bytes, headers: dict[str, str]) -> None:
        self.frame = frame
        self.headers = headers

    @property
    def message(self) -> Any:
        return msgspec.json.decode(self.frame)


class Lane:
    """Pending and sent events of one event stream."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.position = 0
        self.more = anyio.Event()
        self.opened = anyio.Event()
        self.cut = anyio.Event()
        self.resumed_from: list[str | None] = []


class Endpoint:
    """The server's end."""

    def __init__(self, *, numbered: bool = True) -> None:
        self.url = ""
        self.numbered = numbered
        self.posted: deque[Posted] = deque()
        self.came = anyio.Event()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.lanes: dict[str | None, Lane] = defaultdict(Lane)
        self.statuses: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        """Statuses of the next responses, by HTTP method and JSON-RPC method or session."""
        self.initialize: Callable[[Any], tuple[int, Any]] = lambda asked: (
            200,
            {"id": asked["id"], "result": RESULT},
        )
        self.is_over = False

    def say(self, message: dict[str, Any], session_id: str | None = None) -> None:
        """Send this on the stream of a session, or of the connection."""
        lane = self.lanes[session_id]
        lane.said.append(msgspec.json.encode({"jsonrpc": "2.0", **message}))
        lane.more.set()

    async def heard(self) -> Posted:
        """The next frame that was accepted."""
        with anyio.fail_after(WAIT_S):
            while not self.posted:
                self.came = anyio.Event()
                await self.came.wait()
        return self.posted.popleft()

    def cut(self, session_id: str | None = None) -> None:
        """End the stream, as a lost connection does."""
        lane = self.lanes[session_id]
        lane.cut.set()
        lane.cut = anyio.Event()

    async def serve(self, request: Request) -> Response:
        headers = dict(request.headers)
        self.requests.append((request.method, headers))
        if request.method == "POST":
            return await self._post(await request.body(), headers)
        if headers.get("acp-connection-id") is None:
            return Response(status_code=400)
        if request.method == "DELETE":
            self.is_over = True
            for lane in self.lanes.values():
                lane.cut.set()
            return Response(status_code=202)
        session_id = headers.get("acp-session-id")
        if self.is_over:
            return Response(status_code=404)
        if waiting := self.statuses[("GET", session_id)]:
            return Response(status_code=waiting.pop(0))
        return StreamingResponse(self._tell(session_id, headers), media_type="text/event-stream")

    async def _post(self, body: bytes, headers: dict[str, str]) -> Response:
        message = msgspec.json.decode(body)
        method = message.get("method")
        if method == "initialize":
            status, answer = self.initialize(message)
            named = {"Acp-Connection-Id": CONNECTION, "Set-Cookie": "affinity=here; Path=/"}
            content = msgspec.json.encode({"jsonrpc": "2.0", **answer})
            return Response(content, status, named if status == 200 else {}, "application/json")
        if waiting := self.statuses[("POST", method)]:
            return Response(status_code=waiting.pop(0))
        if self.is_over:
            return Response(status_code=404)
        self.posted.append(Posted(body, headers))
        self.came.set()
        return Response(status_code=202)

    async def _tell(self, session_id: str | None, headers: dict[str, str]) -> AsyncGenerator[bytes]:
        lane = self.lanes[session_id]
        last = headers.get("last-event-id")
        lane.resumed_from.append(last)
        if last is not None:
            lane.position = int(last)
        cut = lane.cut
        yield b"retry: 10\n: hello\n\n"
        lane.opened.set()
        while not cut.is_set():
            while lane.position < len(lane.said):
                frame = lane.said[lane.position]
                lane.position += 1
                number = b"id: %d\n" % lane.position if self.numbered else b""
                yield number + b"data: " + frame + b"\n\n"
            lane.more = anyio.Event()
            async with anyio.create_task_group() as waiting:
                for event in (lane.more, cut):
                    waiting.start_soon(_first, event, waiting.cancel_scope)


async def _first(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class ServerEnd(NetworkLink):
    """The server's end as a link, for the contract: any bytes are a frame, all on the connection's stream."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.inbound = self._inbound
        self.outbound = self._outbound
        self.deleted = anyio.Event()

    async def _carry(self) -> None:
        await self.deleted.wait()
        self._lose("deleted")

    async def _part(self) -> None:
        return

    async def serve(self, request: Request) -> Response:
        if request.method == "POST":
            body = await request.body()
            if b'"initialize"' in body:
                answer = b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}'
                return Response(answer, 200, {"Acp-Connection-Id": CONNECTION}, "application/json")
            await self.inbound.room()
            if self.inbound.is_ended:
                return Response(status_code=404)
            self.inbound.put(body)
            return Response(status_code=202)
        if request.method == "DELETE":
            self.deleted.set()
            return Response(status_code=202)
        if self.outbound.broken is not None:
            return Response(status_code=404)
        return StreamingResponse(self._tell(), media_type="text/event-stream")

    async def _tell(self) -> AsyncGenerator[bytes]:
        yield b": hello\n\n"
        while (frame := await self.outbound.next()) is not None:
            yield b"data: " + frame + b"\n\n"
            self.outbound.carried()


@asynccontextmanager
async def served(serve: Callable[[Request], Any]) -> AsyncGenerator[str]:
    """Serve this at `/acp` on a free port."""
    app = Starlette(routes=[Route("/acp", serve, methods=["GET", "POST", "DELETE"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    port = listener.getsockname()[1]
    with closing(listener):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield f"http://127.0.0.1:{port}/acp"
            finally:
                server.should_exit = server.force_exit = True
