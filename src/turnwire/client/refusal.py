"""A refusal over HTTP as the exception that the same refusal is inside one process.

Takes the status and the body of an answer; gives an error of `turnwire.errors`, found by its `code`. A code that is
not known here becomes `DaemonRefused`. Never shows text of a body that is no problem of the daemon's contract.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from turnwire.errors import (
    AgentError,
    AgentFailure,
    AgentLaunchFailed,
    AuthRequired,
    DaemonRefused,
    Forbidden,
    ModelFailed,
    NotFound,
    RequestRefused,
    SessionError,
    TooManyRequests,
    TurnError,
    TurnwireError,
    Unauthenticated,
    tree,
)
from turnwire.wire.jsonrpc import UNREADABLE

_Context: TypeAlias = dict[str, str | int | float | bool | None]

_OWN_MEMBERS: Final = frozenset({"error", "code", "type", "title", "status", "detail", "message", "self"})
"""What every problem has, and what would be taken for another argument."""
_NOT_OVER_HTTP: Final = (TurnError, RequestRefused, AgentFailure, ModelFailed)
"""A turn's end, an answer to an agent, and what only an agent raises: none of them refuses a request."""
_MOST_RETRY_AFTER_S: Final = 3600.0
_PASSING: Final = frozenset({408, 425, 429, 502, 503, 504})
"""What servers and proxies say of a moment that passes."""


_BY_CODE: Final = {each.code: each for each in tree() if each not in _NOT_OVER_HTTP}
_BY_STATUS: Final[Mapping[int, type[TurnwireError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    429: TooManyRequests,
}


def refusal_of(status: int, retry_after: str | None, body: bytes) -> TurnwireError:
    """The error that an answer tells of. `context` has its `status`, and its `retry_after` in seconds if any."""
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
    """Whether the same request may be taken a moment later, whatever becomes of any session or agent."""
    if isinstance(error, DaemonRefused):
        return error.context.get("status") in _PASSING
    return error.retryable and not isinstance(error, SessionError | AgentError)


def retry_after_of(error: TurnwireError) -> float:
    """How long the daemon asks to wait."""
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
    """`Retry-After` in its form of seconds; a date is left alone, because clocks differ."""
    if text is None or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text.strip()):
        return None
    return min(float(text), _MOST_RETRY_AFTER_S)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _what_to_do(status: int) -> str:
    if status == 401:
        return "the daemon wants a token; give `token=…` or set TURNWIRE_TOKEN"
    if 300 <= status < 400:
        return f"the daemon's URL redirects elsewhere (HTTP {status}); give the URL it redirects to"
    return f"the request was refused with HTTP {status} and no reason; is there a turnwire daemon at this URL?"
