"""One route as a row: what it takes, gives, refuses, and who may call it.

Takes an `Endpoint`; gives the ASGI application of its route. The OpenAPI document, the check of roles and bodies,
and the audit read the same row, so none of them can differ from what the code does. Never decides anything about a
session: `act` translates a call into an input or a view.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from turnwire.errors import BadRequest, Forbidden, LimitExceeded, TurnwireError, UnsupportedMedia
from turnwire.ids import ClientId, SessionId
from turnwire.server.access.identity import ANYBODY, IDENTITY, Identity, Role, audit
from turnwire.server.daemon import Daemon
from turnwire.server.refusals import problem_of
from turnwire.wire.jsonrpc import UNREADABLE

DAEMON = "turnwire.daemon"
"""Where the application leaves the daemon."""

LINGERS = "turnwire.lingers"
"""The ASGI extension of a server that leaves it to the client to close a connection that ends."""
ABORT = "turnwire.abort"
"""The ASGI extension by which our HTTP/1.1 server drops a connection with all that it has not sent."""
SEND_ALL = "turnwire.send_all"
"""The ASGI extension by which our HTTP/1.1 server writes many messages to a WebSocket in one go."""
CLOSED_S = 1.0
"""What a client gets to close a connection that ends. Most do so as soon as they have read the reply."""

CLIENT_ID_HEADERS = ("turnwire-client-id", "x-qwen-client-id")

logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """What goes back."""

    body: Struct | Mapping[str, Any] | None = None
    status: int | None = None
    """None means the endpoint's own."""
    headers: Mapping[str, str] = {}
    then: Callable[[], None] | None = None
    """Called once the reply is written, or cannot be."""
    is_last: bool = False
    """Where `LINGERS`: the connection ends with the reply, and `then` waits until the client has closed it."""


Act = Callable[["Call"], Awaitable["Reply"]]
Stream = Callable[["Call", Send], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A row of the route table."""

    method: str
    path: str
    """In Starlette's form: `/session/{session_id}/prompt`."""
    act: Act | None = None
    stream: Stream | None = None
    """For routes that write their own body: one of `act` and `stream` is set."""
    summary: str
    role: Role | None
    """The least role that may call it; none means that no credential is needed."""
    takes: Any = None
    """The type of the JSON body; none means that a body is ignored."""
    query: type[Struct] | None = None
    """Query parameters, as a struct of optional fields."""
    gives: Any = None
    """The type of the JSON body of the success; none means no body."""
    status: int = 200
    also: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """Types of the JSON body of other answers that are no refusals, by status."""
    refuses: tuple[type[TurnwireError], ...] = ()
    """The errors that a caller must be ready for, besides those of every route."""
    media_type: str = "application/json"
    narrows: bool = False
    """It names no session in its path and restricts itself to the one of a token that is for one session only."""
    tag: str = field(default="session")

    @property
    def optional_body(self) -> bool:
        """Whether a missing body says as much as `{}`: nothing in it is required."""
        try:
            msgspec.convert({}, self.takes)
        except msgspec.ValidationError:
            return False
        return True


class Call:
    """One request to an endpoint, checked."""

    def __init__(self, endpoint: Endpoint, request: Request, body: Any, query: Any) -> None:
        self.endpoint = endpoint
        self.request = request
        self.body = body
        """Of the type that the endpoint takes."""
        self.query = query
        """Of the struct that the endpoint names."""

    @property
    def daemon(self) -> Daemon:
        return self.request.scope[DAEMON]

    @property
    def who(self) -> Identity:
        return self.request.scope.get(IDENTITY, ANYBODY)

    @property
    def session_id(self) -> SessionId:
        return SessionId(self.request.path_params["session_id"])

    @property
    def client_id(self) -> ClientId | None:
        """The client id that the caller names, not yet known to be the session's. See `Daemon.client_of`."""
        for name in CLIENT_ID_HEADERS:
            value = self.request.headers.get(name)
            if value is not None:
                return ClientId(value)
        return None

    async def left(self) -> None:
        """Return once the client is gone. What it sends meanwhile means nothing."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


async def serve_endpoint(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request: check, act, write. What is refused is written as a problem; nothing escapes."""
    request = Request(scope, receive)
    status: int | None = None

    async def sending(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        await send(message)

    try:
        call = await _checked(endpoint, request)
        if endpoint.stream is not None:
            await endpoint.stream(call, sending)
            return
        assert endpoint.act is not None, "an endpoint acts or streams"
        reply = await endpoint.act(call)
        lingers = reply.is_last and LINGERS in (scope.get("extensions") or {})
        until = partial(_until_closed, call) if lingers else None
        try:
            await _write(sending, reply.status or endpoint.status, reply.headers, _encode(reply.body), until=until)
        finally:
            if reply.then is not None:
                reply.then()
    except ClientDisconnect:
        return
    except TurnwireError as error:
        if status is None:
            await refuse(sending, error)
    except Exception:  # whatever it is, the request must be answered
        extra = {"event": "request_failed", "method": endpoint.method, "route": endpoint.path}
        logger.exception("a request failed", extra=extra)
        if status is None:
            await refuse(sending, TurnwireError("something went wrong here; the daemon's log says what"))
    finally:
        if status is not None:
            _record(endpoint, request, status)


def _record(endpoint: Endpoint, request: Request, status: int) -> None:
    daemon: Daemon = request.scope[DAEMON]
    daemon.metrics.request(endpoint.method, endpoint.path, status)
    session_id = request.path_params.get("session_id")
    address = request.client.host if request.client is not None else None
    who: Identity = request.scope.get(IDENTITY, ANYBODY)
    audit(who, endpoint.method, endpoint.path, status, address, session_id and SessionId(session_id))


async def _checked(endpoint: Endpoint, request: Request) -> Call:
    who: Identity = request.scope.get(IDENTITY, ANYBODY)
    if endpoint.role is not None:
        if not who.role.covers(endpoint.role):
            raise Forbidden(f"this needs the role {endpoint.role.value!r}; the token has {who.role.value!r}")
        session_id = request.path_params.get("session_id")
        if session_id is None:
            if who.session_id is not None and not endpoint.narrows:
                raise Forbidden("this token is for one session only")
        elif not who.may_touch(SessionId(session_id)):
            raise Forbidden("this token is for another session")
    query = _query(endpoint, request)
    body = await _body(endpoint, request) if endpoint.takes is not None else None
    return Call(endpoint, request, body, query)


def _query(endpoint: Endpoint, request: Request) -> Any:
    if endpoint.query is None:
        return None
    try:
        return msgspec.convert(dict(request.query_params), type=endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a query parameter is not as documented: {error}") from None


async def _body(endpoint: Endpoint, request: Request) -> Any:
    body = await read_body(request, request.scope[DAEMON].limits.body_bytes)
    if not body and endpoint.optional_body:
        body = b"{}"
    elif not body:
        raise BadRequest("the request has no body; send a JSON object")
    else:
        media = request.headers.get("content-type", "").split(";")[0].strip().lower()
        # A page of another origin can send a form or plain text without asking; JSON it cannot.
        if media != "application/json" and not media.endswith("+json"):
            raise UnsupportedMedia("send the body as application/json", media_type=media or None)
    try:
        return msgspec.json.decode(body, type=endpoint.takes)
    except msgspec.ValidationError as error:
        # The text names a path and types of our own; no value of the caller is in it.
        raise BadRequest(f"the body is not as documented: {error}") from None
    except UNREADABLE:
        raise BadRequest("Invalid JSON in request body") from None


async def read_body(request: Request, most: int) -> bytes:
    """The whole body. Raises `LimitExceeded` as soon as it is known to be too long."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise LimitExceeded("the body is too large", limit="body_bytes", value=most)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise LimitExceeded("the body is too large", limit="body_bytes", value=most)
        parts.append(part)
    return b"".join(parts)


def _encode(body: Struct | Mapping[str, Any] | None) -> bytes:
    return b"" if body is None else msgspec.json.encode(body)


async def refuse(send: Send, error: TurnwireError, more: Mapping[str, str] = {}) -> None:
    """Write a refusal as the whole answer, with `more` headers."""
    status, headers, body = problem_of(error)
    headers |= more
    await _write(send, status, headers, msgspec.json.encode(body), media_type="application/problem+json")


async def _write(
    send: Callable[[Any], Awaitable[None]],
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    media_type: str = "application/json",
    until: Callable[[], Awaitable[None]] | None = None,
) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if until is not None:
        raw.append((b"connection", b"close"))
    if body:
        raw.append((b"content-type", media_type.encode()))
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    raw.append((b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": until is not None})
    if until is not None:
        await until()
        await send({"type": "http.response.body", "body": b""})


async def _until_closed(call: Call) -> None:
    """Wait until the client has closed the connection: it has read the reply, whose last byte it has by then."""
    with anyio.move_on_after(CLOSED_S):
        await call.left()
