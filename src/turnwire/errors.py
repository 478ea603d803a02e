"""The one exception tree. What each error is to the outside is one table, in `turnwire.problems`.

    TurnwireError                  code, retryable, context (small, safe to show)
    ├─ ProtocolError
    │  ├─ LocalProtocolError       our caller asked for something that is not legal now
    │  └─ RemoteProtocolError      the peer broke ACP or JSON-RPC
    ├─ SessionError
    │  ├─ SessionNotFound
    │  ├─ SessionExists
    │  ├─ SessionClosed
    │  ├─ ContentRefused           a prompt that the agent does not take
    │  ├─ SessionBusy              a turn runs and the caller did not want to wait
    │  ├─ QueueFull
    │  ├─ IdempotencyConflict      the same key with another body
    │  ├─ PromptNotFound
    │  ├─ PromptNotQueued          too late to edit, move or remove
    │  ├─ PermissionNotFound
    │  ├─ InvalidOption
    │  ├─ InvalidMode              the agent does not offer it; allowed
    │  ├─ InvalidMetadata          a title that is too long or cannot be shown
    │  ├─ SessionLimitReached      too many sessions are open
    │  └─ RequestRefused           the agent asked for a file or a terminal it cannot have: jsonrpc, uri
    ├─ LogError
    │  ├─ AppendConflict           somebody else wrote first
    │  ├─ PositionLost             the cursor cannot be honoured (epoch, trimmed, ahead)
    │  ├─ LogUnavailable           the log cannot take or give anything now
    │  │  ├─ LogLocked
    │  │  └─ LogFull
    │  ├─ LogCorrupt
    │  └─ LogTooNew                written by a newer turnwire
    ├─ LinkError
    │  ├─ LinkClosed               we closed it
    │  └─ LinkBroken               the peer is gone
    ├─ AgentError
    │  ├─ AgentLaunchFailed        reason, definite
    │  ├─ AgentUnavailable         it keeps failing and is not started again for a while
    │  └─ AuthRequired             it wants its user to log in first; methods
    ├─ ClientError                 what the SDK tells its caller
    │  ├─ TurnError                a turn ended with an error: reason, exit_code, signal, stderr_tail
    │  ├─ DaemonUnreachable        no daemon answers at its URL, or its answer was lost
    │  ├─ DaemonRefused            for a reason that this version does not know: status, reason
    │  └─ ClientClosed
    ├─ RequestError                an HTTP request was refused before it reached a session
    │  ├─ BadRequest               its body, query or headers are not as documented
    │  ├─ HeadersTooLarge
    │  ├─ UnsupportedMedia
    │  ├─ NotAcceptable            it takes nothing that this can be answered with
    │  ├─ Unauthenticated          no credential, or not a valid one
    │  ├─ Forbidden                the credential does not allow this, or Host or Origin is not ours
    │  ├─ NotFound                 there is no such thing here
    │  ├─ MethodNotAllowed         the path is there, and not for this
    │  ├─ UnknownClient            the session does not know this client id
    │  ├─ TooManyRequests
    │  ├─ ConnectionLimitReached   too many ACP connections are open
    │  └─ ShuttingDown             the daemon is about to stop and takes nothing new
    ├─ LimitExceeded               limit, value
    │  └─ FrameTooLarge
    └─ ConfigError                 raised before anything starts

Takes nothing from other modules. Never carries a payload, a path of a peer or the text of a foreign
exception: what is in `context` may be shown to anyone. Stop reasons and cancellation are results, not errors.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

Shown: TypeAlias = str | int | float | bool | tuple[str, ...] | None
"""What may be in the context of an error."""


class TurnwireError(Exception):
    """The root. `str(error)` says what is wrong and what to do about it."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Shown) -> None:
        super().__init__(message)
        self.context = context


class ProtocolError(TurnwireError):
    """A rule of ACP or JSON-RPC was broken."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that is not legal now. Nothing was changed."""

    code = "not_legal_now"


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not ACP or not JSON-RPC."""

    code = "peer_broke_protocol"


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


class LogError(TurnwireError):
    """The event log refused or failed. What it had acknowledged before is still there."""

    code = "log_error"


class AppendConflict(LogError):
    code = "append_conflict"
    retryable = True


class PositionLost(LogError):
    """`context["why"]` is `epoch`, `trimmed` or `ahead`."""

    code = "position_lost"


class LogUnavailable(LogError):
    code = "log_unavailable"
    retryable = True


class LogLocked(LogUnavailable):
    code = "log_locked"


class LogFull(LogUnavailable):
    code = "log_full"


class LogCorrupt(LogError):
    code = "log_corrupt"


class LogTooNew(LogError):
    code = "log_too_new"


class LinkError(TurnwireError):
    """A link to a peer cannot carry frames."""

    code = "link_error"


class LinkClosed(LinkError):
    code = "link_closed"


class LinkBroken(LinkError):
    code = "link_broken"
    retryable = True


class AgentError(TurnwireError):
    """An agent's process cannot do its work."""

    code = "agent_error"


class AgentLaunchFailed(AgentError):
    """No agent could be started. `definite` says that the program surely never ran."""

    code = "agent_launch_failed"

    def __init__(
        self,
        message: str,
        *,
        definite: bool,
        agent_error: bytes | None = None,
        **context: Shown,
    ) -> None:
        super().__init__(message, definite=definite, **context)
        self.definite = definite
        self.agent_error = agent_error
        """The JSON-RPC error of an agent that was there and refused. Its words, so not part of `context`."""


class AgentUnavailable(AgentError):
    """Starting the agent has failed too often; `context` says when it is tried again."""

    code = "agent_unavailable"
    retryable = True


class ClientError(TurnwireError):
    """The SDK cannot give its caller what was asked for."""

    code = "client_error"


class TurnError(ClientError):
    """A turn ended with an error. `reason` is the stable code of its end, such as `agent_exited`.

    What the agent said of it (`stderr_tail`, `agent_error`) is for the caller and stays out of `context`.
    """

    code = "turn_failed"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        prompt_id: str,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr_tail: str | None = None,
        agent_error: bytes | None = None,
    ) -> None:
        super().__init__(message, reason=reason, prompt_id=prompt_id, exit_code=exit_code, signal=signal)
        self.reason = reason
        self.prompt_id = prompt_id
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = stderr_tail
        self.agent_error = agent_error
        """The error object of the agent as JSON."""


class DaemonUnreachable(ClientError):
    """Nothing answers at the daemon's URL. What was asked may have been done if only the answer was lost."""

    code = "daemon_unreachable"
    retryable = True


class DaemonRefused(ClientError):
    """The daemon, or something in front of it, refused with a code that is not known here."""

    code = "daemon_refused"


class ClientClosed(ClientError):
    code = "client_closed"


class AuthRequired(AgentError):
    """The agent opens no session before its user has logged in by one of `methods`, given as it offered them."""

    code = "auth_required"

    def __init__(self, message: str, *, methods: bytes = b"[]") -> None:
        super().__init__(message)
        self.methods = methods


class RequestError(TurnwireError):
    """A request was refused before it reached a session. Nothing was changed."""

    code = "request_error"


class BadRequest(RequestError):
    code = "bad_request"


class HeadersTooLarge(RequestError):
    code = "headers_too_large"


class UnsupportedMedia(RequestError):
    code = "unsupported_media_type"


class NotAcceptable(RequestError):
    code = "not_acceptable"


class Unauthenticated(RequestError):
    code = "unauthenticated"


class Forbidden(RequestError):
    code = "forbidden"


class NotFound(RequestError):
    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class UnknownClient(RequestError):
    code = "invalid_client_id"


class TooManyRequests(RequestError):
    code = "rate_limited"
    retryable = True


class ConnectionLimitReached(RequestError):
    code = "connection_limit_exceeded"
    retryable = True


class ShuttingDown(RequestError):
    code = "shutting_down"
    retryable = True


class LimitExceeded(TurnwireError):
    """A bound of `turnwire.limits` was passed; `context` names it."""

    code = "limit_exceeded"


class FrameTooLarge(LimitExceeded):
    code = "frame_too_large"


class ConfigError(TurnwireError):
    """A setting makes no sense. Raised before anything starts."""

    code = "config_error"
