"""Errors as HTTP answers: the members of RFC 9457, and the flat `error` and `code` that older clients read.

The text of an exception that is not a `TurnwireError` is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw
from starlette.types import Receive, Scope, Send

from turnwire.errors import AgentLaunchFailed, AuthRequired, TurnwireError, Unauthenticated

RETRY_AFTER_S = 1
"""The value of `Retry-After` for errors that may succeed a moment later."""
POLICY_VIOLATION = 1008
"""The code that closes a socket that was never opened."""


def problem_of(error: TurnwireError) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return the status, headers and body for an error."""
    status = error.http_status
    text = str(error)
    body: dict[str, Any] = {_camel(name): value for name, value in error.context.items() if value is not None}
    body |= {
        "error": text,
        "code": error.code,
        "type": f"urn:turnwire:problem:{error.code}",
        "title": error.code.replace("_", " "),
        "status": status,
        "detail": text,
    }
    if isinstance(error, AuthRequired):
        body["methods"] = Raw(error.methods)
    if isinstance(error, AgentLaunchFailed) and error.agent_error is not None:
        body["agentError"] = Raw(error.agent_error)
    headers: dict[str, str] = {}
    if error.retryable:
        headers["Retry-After"] = str(error.context.get("retry_after") or RETRY_AFTER_S)
    return status, headers, body


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


async def refuse_entry(
    scope: Scope, receive: Receive, send: Send, error: TurnwireError, shared: Mapping[str, str] = {}
) -> None:
    """Answer a request, or an upgrade that was not accepted, with an error."""
    status, headers, body = problem_of(error)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    headers |= {"Content-Type": "application/problem+json", **shared}
    await answer_entry(scope, receive, send, status, headers, msgspec.json.encode(body))


async def answer_entry(
    scope: Scope, receive: Receive, send: Send, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """Answer a request or an upgrade before the application gets it."""
    raw = [*raw_headers(headers), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        kind = "websocket.http.response"
        if kind not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
