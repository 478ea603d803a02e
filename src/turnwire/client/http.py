"""HTTP access to a daemon: its address, the credential, retries and error mapping.

A request that may have taken effect is never repeated, unless the caller declares it idempotent. The credential is
sent to this one address only. An error of the daemon is raised as the class that it has inside one process, found
by its `code`; an unknown code becomes `DaemonRefused`. The text of a body that is not a problem of the daemon's
contract is not shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Container, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import quote, urlsplit

import anyio
import httpx
import msgspec

from turnwire.client.arguments import to_json, to_text
from turnwire.clock import Clock, SystemClock
from turnwire.errors import (
    AgentError,
    AgentFailure,
    AgentLaunchFailed,
    AuthRequired,
    ClientClosed,
    ConfigError,
    DaemonRefused,
    DaemonUnreachable,
    Forbidden,
    ModelFailed,
    NotFound,
    RemoteProtocolError,
    RequestRefused,
    SessionError,
    Shown,
    TooManyRequests,
    TurnError,
    TurnwireError,
    Unauthenticated,
    tree,
)
from turnwire.hosting.address import is_loopback
from turnwire.hosting.backoff import Backoff, Chance, random
from turnwire.hosting.local_daemon import TOKEN_FILE
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import UNREADABLE

TOKEN_VARIABLE: Final = "TURNWIRE_TOKEN"

ANSWER_S: Final = 60.0
"""Timeout in seconds. A daemon answers at once, except that a new session waits for its agent: 10 s or more."""
CONNECT_S: Final = 10.0
FIRST_BYTE_S: Final = 10.0
"""A stream begins at once, so a later first byte means that an intermediary holds it back."""
HEARTBEATS_MISSED: Final = 3
"""Number of missed heartbeats after which a silent stream is dead."""
_IDLE_S: Final = 2.0
"""Shorter than any server's keep-alive, so that no connection is used while the server closes it."""
_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 2.0

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
_NOTHING_DONE = frozenset({429, 503})
"""Statuses that guarantee that the request had no effect."""

_Shape = TypeVar("_Shape")


_Context: TypeAlias = dict[str, str | int | float | bool | None]

_OWN_MEMBERS: Final = frozenset({"error", "code", "type", "title", "status", "detail", "message", "self"})
"""Members of every problem, and members that would collide with arguments."""
_NOT_OVER_HTTP: Final = (TurnError, RequestRefused, AgentFailure, ModelFailed)
"""Ends of turns, answers to agents, and errors that only agents raise: none is the error of a request."""
_MOST_RETRY_AFTER_S: Final = 3600.0
_PASSING: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Transient statuses of servers and proxies."""


_BY_CODE: Final = {each.code: each for each in tree() if each not in _NOT_OVER_HTTP}
_BY_STATUS: Final[Mapping[int, type[TurnwireError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    429: TooManyRequests,
}


class HttpAnswer(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes

    def read(self, shape: type[_Shape]) -> _Shape:
        """Decode the body as JSON of this type. Raises `RemoteProtocolError`."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except UNREADABLE:
            raise RemoteProtocolError(
                "the answer is not as the daemon's contract promises; is there a turnwire daemon at this URL?"
            ) from None


class Capabilities(msgspec.Struct):
    """The capabilities that a daemon reports."""

    features: tuple[str, ...] = ()


class Http:
    """Requests to one daemon. It owns its connections; close it."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        chance: Chance = random,
    ) -> None:
        base = checked_url(url)
        self.limits = limits or Limits()
        self.clock = clock or SystemClock()
        self.chance = chance
        self._shown = base
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        self._had_token = bool(token)
        self._capabilities: Capabilities | None = None
        self._is_closed = False
        self._client = httpx.AsyncClient(
            base_url=base,
            headers=_headers(token),
            # No certificates are loaded for plain HTTP: loading takes longer than the request.
            verify=httpx.create_ssl_context() if base.startswith("https:") else False,
            trust_env=not is_loopback(base),
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_IDLE_S),
        )

    async def aclose(self) -> None:
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            await self._client.aclose()

    async def capabilities(self, *, patient: bool = True) -> Capabilities:
        """Return the daemon's capabilities, requested once. Raises `DaemonUnreachable`, `Unauthenticated`."""
        if self._capabilities is None:
            try:
                answer = await self.ask("GET", "/capabilities", repeatable=True, patient=patient)
                self._capabilities = answer.read(Capabilities)
            except NotFound:
                self._capabilities = Capabilities()
        return self._capabilities

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        patient: bool = True,
        answer_s: float | None = ANSWER_S,
        accepts: Container[int] = (),
    ) -> HttpAnswer:
        """Send the request and retry for up to `request_retry_s`; an impatient caller sends it once.

        An answer with a status in `accepts` is returned although it reports a failure.

        A request whose answer was lost is sent again only if it is `repeatable`. Raises the daemon's error,
        `DaemonUnreachable`, and `ClientClosed`.
        """
        request = self._request(method, path, body, headers, answer_s)
        pause = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S, self.chance)
        give_up_at = self.clock.monotonic() + (self.limits.request_retry_s if patient else 0.0)
        while True:
            self._check_open()
            try:
                answer = await self._client.send(request)
            except httpx.HTTPError as error:
                self._check_open()
                refusal: TurnwireError = self._unreachable(error)
                again = repeatable or isinstance(error, _NOT_SENT)
            else:
                if answer.is_success or answer.status_code in accepts:
                    return HttpAnswer(answer.status_code, answer.content)
                refusal = self._refusal(answer, answer.content)
                again = is_passing(refusal) and (repeatable or answer.status_code in _NOTHING_DONE)
            wait_s = max(pause.next_s(), retry_after_of(refusal))
            if not again or self.clock.monotonic() + wait_s >= give_up_at:
                raise refusal
            await self.clock.sleep(wait_s)

    async def stream(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncGenerator[bytes]:
        """Yield the body of an answer as it arrives. Close it when done (`aclosing`).

        Raises the daemon's error, `DaemonUnreachable` if the connection is lost or silent, and `ClientClosed`.
        """
        self._check_open()
        silence_s = HEARTBEATS_MISSED * self.limits.heartbeat_s
        request = self._request("GET", path, None, headers, silence_s)
        response: httpx.Response | None = None
        try:
            with anyio.fail_after(min(FIRST_BYTE_S, silence_s)):
                response = await self._client.send(request, stream=True)
                if not response.is_success:
                    raise self._refusal(response, await response.aread())
            async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_raw())) as pieces:
                with anyio.fail_after(min(FIRST_BYTE_S, silence_s)):
                    piece = await anext(pieces, None)
                while piece is not None:
                    yield piece
                    piece = await anext(pieces, None)
        except (httpx.HTTPError, TimeoutError) as error:
            self._check_open()
            raise self._unreachable(error) from None
        finally:
            if response is not None:
                with anyio.CancelScope(shield=True):
                    await response.aclose()

    def _request(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None, read_s: float | None
    ) -> httpx.Request:
        named = dict(headers or {})
        content: bytes | None = None
        if body is not None:
            content = bytes(to_json(body, "what is sent to the daemon"))
            named["Content-Type"] = "application/json"
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=read_s, pool=None)
        return self._client.build_request(method, path, content=content, headers=named, timeout=timeout)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed; open another, and go on with the session there")

    def _refusal(self, answer: httpx.Response, body: bytes) -> TurnwireError:
        refusal = refusal_of(answer.status_code, answer.headers.get("retry-after"), body)
        if isinstance(refusal, Unauthenticated):
            # The daemon cannot know if the token was sent on purpose, nor where the user gets one.
            return no_token(self._shown, had_one=self._had_token, **refusal.context)
        return refusal

    def _unreachable(self, error: Exception) -> DaemonUnreachable:
        """Describe the failure in fixed words: the text of a foreign exception may contain private data."""
        kind = type(error).__name__
        if isinstance(error, _NOT_SENT):
            return DaemonUnreachable(
                f"no daemon answers at {self._shown}; start one with `turnwire serve`, or check the URL",
                reason=kind,
            )
        return DaemonUnreachable(
            f"the connection to the daemon at {self._shown} was lost before its answer came; look at the session to"
            " see what was done, then try again",
            reason=kind,
        )


def checked_url(url: str) -> str:
    """Return the daemon's address without a trailing slash. Raises `ConfigError` if it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{url!r} is no URL; give one such as http://127.0.0.1:4170") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError("a daemon's URL is like http://127.0.0.1:4170 or https://example.org/turnwire")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("a daemon's URL has no user, query or fragment; give the token as `token=…`")
    return url.rstrip("/")


def no_token(url: str, *, had_one: bool, **context: Shown) -> Unauthenticated:
    """Return the error for a missing or invalid token: it names the problem, and where to get a token."""
    wrong = (
        f"{url} rejected the token: it was mistyped, revoked or has expired, or it is another daemon's"
        if had_one
        else f"the daemon at {url} needs a token, and none was given"
    )
    return Unauthenticated(
        f"{wrong}.\n  On its machine, `turnwire token create NAME` makes one. Programs of the daemon's user there"
        f" need none: they read {TOKEN_FILE} in its data folder. A restart of the daemon recreates it.\n"
        f"  Give it in {TOKEN_VARIABLE}, as `token=…` in a program, or with --token-file FILE.",
        **context,
    )


def segment(text: str) -> str:
    """Return an id as one segment of a path. Raises `LocalProtocolError` if it is not text."""
    return quote(to_text(text, "an id"), safe="")


def _headers(token: str | None) -> dict[str, str]:
    # An intermediary that compresses a stream would buffer it.
    headers = {"Accept-Encoding": "identity", "User-Agent": "turnwire"}
    if token:
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError("the token has characters that no token has; copy it again")
        headers["Authorization"] = f"Bearer {token}"
    return headers


def refusal_of(status: int, retry_after: str | None, body: bytes) -> TurnwireError:
    """Return the error of a response. `context` has its `status`, and its `retry_after` in seconds if any."""
    members = _members(body)
    code = members.get("code")
    found = _BY_CODE.get(code) if isinstance(code, str) else None
    context: _Context = {
        _snake(name): value
        for name, value in members.items()
        if name not in _OWN_MEMBERS and isinstance(value, str | int | float | bool)
    }
    context["status"] = status
    seconds = _seconds(retry_after)
    if seconds is not None:
        context["retry_after"] = seconds
    text = members.get("detail") or members.get("error")
    message = text if isinstance(text, str) else _what_to_do(status)
    return _make(found or _BY_STATUS.get(status, DaemonRefused), message, context, members)


def is_passing(error: TurnwireError) -> bool:
    """Return whether the same request may succeed a moment later, whatever happens to any session or agent."""
    if isinstance(error, DaemonRefused):
        return error.context.get("status") in _PASSING
    return error.retryable and not isinstance(error, SessionError | AgentError)


def retry_after_of(error: TurnwireError) -> float:
    """Return how long the daemon asks to wait."""
    seconds = error.context.get("retry_after")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _make(kind: type[TurnwireError], message: str, context: _Context, members: Mapping[str, Any]) -> TurnwireError:
    if kind is AuthRequired:
        return AuthRequired(message, methods=msgspec.json.encode(members.get("methods", [])))
    if kind is AgentLaunchFailed:
        said, definite = members.get("agentError"), context.pop("definite", False)
        agent_error = None if said is None else msgspec.json.encode(said)
        return AgentLaunchFailed(message, definite=bool(definite), agent_error=agent_error, **context)
    if kind is DaemonRefused:
        code = members.get("code")
        context["reason"] = code if isinstance(code, str) else None
    return kind(message, **context)


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return {}


def _seconds(text: str | None) -> float | None:
    """Parse `Retry-After` in seconds; the date form is ignored, because clocks differ."""
    if text is None or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text.strip()):
        return None
    return min(float(text), _MOST_RETRY_AFTER_S)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _what_to_do(status: int) -> str:
    if 300 <= status < 400:
        return f"the daemon's URL redirects elsewhere (HTTP {status}); give the URL it redirects to"
    return f"the request was refused with HTTP {status} and no reason; is there a turnwire daemon at this URL?"
