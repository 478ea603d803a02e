"""One route as a row: what it takes, gives, refuses, and who may call it; and how a request to it is served.

The OpenAPI document, the check of roles and bodies, and the audit read the same row, so none of them can differ
from what the code does. Nothing is decided about a session: `act` translates a call into an input or a view.

A request runs under its credential: when that ends, the request ends for its caller at once, with 401 or in the
middle of its answer. What it was about to change is not changed if the body was not whole yet; what it had begun to
change is done to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

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
    TurnwireError,
    Unauthenticated,
    UnsupportedMedia,
)
from turnwire.ids import ClientId, SessionId
from turnwire.server.access.identity import ANYBODY, IDENTITY, READING, Identity, Role, audit
from turnwire.server.access.tokens import Running
from turnwire.server.bodies import BodyBound, BodyKind
from turnwire.server.daemon import Daemon
from turnwire.server.refusals import problem_of
from turnwire.wire.jsonrpc import UNREADABLE

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How a connection begins that speaks HTTP/2."""
ABORT = "turnwire.abort"
"""The ASGI extension by which our server drops an answer with all that it has not sent."""
SEND_ALL = "turnwire.send_all"
"""The ASGI extension by which our HTTP/1.1 server writes many messages to a WebSocket in one go: `call` waits for
room, `at_once` says whether there was any."""
WHOLE_BODY = "turnwire.whole_body"
"""The ASGI extension by which our HTTP/1.1 server gives a body that has come with its head."""
REACHED = "turnwire.reached"
"""The ASGI extension by which our HTTP/1.1 server tells how far an answer has come (`Reached`)."""

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

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """Reads what it takes."""
        return msgspec.json.Decoder(self.takes)

    @cached_property
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
    """One request to an endpoint. What acts on it finds it checked."""

    def __init__(self, endpoint: Endpoint, daemon: Daemon, scope: Scope, receive: Receive) -> None:
        self.endpoint = endpoint
        self.daemon = daemon
        self.request = Request(scope, receive)
        self.who: Identity = scope.get(IDENTITY, ANYBODY)
        self.headers: dict[str, str] = {}
        """By name, in lower case. Of those that came more than once, the first."""
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        self.extensions: Mapping[str, Any] = scope.get("extensions") or {}
        self.credential: RunningRequest = _NOTHING_RUNS
        """What the request runs under; cancelled when its credential ends."""
        self.body: Any = None
        """Of the type that the endpoint takes."""
        self.query: Any = None
        """Of the struct that the endpoint names."""
        self.session_id = SessionId(scope["path_params"].get("session_id", ""))
        """Empty for a route that names none."""
        named = (self.headers.get(name) for name in CLIENT_ID_HEADERS)
        client_id = next((each for each in named if each is not None), None)
        self.client_id = None if client_id is None else ClientId(client_id)
        """The client id that the caller names, not yet known to be the session's. See `Clients.known`."""

    @property
    def address(self) -> str | None:
        """Where it comes from, behind the proxies that are trusted."""
        client = self.request.scope.get("client")
        return None if client is None else client[0]

    async def left(self) -> None:
        """Return once the client is gone. What it sends meanwhile means nothing."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


class RunningRequest(Running, Protocol):
    """What a request is to its credential."""

    @property
    def cancel_called(self) -> bool:
        """Whether the credential has ended."""
        ...


class _NothingRuns:
    """What a request runs under while it is looked at: nothing waits then, so nothing can end."""

    cancel_called = False

    def cancel(self) -> None: ...


_NOTHING_RUNS = _NothingRuns()


async def serve_path(
    daemon: Daemon, endpoints: Mapping[str, Endpoint], scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request to a path with these endpoints, by their methods."""
    method = scope["method"]
    endpoint = endpoints.get("GET" if method == "HEAD" else method)
    if endpoint is not None:
        await _serve(Call(endpoint, daemon, scope, receive), _Answer(send))
    else:
        allowed = ", ".join(sorted(endpoints))
        await refuse(send, MethodNotAllowed(f"this path takes {allowed}"), {"Allow": allowed})


class _Answer:
    """What has been written of the answer to one request."""

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
    """Answer one request: check, act, write. What is refused is written as a problem; nothing escapes."""
    try:
        await _answer(call, answer)
    except ClientDisconnect:
        return
    except TurnwireError as error:
        if answer.status is None:
            await refuse(answer.send, error)
    except Exception:  # whatever it is, the request must be answered
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
        if endpoint.stream is not None:
            await endpoint.stream(call, answer.send)
        else:
            assert endpoint.act is not None, "an endpoint acts or streams"
            await _reply(answer, endpoint, await endpoint.act(call))
    if credential.cancelled_caught and answer.status is None:
        raise _ended()
    if credential.cancelled_caught and not answer.is_whole:
        await hang_up(call.request)


def _ended() -> Unauthenticated:
    return Unauthenticated("this credential was revoked or has expired meanwhile; use another one")


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


class _Change:
    """A change under way. It is made to its end; if its credential ends meanwhile, its caller is told at once.

    It runs in the request's own task, which no server of ours cancels while the daemon serves.
    """

    def __init__(self, call: Call, answer: _Answer) -> None:
        self._call = call
        self._answer = answer
        self._told: anyio.Event | None = None
        """Set when the caller has heard that its credential has ended."""

    @property
    def cancel_called(self) -> bool:
        return self._told is not None

    def cancel(self) -> None:
        """The credential has ended."""
        if self._told is None and not self._answer.is_whole:
            self._told = anyio.Event()
            self._call.daemon.tasks.start_soon(self._tell, self._told, self._answer.status is None)
            # Nothing else is written from here on.
            self._answer.status = self._answer.status or Unauthenticated.http_status

    async def run(self, act: Act) -> None:
        """Make the change and answer the request."""
        call, tokens = self._call, self._call.daemon.tokens
        call.credential = self
        tokens.enter(call.who, self)
        try:
            reply = await act(call)
            try:
                if self._told is None:
                    await _reply(self._answer, call.endpoint, reply)
            finally:
                # A reply that nobody writes is as good as written.
                if reply.then is not None:
                    reply.then()
        finally:
            tokens.leave(call.who, self)
            if self._told is not None:
                await self._told.wait()

    async def _tell(self, told: anyio.Event, is_unanswered: bool) -> None:
        try:
            if is_unanswered:
                await refuse(self._answer.send, _ended())
            else:
                await hang_up(self._call.request)
        finally:
            told.set()


async def _reply(answer: _Answer, endpoint: Endpoint, reply: Reply) -> None:
    await _write(answer.send, reply.status or endpoint.status, reply.headers, _encode(reply.body))


def _record(call: Call, status: int) -> None:
    endpoint = call.endpoint
    call.daemon.metrics.request(endpoint.method, endpoint.path, status)
    if endpoint.tells_who and endpoint.method not in READING:
        # In the next round of the loop, in the order of the answers. What waits in this one goes first: the answer
        # goes out, and the agent is asked.
        told = (call.who, endpoint.method, endpoint.path, status, call.address, call.session_id or None)
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
    if not request.scope.get("query_string"):
        return endpoint.query()
    try:
        return msgspec.convert(dict(request.query_params), type=endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a query parameter is not as documented: {error}") from None


async def _body(call: Call) -> Any:
    endpoint, daemon, who = call.endpoint, call.daemon, call.who
    is_stranger = endpoint.role is None
    is_here = call.extensions.get(WHOLE_BODY)
    whole: bytes | None = None if is_here is None else is_here["call"]()
    bound = BodyBound.of(BodyKind.STRANGERS if is_stranger else endpoint.body, daemon.limits)
    if whole is not None:
        body = await daemon.bodies.read(whole, bound, who, is_stranger=is_stranger)
    else:
        # One that is too large is refused before any of it is read.
        declared = call.headers.get("content-length", "")
        bound.check(int(declared) if declared.isdigit() else 0)
        body = b""
        with daemon.tokens.closing(who) as credential:
            body = await daemon.bodies.read(call.request.stream(), bound, who, is_stranger=is_stranger)
        if credential.cancelled_caught:
            raise _ended()
    # The body may have taken its time, and the credential may have ended in the very moment in which it was in.
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
        # A page of another origin can send a form or plain text without asking; JSON it cannot.
        if media != "application/json" and not media.endswith("+json"):
            raise UnsupportedMedia("send the body as application/json", media_type=media or None)
    try:
        return endpoint.decoder.decode(body)
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
