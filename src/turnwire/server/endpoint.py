"""One route as a row: what it takes, gives, refuses, and who may call it; and how a request to it is served.

The OpenAPI document, the check of roles and bodies, and the audit read the same row, so none of them can differ
from what the code does. Nothing is decided about a session: `act` translates a call into an input or a view.

A request runs under its credential: when that ends, the request ends for its caller at once, with 401 or in the
middle of its answer. What it was about to change is not changed if the body was not whole yet; what it had begun to
change is done to its end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from turnwire.core.shape import Shape
from turnwire.errors import (
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    ShuttingDown,
    TurnwireError,
    Unauthenticated,
    UnsupportedMedia,
)
from turnwire.ids import ClientId, SessionId
from turnwire.server.access.identity import ANYBODY, IDENTITY, READING, Identity, Role, audit
from turnwire.server.bodies import BodyBound, BodyKind
from turnwire.server.daemon import Daemon
from turnwire.server.refusals import problem_of
from turnwire.wire.jsonrpc import UNREADABLE

LINGERS = "turnwire.lingers"
"""The ASGI extension of a server that leaves it to the client to close a connection that ends."""
ABORT = "turnwire.abort"
"""The ASGI extension by which our server drops an answer with all that it has not sent."""
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
    """The type of the JSON body; none means that a body is ignored, `bytes` that it is taken as it is."""
    body: BodyKind = BodyKind.FIELDS
    """How large the body may be and how long it may take; a public route's is always that of strangers."""
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
    logs_in: bool = False
    """It is public and takes a credential."""
    tells_who: bool = True
    """Whether its requests are audited here; one that carries messages has them audited one by one."""
    tag: str = field(default="session")

    @property
    def optional_body(self) -> bool:
        """Whether a missing body says as much as `{}`: nothing in it is required."""
        try:
            msgspec.convert({}, self.takes)
        except msgspec.ValidationError:
            return False
        return True


ShapeName: TypeAlias = Annotated[
    Literal["1", "2", "agent"],
    Meta(description="in the words of this version of ACP, whatever the agent speaks; or as the agent said it"),
]


class ShapeQuery(Struct, frozen=True):
    """In whose words the agent's updates, permission requests and offers are shown."""

    acp: ShapeName = "1"

    @property
    def shape(self) -> Shape:
        return Shape(self.acp)


class Call:
    """One request to an endpoint, checked."""

    def __init__(
        self,
        endpoint: Endpoint,
        daemon: Daemon,
        request: Request,
        credential: anyio.CancelScope,
        body: Any,
        query: Any,
    ) -> None:
        self.endpoint = endpoint
        self.daemon = daemon
        self.request = request
        self.credential = credential
        """What the request runs under; cancelled when its credential ends."""
        self.body = body
        """Of the type that the endpoint takes."""
        self.query = query
        """Of the struct that the endpoint names."""
        self.who = _who(request)
        self.session_id = SessionId(request.path_params.get("session_id", ""))
        """Empty for a route that names none."""
        named = (request.headers.get(name) for name in CLIENT_ID_HEADERS)
        client_id = next((each for each in named if each is not None), None)
        self.client_id = None if client_id is None else ClientId(client_id)
        """The client id that the caller names, not yet known to be the session's. See `Clients.known`."""

    @property
    def address(self) -> str | None:
        """Where it comes from, behind the proxies that are trusted."""
        return None if self.request.client is None else self.request.client.host

    async def left(self) -> None:
        """Return once the client is gone. What it sends meanwhile means nothing."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


class PathOfEndpoints:
    """The endpoints of one path as ASGI, in a class because Starlette takes a function for something of its own."""

    def __init__(self, daemon: Daemon, endpoints: Mapping[str, Endpoint]) -> None:
        self._daemon = daemon
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is not None:
            await _serve(endpoint, self._daemon, scope, receive, send)
        else:
            allowed = ", ".join(sorted(self._endpoints))
            await refuse(send, MethodNotAllowed(f"this path takes {allowed}"), {"Allow": allowed})


class _Answer:
    """What has been written of the answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        """None if nothing was written."""
        self.is_whole = False

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        await self._send(message)
        self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)


async def _serve(endpoint: Endpoint, daemon: Daemon, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request: check, act, write. What is refused is written as a problem; nothing escapes."""
    request, answer = Request(scope, receive), _Answer(send)
    try:
        with daemon.tokens.closing(_who(request)) as credential:
            await _answer(endpoint, daemon, request, credential, answer)
        if credential.cancelled_caught and answer.status is None:
            await refuse(answer.send, _ended(), {"WWW-Authenticate": "Bearer"})
        elif credential.cancelled_caught and not answer.is_whole:
            await hang_up(request)
    finally:
        if answer.status is not None:
            _record(endpoint, daemon, request, answer.status)


def _ended() -> Unauthenticated:
    return Unauthenticated("this credential was revoked or has expired meanwhile; use another one")


async def _answer(
    endpoint: Endpoint, daemon: Daemon, request: Request, credential: anyio.CancelScope, answer: _Answer
) -> None:
    try:
        call = await _checked(endpoint, daemon, request, credential)
        if endpoint.stream is not None:
            await endpoint.stream(call, answer.send)
            return
        reply = await _act(call)
        lingers = reply.is_last and LINGERS in (request.scope.get("extensions") or {})
        until = partial(_until_closed, call) if lingers else None
        try:
            await _write(
                answer.send, reply.status or endpoint.status, reply.headers, _encode(reply.body), until=until
            )
        finally:
            if reply.then is not None:
                reply.then()
    except ClientDisconnect:
        return
    except TurnwireError as error:
        if answer.status is None:
            await refuse(answer.send, error)
    except Exception:  # whatever it is, the request must be answered
        extra = {"event": "request_failed", "method": endpoint.method, "route": endpoint.path}
        logger.exception("a request failed", extra=extra)
        if answer.status is None:
            await refuse(answer.send, TurnwireError("something went wrong here; the daemon's log says what"))


async def hang_up(request: Request) -> None:
    """Drop the connection where it stands, so that nobody takes a part of an answer for the whole.

    Where the server has no way to, it does so itself when nothing more comes.
    """
    extensions: dict[str, Any] = request.scope.get("extensions") or {}
    abort = extensions.get(ABORT)
    if abort is not None:
        abort["call"]()
        # The server hears of it in the next round; before that it would call the answer unfinished.
        while (await request.receive())["type"] != "http.disconnect":
            pass


async def _act(call: Call) -> Reply:
    """What the endpoint says to the call."""
    assert call.endpoint.act is not None, "an endpoint acts or streams"
    if call.endpoint.method in READING:
        return await call.endpoint.act(call)
    acting = _Acting()
    call.daemon.tasks.start_soon(acting.run, call.endpoint.act, call)
    return await acting.reply()


class _Acting:
    """A change under way. It is made to its end, also if nobody may hear of it any more."""

    def __init__(self) -> None:
        self._outcome: Reply | Exception = ShuttingDown("the daemon is about to stop; try again in a moment")
        self._over = anyio.Event()
        self._is_awaited = True

    async def run(self, act: Act, call: Call) -> None:
        try:
            self._outcome = await act(call)
        except Exception as error:  # noqa: BLE001 it is raised again to whoever waits
            self._outcome = error
        finally:
            self._over.set()
            self._let_go()

    async def reply(self) -> Reply:
        """What came of it. Whoever is cancelled meanwhile is not told."""
        try:
            await self._over.wait()
        except BaseException:
            self._is_awaited = False
            self._let_go()
            raise
        if isinstance(self._outcome, Reply):
            return self._outcome
        raise self._outcome

    def _let_go(self) -> None:
        """A reply that nobody writes is as good as written."""
        is_lost = self._over.is_set() and not self._is_awaited
        if is_lost and isinstance(self._outcome, Reply) and self._outcome.then is not None:
            self._outcome.then()


def _record(endpoint: Endpoint, daemon: Daemon, request: Request, status: int) -> None:
    daemon.metrics.request(endpoint.method, endpoint.path, status)
    if not endpoint.tells_who:
        return
    session_id = request.path_params.get("session_id")
    address = request.client.host if request.client is not None else None
    audit(_who(request), endpoint.method, endpoint.path, status, address, session_id and SessionId(session_id))


def _who(request: Request) -> Identity:
    return request.scope.get(IDENTITY, ANYBODY)


async def _checked(endpoint: Endpoint, daemon: Daemon, request: Request, credential: anyio.CancelScope) -> Call:
    who = _who(request)
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
    body = None
    if endpoint.takes is not None:
        body = await _body(endpoint, daemon, request)
        # The body may have taken its time, and the credential may have ended in the very moment in which it was in.
        if not daemon.tokens.is_valid(who):
            raise _ended()
    return Call(endpoint, daemon, request, credential, body, query)


def _query(endpoint: Endpoint, request: Request) -> Any:
    if endpoint.query is None:
        return None
    try:
        return msgspec.convert(dict(request.query_params), type=endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a query parameter is not as documented: {error}") from None


async def _body(endpoint: Endpoint, daemon: Daemon, request: Request) -> Any:
    bound = BodyBound.of(BodyKind.STRANGERS if endpoint.role is None else endpoint.body, daemon.limits)
    declared = request.headers.get("content-length", "")
    bound.check(int(declared) if declared.isdigit() else 0)
    who, is_stranger = _who(request), endpoint.role is None
    body = await daemon.bodies.read(request.stream(), bound, who, is_stranger=is_stranger)
    return body if endpoint.takes is bytes else _decoded(endpoint, request, body)


def _decoded(endpoint: Endpoint, request: Request, body: bytes) -> Any:
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
        raise BadRequest(f"the body is not as documented: {error}; /openapi.json has its shape") from None
    except UNREADABLE:
        raise BadRequest("Invalid JSON in request body") from None


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
