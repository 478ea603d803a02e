"""Routes as rows: the input, output, errors and required role of each, and the serving of requests to them.

The OpenAPI document, the check of roles and bodies, and the audit read the same row, so none of them can differ
from the code's behaviour. Nothing is decided about a session: `act` translates a call into an input or a view.

A request runs under its credential: when that ends, the request ends for its caller at once, with 401 or in the
middle of its answer. If the body was incomplete then, nothing is changed; a change that has begun is completed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from turnwire.errors import (
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    TurnwireError,
    Unauthenticated,
    UnsupportedMedia,
)
from turnwire.ids import ClientId, SessionId
from turnwire.projections.envelope import Shape
from turnwire.server.access.tokens import ANYBODY, IDENTITY, READING, Identity, Role, Running, audit
from turnwire.server.bodies import BodyBound, BodyKind
from turnwire.server.daemon import Daemon
from turnwire.server.refusals import problem_of
from turnwire.session.inputs import AnyInput
from turnwire.wire.jsonrpc import UNREADABLE

ABORT = "turnwire.abort"
"""ASGI extension of a WebSocket: `call` drops the connection with all unsent data."""
SEND_ALL = "turnwire.send_all"
"""ASGI extension of a WebSocket that writes many messages in one write: `call` waits while the client reads too
slowly, `at_once` returns False instead.
"""

EVENT_STREAM = "text/event-stream"
CLIENT_ID_HEADERS = ("turnwire-client-id", "x-qwen-client-id")

logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """The result of an endpoint."""

    body: Struct | Mapping[str, Any] | None = None
    status: int | None = None
    """None for the endpoint's own status."""
    headers: Mapping[str, str] = {}
    then: Callable[[], None] | None = None
    """Called once the reply is written, or cannot be."""


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
    """The handler for routes that write their own body; exactly one of `act` and `stream` is set."""
    summary: str
    role: Role | None
    """The least role that may call it; None if no credential is needed."""
    takes: Any = None
    """The type of the JSON body; None ignores a body, `bytes` passes it on unparsed."""
    body: BodyKind = BodyKind.FIELDS
    """The bounds of the body's size and time; those of a public route are always those of strangers."""
    query: type[Struct] | None = None
    """Query parameters, as a struct. A missing required parameter is answered with 400."""
    gives: Any = None
    """The type of the JSON body on success; None for no body."""
    status: int = 200
    also: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """Types of the JSON body of other answers that are not errors, by status."""
    refuses: tuple[type[TurnwireError], ...] = ()
    """The errors that a caller must handle, in addition to those of every route."""
    media_type: str = "application/json"
    narrows: bool = False
    """True if its path names no session and it restricts itself to the session of a token for one session."""
    logs_in: bool = False
    """True if it is public and accepts a credential."""
    tells_who: bool = True
    """True if its requests are audited here; for a route that carries messages, each message is audited instead."""
    tag: str = field(default="session")

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """The decoder of its JSON body."""
        return msgspec.json.Decoder(self.takes)

    @cached_property
    def optional_body(self) -> bool:
        """True if a missing body means the same as `{}`: no member is required."""
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
    """The ACP version of the agent's updates, permission requests and offers in the response."""

    acp: ShapeName = "1"

    @property
    def shape(self) -> Shape:
        return Shape(self.acp)


class Call:
    """One request to an endpoint. It is checked before the endpoint's handler gets it."""

    def __init__(self, endpoint: Endpoint, daemon: Daemon, scope: Scope, receive: Receive) -> None:
        self.endpoint = endpoint
        self.daemon = daemon
        self.request = Request(scope, receive)
        self.who: Identity = scope.get(IDENTITY, ANYBODY)
        self.headers: dict[str, str] = {}
        """Headers by name, in lower case. The first one counts if a header occurs more than once."""
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        self.credential: RunningRequest = _NOTHING_RUNS
        """The scope of the request, cancelled when its credential ends."""
        self.body: Any = None
        """The body, of the endpoint's type."""
        self.query: Any = None
        """The query parameters, as the endpoint's struct."""
        self.session_id = SessionId(scope["path_params"].get("session_id", ""))
        """Empty for a route without a session."""
        named = (self.headers.get(name) for name in CLIENT_ID_HEADERS)
        client_id = next((each for each in named if each is not None), None)
        self.client_id = None if client_id is None else ClientId(client_id)
        """The client id that the caller names, not yet known to be the session's. See `Clients.known`."""

    @property
    def address(self) -> str | None:
        """The client's address, as reported by trusted proxies if there are any."""
        client = self.request.scope.get("client")
        return None if client is None else client[0]

    async def submit(
        self, kind: Callable[..., AnyInput], session_id: SessionId | None = None, **members: Any
    ) -> object:
        """Submit an input of the caller to a session, the request's by default, and return its answer.

        Raises `UnknownClient`, and the session's rejection.
        """
        session_id = session_id or self.session_id
        client_id = await self.known_client_id(session_id)
        now = self.daemon.clock.now_ms()
        wanted = kind(at=now, author=self.who.name, client_id=client_id, **members)
        return await self.daemon.node.submit(session_id, wanted)

    async def known_client_id(self, session_id: SessionId) -> ClientId | None:
        """Return the client id that the caller names, if any.

        Raises `UnknownClient`, `Forbidden`, `SessionNotFound`.
        """
        if self.client_id is None:
            return None
        return await self.daemon.clients.known(session_id, self.client_id, self.who)

    async def left(self) -> None:
        """Return once the client has disconnected. Data that it sends meanwhile is ignored."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


class RunningRequest(Running, Protocol):
    """A request, as seen by its credential."""

    @property
    def cancel_called(self) -> bool:
        """True if the credential has ended."""
        ...


class _NothingRuns:
    """The placeholder during the checks of a request: nothing waits then, so nothing can be cancelled."""

    cancel_called = False

    def cancel(self) -> None: ...


_NOTHING_RUNS = _NothingRuns()


class PathEndpoints:
    """The endpoints of one path, as an ASGI application."""

    def __init__(self, daemon: Daemon, methods: Mapping[str, Endpoint]) -> None:
        self._daemon = daemon
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self._methods.get("GET" if method == "HEAD" else method)
        if endpoint is not None:
            await _serve(Call(endpoint, self._daemon, scope, receive), _Answer(send))
        else:
            allowed = ", ".join(sorted(self._methods))
            await refuse(send, MethodNotAllowed(f"this path takes {allowed}"), {"Allow": allowed})


class _Answer:
    """The written part of the answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        """None if nothing was written, or is about to be."""
        self.is_whole = False

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        await self._send(message)
        self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)


async def _serve(call: Call, answer: _Answer) -> None:
    """Answer one request: check, act, write. Errors are written as problems; no exception escapes."""
    try:
        await _answer(call, answer)
    except ClientDisconnect:
        return
    except TurnwireError as error:
        if answer.status is None:
            await refuse(answer.send, error)
    except Exception:  # the request must be answered after any error
        extra = {"event": "request_failed", "method": call.endpoint.method, "route": call.endpoint.path}
        logger.exception("a request failed", extra=extra)
        if answer.status is None:
            await refuse(answer.send, TurnwireError("something went wrong here; the daemon's log says what"))
    finally:
        if answer.status is not None:
            _record(call, answer.status)


async def _answer(call: Call, answer: _Answer) -> None:
    endpoint = call.endpoint
    _check_role(endpoint, call)
    call.query = _query(endpoint, call.request)
    if endpoint.takes is not None:
        call.body = await _body(call)
    if endpoint.act is not None and endpoint.method not in READING:
        await _Change(call, answer).run(endpoint.act)
        return
    with call.daemon.tokens.closing(call.who) as credential:
        call.credential = credential
        if endpoint.stream is not None and endpoint.media_type == EVENT_STREAM:
            with call.daemon.open_streams.event_stream(call.who, call.request.scope):
                await endpoint.stream(call, answer.send)
        elif endpoint.stream is not None:
            await endpoint.stream(call, answer.send)
        else:
            assert endpoint.act is not None, "an endpoint acts or streams"
            await _reply(answer, endpoint, await endpoint.act(call))
    if credential.cancelled_caught and answer.status is None:
        raise _ended()


def _ended() -> Unauthenticated:
    return Unauthenticated("this credential was revoked or has expired meanwhile; use another one")


class _Change:
    """A running change. It completes; if its credential ends meanwhile, its caller is notified at once.

    It runs in the request's own task, which our server does not cancel while the daemon serves. If the answer was
    begun when the credential ended, the request returns without completing it: a server then drops the connection,
    so that no client mistakes a partial answer for the whole.
    """

    def __init__(self, call: Call, answer: _Answer) -> None:
        self._call = call
        self._answer = answer
        self._replying = anyio.CancelScope()
        self._refused: anyio.Event | None = None
        """Set when the caller has been notified that its credential has ended."""
        self.cancel_called = False

    def cancel(self) -> None:
        """Notify the caller, because the credential has ended."""
        if self.cancel_called or self._answer.is_whole:
            return
        self.cancel_called = True
        self._replying.cancel()
        if self._answer.status is None:
            self._answer.status = Unauthenticated.http_status
            self._refused = anyio.Event()
            self._call.daemon.tasks.start_soon(self._refuse, self._refused)

    async def run(self, act: Act) -> None:
        """Make the change and answer the request."""
        call, tokens = self._call, self._call.daemon.tokens
        call.credential = self
        tokens.enter(call.who, self)
        try:
            reply = await act(call)
            try:
                if not self.cancel_called:
                    with self._replying:
                        await _reply(self._answer, call.endpoint, reply)
            finally:
                # A reply that will not be written any more counts as written.
                if reply.then is not None:
                    reply.then()
        finally:
            tokens.leave(call.who, self)
            if self._refused is not None:
                await self._refused.wait()

    async def _refuse(self, refused: anyio.Event) -> None:
        try:
            await refuse(self._answer.send, _ended())
        finally:
            refused.set()


async def _reply(answer: _Answer, endpoint: Endpoint, reply: Reply) -> None:
    await _write(answer.send, reply.status or endpoint.status, reply.headers, _encode(reply.body))


def _record(call: Call, status: int) -> None:
    endpoint = call.endpoint
    call.daemon.metrics.request(endpoint.method, endpoint.path, status)
    if endpoint.tells_who and endpoint.method not in READING:
        skipped: int | None = 0
        if endpoint.role is None:
            # Limits the log lines that strangers can cause.
            daemon = call.daemon
            skipped = (daemon.login_log if status < HTTPStatus.BAD_REQUEST else daemon.failed_login_log).admit()
        if skipped is None:
            return
        # In the next iteration of the loop, in the order of the answers. Callbacks of this iteration run first: the
        # answer is sent, and the agent gets its request.
        told = (call.who, endpoint.method, endpoint.path, status, call.address, call.session_id or None, skipped)
        asyncio.get_running_loop().call_soon(audit, *told)


def _check_role(endpoint: Endpoint, call: Call) -> None:
    who = call.who
    if endpoint.role is None:
        return
    if not who.role.covers(endpoint.role):
        raise Forbidden(f"this needs the role {endpoint.role.value!r}; the token has {who.role.value!r}")
    if who.session_id is None:
        return
    if "session_id" not in call.request.path_params:
        if not endpoint.narrows:
            raise Forbidden("this token is for one session only")
    elif not who.may_touch(call.session_id):
        raise Forbidden("this token is for another session")


def _query(endpoint: Endpoint, request: Request) -> Any:
    if endpoint.query is None:
        return None
    given = dict(request.query_params) if request.scope.get("query_string") else {}
    try:
        return msgspec.convert(given, type=endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a query parameter is not as documented: {error}") from None


async def _body(call: Call) -> Any:
    endpoint, daemon, who = call.endpoint, call.daemon, call.who
    is_stranger = endpoint.role is None
    bound = BodyBound.of(BodyKind.STRANGERS if is_stranger else endpoint.body, daemon.limits)
    # A body that is too large is rejected before any of it is read.
    declared = call.headers.get("content-length", "")
    bound.check(int(declared) if declared.isdigit() else 0)
    body = b""
    with daemon.tokens.closing(who) as credential:
        body = await daemon.bodies.read(call.request.stream(), bound, who, is_stranger=is_stranger)
    if credential.cancelled_caught:
        raise _ended()
    # The body may have arrived slowly, and the credential may have ended at the moment it was complete.
    if not daemon.tokens.is_valid(who):
        raise _ended()
    return body if endpoint.takes is bytes else _decoded(endpoint, call.headers, body)


def _decoded(endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Any:
    if not body and endpoint.optional_body:
        body = b"{}"
    elif not body:
        raise BadRequest("the request has no body; send a JSON object")
    else:
        media = headers.get("content-type", "").split(";")[0].strip().lower()
        # A page of another origin can send a form or plain text without a preflight, but not JSON.
        if media != "application/json" and not media.endswith("+json"):
            raise UnsupportedMedia("send the body as application/json", media_type=media or None)
    try:
        return endpoint.decoder.decode(body)
    except msgspec.ValidationError as error:
        # The text names a path and types of our own, but no value of the caller.
        raise BadRequest(f"the body is not as documented: {error}; /openapi.json has its shape") from None
    except UNREADABLE:
        raise BadRequest("Invalid JSON in request body") from None


def _encode(body: Struct | Mapping[str, Any] | None) -> bytes:
    return b"" if body is None else msgspec.json.encode(body)


async def refuse(send: Send, error: TurnwireError, more: Mapping[str, str] = {}) -> None:
    """Write an error as the whole answer, with `more` headers."""
    status, headers, body = problem_of(error)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    headers |= more
    await _write(send, status, headers, msgspec.json.encode(body), _PROBLEM)


_JSON, _PROBLEM = (b"content-type", b"application/json"), (b"content-type", b"application/problem+json")
_NOT_STORED = (b"cache-control", b"no-store")


async def _write(
    send: Callable[[Any], Awaitable[None]],
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    media: tuple[bytes, bytes] = _JSON,
) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if body:
        raw.append(media)
    if status != 204:
        raw.append((b"content-length", b"%d" % len(body)))
    raw.append(_NOT_STORED)
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})
