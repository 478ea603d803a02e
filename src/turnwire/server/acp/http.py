"""ACP over Streamable HTTP: requests by POST, everything else on event streams that the client opens with GET.

Takes JSON-RPC messages, one for each POST, and answers 202 as soon as a message is taken; the JSON-RPC answer comes
on a stream. Only `initialize` is answered in place. Gives one stream for the connection and one for each session,
to any number of readers. Clients differ in the headers they send, so a message is routed by what it says, and a
header is only held against it. Never ends a connection because a stream was lost.
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
from turnwire.server.access.identity import Role
from turnwire.server.acp.client_state import AGENT, AGENT_PATH, PATH
from turnwire.server.acp.connection import EMPTY_BATCH, NO_BATCHES, AcpConnection, FramePage
from turnwire.server.acp.reader import resync
from turnwire.server.acp.registry import AcpConnections, KeptConnection
from turnwire.server.acp.rpc import failure_of, refusal
from turnwire.server.bodies import BodyKind
from turnwire.server.endpoint import Call, Endpoint, Stream, refuse
from turnwire.server.streams.session_stream import EPOCH_HEADERS, Lost, read_offset, start_at
from turnwire.server.streams.stream import RETRY, Pace, Writer, fill_stream, run_stream
from turnwire.wire.jsonrpc import INVALID_REQUEST, Batch, Frame, Notification, Request, decode
from turnwire.wire.methods import INITIALIZE
from turnwire.wire.peek import peek_session_id
from turnwire.wire.sse import encode_comment, in_ascii

if TYPE_CHECKING:
    # Imported by those who are one of several nodes.
    from turnwire.server.cluster.relay import Relay

CONNECTION_ID: Final = "acp-connection-id"
SESSION_ID: Final = "acp-session-id"

_EVENTS: Final = ("text/event-stream", "text/*", "*/*")
"""What `Accept` may say for events, the most exact first: that one decides."""
_ALLOWED: Final = "DELETE, GET, POST"
_OPENED: Final = encode_comment("open")
"""Some clients send nothing before the first byte of a stream has come."""


class StreamableHttp:
    """The endpoint for clients without a socket."""

    def __init__(self, connections: AcpConnections, relay: Relay | None) -> None:
        """`relay`: the way to connections of other nodes, if there are any."""
        self._connections = connections
        self._relay = relay
        rows: tuple[tuple[str, Stream, str, dict[str, Any]], ...] = (
            ("GET", self._get, "Open a stream", {}),
            # The messages are audited themselves.
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
        """In the form of the REST routes, so that roles, refusals and the audit are the same."""

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

        async def pump(writer: Writer) -> None:
            pace = Pace()
            await writer.write(RETRY + _OPENED)
            async with aclosing(kept.connection.connection_frames()) as frames:
                async for some in frames:
                    await writer.write(in_ascii(b"".join([b"data: %b\n\n" % each for each in some])))
                    await pace.step(len(some))

        with kept.in_use():
            await run_stream(call, send, {}, pump)

    async def _session_stream(self, call: Call, send: Send, kept: KeptConnection, session_id: SessionId) -> None:
        if not kept.connection.may_read(session_id):
            raise NotFound("there is no such session; it was deleted, or was never here")
        start = await _start(call, session_id)
        stream = _SessionStream(call, kept.connection, session_id, start)
        with kept.in_use():
            await run_stream(call, send, dict.fromkeys(EPOCH_HEADERS, start.epoch), stream.run)

    async def _is_relayed(self, call: Call, send: Send) -> bool:
        """Let another node answer, if the connection is there; whether it was so."""
        life = self._connections.elsewhere(_connection_id(call.request))
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

            async def pump(writer: Writer) -> None:
                async with aclosing(answer.events()) as events:
                    async for some in events:
                        await writer.write(some)

            await fill_stream(call, send, pump)
        return True

    def _find(self, call: Call) -> KeptConnection:
        return self._connections.find(_connection_id(call.request), call.who)


class _Start(NamedTuple):
    """Where a stream begins."""

    epoch: Epoch
    after: Position | None
    lost: Lost | None


async def _start(call: Call, session_id: SessionId) -> _Start:
    """What the client's cursor stands for. Raises `BadRequest`, `SessionNotFound`."""
    headers = call.request.headers
    offset = read_offset(headers.get("last-event-id"))
    if offset is None:
        return _Start((await call.daemon.node.head(session_id)).epoch, None, None)
    epoch = next((Epoch(value) for name in EPOCH_HEADERS if (value := headers.get(name))), None)
    head, after, lost = await start_at(call.daemon.node, session_id, epoch, offset)
    return _Start(head.epoch, after, lost)


class _SessionStream:
    """The stream of one session, to one reader."""

    def __init__(self, call: Call, connection: AcpConnection, session_id: SessionId, start: _Start) -> None:
        self._daemon = call.daemon
        self._connection = connection
        self._session_id = session_id
        self._start = start

    async def run(self, writer: Writer) -> None:
        """Write all there is and will be."""
        after, pace = self._start.after, Pace()
        with self._daemon.metrics.subscriber(self._session_id) as subscriber:
            await writer.write(self._begin())
            async with aclosing(self._connection.session_frames(self._session_id, after)) as pages:
                async for page in pages:
                    await writer.write(in_ascii(_events(page)))
                    if (offset := next(filter(None, reversed(page.offsets)), None)) is not None:
                        subscriber.offset = offset
                    await pace.step(len(page.frames))

    def _begin(self) -> bytes:
        _, after, lost = self._start
        parts = [RETRY, _OPENED]
        if lost is not None:
            parts.append(b"data: %b\n\n" % resync(self._session_id, lost))
        if after is not None:
            # The id alone is no event, but a client that is cut before the first one comes back with it.
            parts.append(b"id: %d\n\n" % after.offset)
        return b"".join(parts)


def _events(page: FramePage) -> bytes:
    pairs = zip(page.offsets, page.frames, strict=True)
    if None in page.offsets or b"" in page.frames:
        return b"".join([_event(offset, frame) for offset, frame in pairs])
    # Nearly every page is of updates alone.
    return b"".join([b"id: %d\ndata: %b\n\n" % each for each in pairs])


def _event(offset: int | None, frame: bytes) -> bytes:
    if not frame:
        # No event, but the client's cursor moves.
        return b"id: %d\n\n" % (offset or 0)
    return b"data: %b\n\n" % frame if offset is None else b"id: %d\ndata: %b\n\n" % (offset, frame)


# -- what a request says -------------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    """An HTTP answer to what is no message."""

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
    """A header that names another session than the message is a mix-up of the client."""
    named = request.headers.get(SESSION_ID)
    told = peek_session_id(frame.params) if isinstance(frame, Request | Notification) and frame.params else None
    if named is not None and told is not None and named != told:
        raise BadRequest("the message is about another session than Acp-Session-Id says")


def _takes_events(request: HttpRequest) -> bool:
    """Whether `Accept` lets us answer with events. None at all, or an empty one, allows everything."""
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
