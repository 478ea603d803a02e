"""ACP over Streamable HTTP: messages by POST, all other frames on event streams that the client opens with GET.

Each POST contains one JSON-RPC message and is answered with 202 as soon as the message is accepted; the JSON-RPC
response comes on a stream. Only `initialize` is answered in place. There is one stream for the connection and one
for each session, each with any number of readers. Clients differ in the headers that they send, so a message is
routed by its content, and a header is only checked against it. A connection never ends because a stream was lost.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.types import Send

from turnwire.errors import (
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    RemoteProtocolError,
    UnsupportedMedia,
)
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position
from turnwire.server.access.tokens import Role
from turnwire.server.acp.connection import EMPTY_BATCH, NO_BATCHES, FramePage
from turnwire.server.acp.reader import resync
from turnwire.server.acp.registry import AcpConnections, KeptConnection
from turnwire.server.acp.rpc import failure_of, refusal
from turnwire.server.acp_paths import AGENT, AGENT_PATH, PATH
from turnwire.server.bodies import BodyKind
from turnwire.server.endpoint import EVENT_STREAM, Call, Endpoint, Stream, refuse
from turnwire.server.readers.event_stream import RETRY, PumpedStream, fill_stream, run_stream
from turnwire.server.readers.fanout import EPOCH_HEADERS, Lost, read_offset, start_at
from turnwire.wire.jsonrpc import INVALID_REQUEST, Batch, Frame, Notification, Request, decode
from turnwire.wire.methods import INITIALIZE
from turnwire.wire.peek import peek_session_id
from turnwire.wire.sse import encode_comment, in_ascii

if TYPE_CHECKING:
    # Imported only on a node of a cluster.
    from turnwire.server.cluster.relay import Relay

CONNECTION_ID: Final = "acp-connection-id"
SESSION_ID: Final = "acp-session-id"

_EVENTS: Final = ("text/event-stream", "text/*", "*/*")
"""Values of `Accept` that allow events, most specific first: the first one present decides."""
_ALLOWED: Final = "DELETE, GET, POST"
_OPENED: Final = encode_comment("open")
"""A first comment, because some clients send nothing before the first byte of a stream."""


class StreamableHttp:
    """The endpoint for clients without a socket."""

    def __init__(self, connections: AcpConnections, relay: Relay | None) -> None:
        """`relay`: access to connections of other nodes, if there are any."""
        self._connections = connections
        self._relay = relay
        rows: tuple[tuple[str, Stream, str, dict[str, Any]], ...] = (
            ("GET", self._get, "Open a stream", {"media_type": EVENT_STREAM}),
            # Not audited here, because each message is audited itself.
            ("POST", self._post, "Send a message", {"takes": bytes, "body": BodyKind.CONTENT, "tells_who": False}),
            ("DELETE", self._delete, "End a connection", {}),
        )
        self.endpoints = tuple(
            Endpoint(
                method=method, path=path, stream=stream, summary=words, role=Role.OBSERVER, narrows=True, **more
            )
            for path in (PATH, AGENT_PATH)
            for method, stream, words, more in rows
        )
        """Endpoints declared like the REST routes, so that roles, errors and the audit are the same."""

    # -- messages ------------------------------------------------------------------------------------------

    async def _post(self, call: Call, send: Send) -> None:
        request = call.request
        media = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if media != "application/json":
            raise UnsupportedMedia("send the message as application/json", media_type=media or None)
        body: bytes = call.body
        frame = _read(body)
        if isinstance(frame, _Refusal):
            await _answer(send, frame.status, frame.body)
        elif isinstance(frame, Request) and frame.method == INITIALIZE:
            await self._initialize(call, send, body)
        elif not await self._is_relayed(call, send):
            kept = self._find(call)
            _check_session(request, frame)
            with kept.in_use():
                kept.connection.comes_from(call.address)
                await kept.connection.receive(body)
            await _answer(send, 202)

    async def _initialize(self, call: Call, send: Send, body: bytes) -> None:
        if CONNECTION_ID in call.request.headers:
            raise BadRequest("this connection is initialized; leave Acp-Connection-Id out to open another one")
        kept = self._connections.open(call.who, call.request.path_params.get(AGENT))
        connection = kept.connection
        with kept.in_use():
            answer = await connection.initialize(body)
        if not connection.is_initialized:
            kept.end()
        await _answer(send, 200, answer, connection.connection_id if connection.is_initialized else None)

    async def _delete(self, call: Call, send: Send) -> None:
        asked = call.request.query_params.get("endsWork", "false")
        if asked not in {"true", "false"}:
            raise BadRequest("`endsWork` is true or false")
        if not await self._is_relayed(call, send):
            self._connections.end(_connection_id(call.request), call.who, ends_work=asked == "true")
            await _answer(send, 202)

    # -- streams -------------------------------------------------------------------------------------------

    async def _get(self, call: Call, send: Send) -> None:
        request = call.request
        if request.method == "HEAD":
            await refuse(send, MethodNotAllowed(f"this path takes {_ALLOWED}"), {"Allow": _ALLOWED})
            return
        if not _takes_events(request):
            raise NotAcceptable("this is answered with an event stream; accept text/event-stream")
        if await self._is_relayed(call, send):
            return
        kept = self._find(call)
        session_id = request.headers.get(SESSION_ID)
        if session_id is not None:
            await self._session_stream(call, send, kept, SessionId(session_id))
            return

        async def pump(stream: PumpedStream) -> None:
            with kept.in_use():
                await stream.send(RETRY + _OPENED)
                async with aclosing(kept.connection.connection_frames()) as frames:
                    async for some in frames:
                        await stream.send(in_ascii(b"".join([b"data: %b\n\n" % each for each in some])))

        await run_stream(call, send, {}, pump)

    async def _session_stream(self, call: Call, send: Send, kept: KeptConnection, session_id: SessionId) -> None:
        if not kept.connection.may_read(session_id):
            raise NotFound("there is no such session; it was deleted, or was never here")
        start = await _start(call, session_id)

        async def pump(stream: PumpedStream) -> None:
            with kept.in_use(), call.daemon.metrics.subscriber(session_id) as subscriber:
                await stream.send(_begin(session_id, start))
                async with aclosing(kept.connection.session_frames(session_id, start.after)) as pages:
                    async for page in pages:
                        await stream.send(in_ascii(_events(page)))
                        if (offset := next(filter(None, reversed(page.offsets)), None)) is not None:
                            subscriber.offset = offset

        await run_stream(call, send, dict.fromkeys(EPOCH_HEADERS, start.epoch), pump)

    async def _is_relayed(self, call: Call, send: Send) -> bool:
        """Return whether another node has the connection; if so, it has answered."""
        life = self._connections.elsewhere(_connection_id(call.request), call.request.path_params.get(AGENT))
        if life is None:
            return False
        assert self._relay is not None, "who knows of other nodes has a way to them"
        async with self._relay.asking(life, call.request.scope, call.who, call.body or b"") as answer:
            body = b"" if answer.is_stream else await answer.read()
            headers = answer.headers
            if not answer.is_stream:
                headers = [*headers, (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if not answer.is_stream:
                await send({"type": "http.response.body", "body": body})
                return True

            async def pump(stream: PumpedStream) -> None:
                async with aclosing(answer.events()) as events:
                    async for some in events:
                        await stream.send(some)

            await fill_stream(call, send, pump)
        return True

    def _find(self, call: Call) -> KeptConnection:
        return self._connections.find(_connection_id(call.request), call.who)


class _Start(NamedTuple):
    """The start of a stream."""

    epoch: Epoch
    after: Position | None
    lost: Lost | None


async def _start(call: Call, session_id: SessionId) -> _Start:
    """Return the start for the client's cursor. Raises `BadRequest`, `SessionNotFound`."""
    headers = call.request.headers
    offset = read_offset(headers.get("last-event-id"))
    if offset is None:
        return _Start((await call.daemon.node.head(session_id)).epoch, None, None)
    epoch = next((Epoch(value) for name in EPOCH_HEADERS if (value := headers.get(name))), None)
    head, after, lost = await start_at(call.daemon.node, session_id, epoch, offset)
    return _Start(head.epoch, after, lost)


def _begin(session_id: SessionId, start: _Start) -> bytes:
    parts = [RETRY, _OPENED]
    if start.lost is not None:
        parts.append(b"data: %b\n\n" % resync(session_id, start.lost))
    if start.after is not None:
        # An id alone is no event, but a client that is disconnected before the first event returns with it.
        parts.append(b"id: %d\n\n" % start.after.offset)
    return b"".join(parts)


def _events(page: FramePage) -> bytes:
    pairs = zip(page.offsets, page.frames, strict=True)
    if None in page.offsets or b"" in page.frames:
        return b"".join([_event(offset, frame) for offset, frame in pairs])
    # Nearly every page contains updates only.
    return b"".join([b"id: %d\ndata: %b\n\n" % each for each in pairs])


def _event(offset: int | None, frame: bytes) -> bytes:
    if not frame:
        # An id without an event moves the client's cursor.
        return b"id: %d\n\n" % (offset or 0)
    return b"data: %b\n\n" % frame if offset is None else b"id: %d\ndata: %b\n\n" % (offset, frame)


# -- parsing requests ----------------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    """An HTTP response to a body that is not a message."""

    status: int
    body: bytes


def _read(body: bytes) -> Frame | _Refusal:
    try:
        frame = decode(body)
    except RemoteProtocolError as error:
        if error.context.get("reason") == EMPTY_BATCH:
            return _no_batches()
        request_id = error.context.get("request_id")
        return _Refusal(400, failure_of(request_id if isinstance(request_id, int | str) else None, error))
    if isinstance(frame, Batch):
        return _no_batches()
    return frame


def _no_batches() -> _Refusal:
    return _Refusal(501, refusal(None, INVALID_REQUEST, NO_BATCHES))


def _connection_id(request: HttpRequest) -> str:
    connection_id = request.headers.get(CONNECTION_ID)
    if not connection_id:
        raise BadRequest("no connection is named; initialize first, then send its Acp-Connection-Id")
    return connection_id


def _check_session(request: HttpRequest, frame: Frame) -> None:
    """Raise `BadRequest` if the header names another session than the message."""
    named = request.headers.get(SESSION_ID)
    told = peek_session_id(frame.params) if isinstance(frame, Request | Notification) and frame.params else None
    if named is not None and told is not None and named != told:
        raise BadRequest("the message is about another session than Acp-Session-Id says")


def _takes_events(request: HttpRequest) -> bool:
    """Return whether `Accept` allows an event stream. A missing or empty header allows everything."""
    accept = ",".join(request.headers.getlist("accept"))
    if not accept.strip():
        return True
    weights: dict[str, float] = {}
    for each in accept.lower().split(","):
        kind, *params = (part.strip() for part in each.split(";"))
        weights[kind] = next((_weight(part[2:]) for part in params if part.startswith("q=")), 1.0)
    return next((weights[kind] for kind in _EVENTS if kind in weights), 0.0) > 0


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


async def _answer(send: Send, status: int, body: bytes = b"", connection_id: str | None = None) -> None:
    headers = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    if body:
        headers.append((b"content-type", b"application/json"))
    if connection_id is not None:
        headers.append((CONNECTION_ID.encode(), connection_id.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
