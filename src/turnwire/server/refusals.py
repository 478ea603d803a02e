"""An error as an HTTP answer: the members of RFC 9457 beside the flat `error` and `code` that older clients read.

Takes a `TurnwireError`; gives status, headers and body by the error's class. Never shows
the text of an exception that is not ours.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from turnwire.errors import AgentLaunchFailed, AuthRequired, TurnwireError

RETRY_AFTER_S = 1
"""What `Retry-After` says of everything that may succeed a moment later."""


def problem_of(error: TurnwireError) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and body."""
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
