"""Errors of a session: a request about it was refused, and nothing was changed. See `turnwire.errors`."""

from __future__ import annotations

from turnwire.errors.base import TurnwireError


class SessionError(TurnwireError):
    """A request about a session was refused. Nothing was changed."""

    code = "session_error"


class SessionNotFound(SessionError):
    code = "session_not_found"


class SessionExists(SessionError):
    code = "session_id_conflict"


class SessionClosed(SessionError):
    code = "session_closed"


class ContentRefused(SessionError):
    code = "content_refused"


class SessionBusy(SessionError):
    code = "busy"
    retryable = True


class QueueFull(SessionError):
    code = "prompt_queue_full"
    retryable = True


class IdempotencyConflict(SessionError):
    code = "idempotency_conflict"


class PromptNotFound(SessionError):
    code = "prompt_not_found"


class PromptNotQueued(SessionError):
    code = "prompt_not_queued"


class PermissionNotFound(SessionError):
    code = "permission_not_found"


class InvalidOption(SessionError):
    code = "invalid_option_id"


class InvalidMode(SessionError):
    code = "invalid_approval_mode"


class InvalidMetadata(SessionError):
    code = "invalid_metadata"


class SessionLimitReached(SessionError):
    code = "session_limit_exceeded"
    retryable = True


class RequestRefused(SessionError):
    """The agent wanted a file or a terminal. `context` has `jsonrpc`, the code to answer with, and `reason`.

    `uri` names the file that is missing. It is for the agent, which named it first, and stays out of `context`.
    """

    code = "request_refused"

    def __init__(self, message: str, *, jsonrpc: int, reason: str, uri: str | None = None) -> None:
        super().__init__(message, jsonrpc=jsonrpc, reason=reason)
        self.jsonrpc = jsonrpc
        self.reason = reason
        self.uri = uri
