"""Every exception of turnwire.

`code` names an error for programs; `http_status`, `jsonrpc_code` and `exit_status` (sysexits) are its numbers on
each interface. A class that does not set one of them inherits it. Codes are part of the REST contract and do not
change.

The content of `context` may be shown to any client: it never has a payload, a path of a peer or the text of a
foreign exception. Stop reasons and cancellation are results, not errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias, cast

Shown: TypeAlias = str | int | float | bool | tuple[str, ...] | None
"""Types of values in the context of an error."""

# ACP's codes; all other modules use those of `wire.jsonrpc`, a higher layer than this module.
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603
_AUTH_REQUIRED, _NOT_FOUND = -32000, -32002
# sysexits.h, by which shells and supervisors decide about retries.
_DATA, _NO_INPUT, _UNAVAILABLE, _SOFTWARE = 65, 66, 69, 70
_IO, _TEMPORARY, _PROTOCOL, _NO_PERMISSION, _CONFIG = 74, 75, 76, 77, 78


class TurnwireError(Exception):
    """The root. `str(error)` states the problem and the remedy."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    jsonrpc_code: ClassVar[int] = _INTERNAL
    exit_status: ClassVar[int] = _SOFTWARE
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Shown) -> None:
        super().__init__(message)
        self.context = context


class ProtocolError(TurnwireError):
    """A rule of ACP or JSON-RPC was broken."""

    code = "protocol_error"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class LocalProtocolError(ProtocolError):
    """Our own side requested something that is not allowed now. Nothing was changed."""

    code = "not_legal_now"
    http_status = 409
    exit_status = _SOFTWARE


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not ACP or not JSON-RPC."""

    code = "peer_broke_protocol"
    http_status = 502
    exit_status = _PROTOCOL


# A session: a request about it was rejected.


class SessionError(TurnwireError):
    """A request about a session was rejected. Nothing was changed."""

    code = "session_error"
    http_status = 400
    jsonrpc_code = _INVALID_PARAMS
    exit_status = _DATA


class SessionNotFound(SessionError):
    code = "session_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class SessionExists(SessionError):
    code = "session_id_conflict"
    http_status = 409


class SessionClosed(SessionError):
    code = "session_closed"
    http_status = 410
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class ContentRefused(SessionError):
    """The agent does not accept this content in a prompt."""

    code = "content_refused"


class SessionBusy(SessionError):
    """A turn runs, and the caller did not want to wait."""

    code = "busy"
    http_status = 409
    exit_status = _TEMPORARY
    retryable = True


class QueueFull(SessionError):
    """The queue is full. `context` has `session_id`, `limit` and `pending_count`. REST clients recognize it by
    status as well.
    """

    code = "prompt_queue_full"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class QueueTooLarge(SessionError):
    """Queued prompts hold too many bytes. `context` has `limit`."""

    code = "prompt_queue_too_large"
    http_status = 429
    exit_status = _TEMPORARY
    retryable = True


class IdempotencyConflict(SessionError):
    """The idempotency key was used with another body."""

    code = "idempotency_conflict"
    http_status = 409


class PromptNotFound(SessionError):
    code = "prompt_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class PromptNotQueued(SessionError):
    """The prompt is not in the queue any more: too late to edit, move or remove it."""

    code = "prompt_not_queued"
    http_status = 409


class PermissionNotFound(SessionError):
    code = "permission_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class ChildRestricted(SessionError):
    """A child session does not support this request: its agent controls it, and allows only some requests."""

    code = "child_restricted"
    http_status = 409
    jsonrpc_code = _INVALID_PARAMS


class InvalidOption(SessionError):
    code = "invalid_option_id"


class InvalidMode(SessionError):
    """The agent does not offer this mode; `context` has those that it offers."""

    code = "invalid_approval_mode"


class InvalidMetadata(SessionError):
    """The title is too long or cannot be shown."""

    code = "invalid_metadata"


class SessionLimitReached(SessionError):
    """Too many sessions are open."""

    code = "session_limit_exceeded"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class SessionMoving(SessionError):
    """The session's node is gone or does not answer: another one claims it within seconds."""

    code = "session_moving"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class RequestRefused(SessionError):
    """The agent's request for a file or a terminal was rejected. `context` has `jsonrpc`, the error code, and
    `reason`.

    `data` is sent to the agent next to the message and stays out of `context`: the path of the missing file, which
    the agent itself named, or a client's error data.
    """

    code = "request_refused"

    def __init__(self, message: str, *, jsonrpc: int, reason: str, data: object = None) -> None:
        super().__init__(message, jsonrpc=jsonrpc, reason=reason)
        self.jsonrpc = jsonrpc
        self.reason = reason
        self.data = data


# The event log.


class LogError(TurnwireError):
    """The event log rejected a call or failed. Events acknowledged before are still stored."""

    code = "log_error"
    exit_status = _IO


class AppendConflict(LogError):
    """Another writer has appended first."""

    code = "append_conflict"
    http_status = 409
    exit_status = _TEMPORARY
    retryable = True


class NotOwner(AppendConflict):
    """Another node owns the session. The receiver of this error stops acting for it."""

    code = "not_owner"


class LifeOver(LogError):
    """This run of the node is over. It stops its agents and streams, because another node may act for its
    sessions.
    """

    code = "life_over"
    http_status = 503
    exit_status = _TEMPORARY


class PositionLost(LogError):
    """The position cannot be honoured. `context["why"]` is `epoch`, `trimmed` or `ahead`."""

    code = "position_lost"
    http_status = 410
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class LogUnavailable(LogError):
    """The log cannot be written or read now."""

    code = "log_unavailable"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class LogLocked(LogUnavailable):
    code = "log_locked"


class LogFull(LogUnavailable):
    code = "log_full"
    http_status = 507


class LogCorrupt(LogError):
    code = "log_corrupt"


class PartNeeded(LogError):
    """A part of a view is not in memory. Load the snapshot of this name, pass it to `take`, and start again.

    Raised by `core`, which knows the needed part, for `runtime`, which can wait for it. It goes no further.
    """

    code = "part_needed"
    name: str
    take: Callable[[bytes], None]

    @classmethod
    def of(cls, name: str, take: Callable[[bytes], None]) -> PartNeeded:
        """Return the error for the snapshot of this name."""
        needed = cls("a part of the session's view is not in memory; load it and ask again")
        needed.name, needed.take = name, take
        return needed


class LogVersionMismatch(LogError):
    """The log was written by an incompatible version of turnwire."""

    code = "log_version_mismatch"
    exit_status = _CONFIG


# A peer: its link, its process, an agent's own statements.


class LinkError(TurnwireError):
    """A link to a peer cannot carry frames."""

    code = "link_error"
    http_status = 502
    exit_status = _PROTOCOL


class LinkClosed(LinkError):
    """This side closed the link."""

    code = "link_closed"
    http_status = 503
    exit_status = _TEMPORARY


class LinkBroken(LinkError):
    """The peer is gone."""

    code = "link_broken"
    retryable = True


class NodeUnreachable(LinkError):
    """Another node cannot be reached now. The request was not sent."""

    code = "node_unreachable"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class AnswerLost(LinkError):
    """Another node did not answer a request: it may have executed it."""

    code = "answer_lost"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class AgentError(TurnwireError):
    """An agent's process cannot do its work."""

    code = "agent_error"
    http_status = 502
    exit_status = _UNAVAILABLE


class AgentLaunchFailed(AgentError):
    """No agent could be started. `definite` means that the program certainly never ran."""

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
        """The JSON-RPC error of an agent that rejected the request. Its text, so not part of `context`."""


class AgentUnavailable(AgentError):
    """Starting the agent has failed too often; `context` has the time of the next try."""

    code = "agent_unavailable"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class AuthRequired(AgentError):
    """The agent opens no session before its user has logged in by one of `methods`, in the agent's own form."""

    code = "auth_required"
    http_status = 424
    jsonrpc_code = _AUTH_REQUIRED
    exit_status = _NO_PERMISSION

    def __init__(self, message: str, *, methods: bytes = b"[]") -> None:
        super().__init__(message)
        self.methods = methods


class AgentFailure(AgentError):
    """Raised by an agent's author to end a turn with an error. Message, `jsonrpc` and `data` reach the client."""

    code = "agent_failure"

    def __init__(self, message: str, *, jsonrpc: int = _INTERNAL, data: bytes | None = None) -> None:
        super().__init__(message, jsonrpc=jsonrpc)
        self.jsonrpc = jsonrpc
        self.data = data
        """Further data for the client, as JSON. Its author's text, so not part of `context`."""


class NotOffered(AgentError):
    """The client did not offer the capability that its agent needs. `context` names it."""

    code = "not_offered"


class ModelFailed(AgentError):
    """A language model could not be called, or its answer was cut off. `reason` is a stable code."""

    code = "model_failed"

    def __init__(self, message: str, *, reason: str, **context: Shown) -> None:
        super().__init__(message, reason=reason, **context)
        self.reason = reason


# Errors of the client SDK.


class TurnError(TurnwireError):
    """A turn ended with an error. `reason` is the stable code of its end, such as `agent_exited`.

    The agent's own output (`stderr_tail`, `agent_error`) is for the caller and stays out of `context`.
    """

    code = "turn_failed"
    http_status = 502
    exit_status = _PROTOCOL

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
        """The agent's error object as JSON."""


class DaemonUnreachable(TurnwireError):
    """Nothing answers at the daemon's URL. The request may have been executed if only the answer was lost."""

    code = "daemon_unreachable"
    http_status = 502
    exit_status = _UNAVAILABLE
    retryable = True


class DaemonRefused(TurnwireError):
    """The daemon, or a proxy in front of it, rejected the request with an unknown code."""

    code = "daemon_refused"
    http_status = 502
    exit_status = _PROTOCOL


class ClientClosed(TurnwireError):
    code = "client_closed"
    http_status = 503
    exit_status = _TEMPORARY


# An HTTP request that never reached a session.


class RequestError(TurnwireError):
    """A request was rejected before it reached a session. Nothing was changed."""

    code = "request_error"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class BadRequest(RequestError):
    """The body, query or headers do not match the documentation."""

    code = "bad_request"


class InvalidCwd(BadRequest):
    """The working directory of a session is not an absolute path, or not a directory."""

    code = "invalid_cwd"
    jsonrpc_code = _INVALID_PARAMS


class HeadersTooLarge(RequestError):
    code = "headers_too_large"
    http_status = 431


class BodyTooSlow(RequestError):
    code = "body_too_slow"
    http_status = 408
    exit_status = _TEMPORARY
    retryable = True


class UnsupportedMedia(RequestError):
    code = "unsupported_media_type"
    http_status = 415


class NotAcceptable(RequestError):
    """The client accepts none of the response's media types."""

    code = "not_acceptable"
    http_status = 406


class Unauthenticated(RequestError):
    """The credential is missing or invalid."""

    code = "unauthenticated"
    http_status = 401
    jsonrpc_code = _AUTH_REQUIRED
    exit_status = _NO_PERMISSION


class Forbidden(RequestError):
    """The credential does not allow this, or Host or Origin is foreign."""

    code = "forbidden"
    http_status = 403
    exit_status = _NO_PERMISSION


class NotFound(RequestError):
    code = "not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    http_status = 405
    jsonrpc_code = _METHOD_NOT_FOUND


class UnknownClient(RequestError):
    """The session does not know this client id."""

    code = "invalid_client_id"
    jsonrpc_code = _INVALID_PARAMS


class UnknownAgent(RequestError):
    """The daemon hosts no agent of this name."""

    code = "unknown_agent"
    jsonrpc_code = _INVALID_PARAMS


class TooManyRequests(RequestError):
    code = "rate_limited"
    http_status = 429
    exit_status = _TEMPORARY
    retryable = True


class ConnectionLimitReached(RequestError):
    """Too many ACP connections are open."""

    code = "connection_limit_exceeded"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class ShuttingDown(RequestError):
    """The daemon is about to stop and accepts nothing new."""

    code = "shutting_down"
    http_status = 503
    jsonrpc_code = _INTERNAL
    exit_status = _TEMPORARY
    retryable = True


# Outcomes of a conformance case other than success.


class RuleBroken(TurnwireError):
    """A rule was broken. `frames` are those that prove it."""

    code = "rule_broken"
    exit_status = _DATA

    def __init__(self, message: str, *, frames: tuple[object, ...] = (), **context: Shown) -> None:
        super().__init__(message, **context)
        self.frames = frames


class NotScored(TurnwireError):
    """The case was not scored. The message is the reason."""

    code = "not_scored"
    exit_status = _DATA


# All layers.


class CredentialsNotStored(TurnwireError):
    """A token, a login or the end of one could not be stored on the disk or in the database."""

    code = "credentials_not_stored"
    http_status = 507
    exit_status = _IO
    retryable = True


class RecordingUnreadable(TurnwireError):
    """The file is not a recording, or one of another version."""

    code = "recording_unreadable"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class RecordingMismatch(TurnwireError):
    """The client's behaviour differs from the recording. `context` has the number of the frame."""

    code = "recording_mismatch"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class LimitExceeded(TurnwireError):
    """A limit was exceeded. `context` has `limit`, its name."""

    code = "limit_exceeded"
    http_status = 413
    jsonrpc_code = _INVALID_PARAMS
    exit_status = _DATA


class ConfigError(TurnwireError):
    """A setting is invalid. Raised before anything starts."""

    code = "config_error"
    exit_status = _CONFIG


def tree(root: type[TurnwireError] = TurnwireError) -> Iterator[type[TurnwireError]]:
    """Return `root` and all its subclasses defined here; a program may define its own."""
    yield root
    for each in root.__subclasses__():
        if each.__module__ == __name__:
            yield from tree(each)


def kind_of(error: BaseException) -> type[TurnwireError]:
    """Return the error class whose numbers apply. A foreign exception is an internal error: its text is never
    shown.
    """
    return type(error) if isinstance(error, TurnwireError) else TurnwireError


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the errors inside a group, at any depth; the error itself, if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(each)
    else:
        yield error
