"""The one exception tree. What an error is to the outside stands on its class.

`code` names it for programs; `http_status`, `jsonrpc_code` and `exit_status` (sysexits) are what it is on each
surface. A class that does not say one of the three has its parent's. So a new error is its class here and its line
in the drawing.

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
    │  ├─ ChildNotFound
    │  ├─ ChildRestricted
    │  ├─ InvalidOption
    │  ├─ InvalidMode              the agent does not offer it; allowed
    │  ├─ InvalidMetadata          a title that is too long or cannot be shown
    │  ├─ SessionLimitReached      too many sessions are open
    │  ├─ SessionMoving            its node is gone or does not answer, and no other one has it yet
    │  └─ RequestRefused           the agent asked for a file or a terminal it cannot have: jsonrpc, uri
    ├─ LogError
    │  ├─ AppendConflict           somebody else wrote first
    │  │  └─ NotOwner              another node owns the session
    │  ├─ PositionLost             the cursor cannot be honoured (epoch, trimmed, ahead)
    │  ├─ LogUnavailable           the log cannot take or give anything now
    │  │  ├─ LogLocked
    │  │  └─ LogFull
    │  ├─ LifeOver                 this run of the node was declared gone: it may not act any more
    │  ├─ LogCorrupt
    │  ├─ PartNeeded               what is asked for is in the log and not in memory: load it and ask again
    │  └─ LogTooNew                written by a newer turnwire
    ├─ LinkError
    │  ├─ LinkClosed               we closed it
    │  ├─ LinkBroken               the peer is gone
    │  ├─ NodeUnreachable          another node of the same log was not asked
    │  └─ AnswerLost               another node was asked, and may have done it
    ├─ AgentError
    │  ├─ AgentLaunchFailed        reason, definite
    │  ├─ AgentUnavailable         it keeps failing and is not started again for a while
    │  ├─ AuthRequired             it wants its user to log in first; methods
    │  ├─ AgentFailure             what an agent tells its client of a turn it cannot finish: jsonrpc, data
    │  ├─ NotOffered               the client has no such service for its agent
    │  └─ ModelFailed              a language model did not answer: reason
    ├─ ClientError                 what the SDK tells its caller
    │  ├─ TurnError                a turn ended with an error: reason, exit_code, signal, stderr_tail
    │  ├─ DaemonUnreachable        no daemon answers at its URL, or its answer was lost
    │  ├─ DaemonRefused            for a reason that this version does not know: status, reason
    │  └─ ClientClosed
    ├─ RequestError                an HTTP request was refused before it reached a session
    │  ├─ BadRequest               its body, query or headers are not as documented
    │  │  └─ InvalidCwd            a session cannot work there; reason
    │  ├─ HeadersTooLarge
    │  ├─ BodyTooSlow
    │  ├─ UnsupportedMedia
    │  ├─ NotAcceptable            it takes nothing that this can be answered with
    │  ├─ Unauthenticated          no credential, or not a valid one
    │  ├─ Forbidden                the credential does not allow this, or Host or Origin is not ours
    │  ├─ NotFound                 there is no such thing here
    │  ├─ MethodNotAllowed         the path is there, and not for this
    │  ├─ UnknownClient            the session does not know this client id
    │  ├─ UnknownAgent             the daemon hosts no agent of this name
    │  ├─ TooManyRequests
    │  ├─ ConnectionLimitReached   too many ACP connections are open
    │  └─ ShuttingDown             the daemon is about to stop and takes nothing new
    ├─ ConformanceError            what a case of `turnwire check` found
    │  ├─ RuleBroken               the peer broke the rule of the case: frames
    │  └─ NotScored                the case could not be judged at this peer
    ├─ RecordingError
    │  ├─ RecordingUnreadable      the file is no recording, or one of another version: path
    │  └─ RecordingMismatch        what the client does is not in the recording that is played: frame
    ├─ CredentialsNotStored        a token or a login could not be written
    ├─ LimitExceeded               limit, value
    │  └─ FrameTooLarge
    └─ ConfigError                 raised before anything starts

An error never carries a payload, a path of a peer or the text of a foreign exception: what is in `context` may be
shown to anyone. Stop reasons and cancellation are results, not errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias, cast

Shown: TypeAlias = str | int | float | bool | tuple[str, ...] | None
"""What may be in the context of an error."""

# ACP's codes; `wire.jsonrpc`, which is above this module, has them for everybody else.
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603
_AUTH_REQUIRED, _NOT_FOUND = -32000, -32002
# sysexits.h, by which shells and supervisors tell what to try again.
_DATA, _NO_INPUT, _UNAVAILABLE, _SOFTWARE = 65, 66, 69, 70
_IO, _TEMPORARY, _PROTOCOL, _NO_PERMISSION, _CONFIG = 74, 75, 76, 77, 78


class TurnwireError(Exception):
    """The root. `str(error)` says what is wrong and what to do about it."""

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
    """Our own side asked for something that is not legal now. Nothing was changed."""

    code = "not_legal_now"
    http_status = 409
    exit_status = _SOFTWARE


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not ACP or not JSON-RPC."""

    code = "peer_broke_protocol"
    http_status = 502
    exit_status = _PROTOCOL


# A session: a request about it was refused.


class SessionError(TurnwireError):
    """A request about a session was refused. Nothing was changed."""

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
    code = "content_refused"


class SessionBusy(SessionError):
    code = "busy"
    http_status = 409
    exit_status = _TEMPORARY
    retryable = True


class QueueFull(SessionError):
    """`context` has `session_id`, `limit` and `pending_count`. Clients of the contract know it by status too."""

    code = "prompt_queue_full"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class IdempotencyConflict(SessionError):
    code = "idempotency_conflict"
    http_status = 409


class PromptNotFound(SessionError):
    code = "prompt_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class PromptNotQueued(SessionError):
    code = "prompt_not_queued"
    http_status = 409


class PermissionNotFound(SessionError):
    code = "permission_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class ChildNotFound(SessionError):
    code = "child_not_found"
    http_status = 404
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class ChildRestricted(SessionError):
    """A child session is not asked this: it is its agent's, and takes what the agent permits."""

    code = "child_restricted"
    http_status = 409
    jsonrpc_code = _INVALID_PARAMS


class InvalidOption(SessionError):
    code = "invalid_option_id"


class InvalidMode(SessionError):
    code = "invalid_approval_mode"


class InvalidMetadata(SessionError):
    code = "invalid_metadata"


class SessionLimitReached(SessionError):
    code = "session_limit_exceeded"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class SessionMoving(SessionError):
    """Its node is gone or does not answer: another one takes it over within seconds."""

    code = "session_moving"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class RequestRefused(SessionError):
    """The agent wanted a file or a terminal. `context` has `jsonrpc`, the code to answer with, and `reason`.

    `data` is for the agent, beside the message, and stays out of `context`: the file that is missing, which the
    agent named first, or what a client said.
    """

    code = "request_refused"

    def __init__(self, message: str, *, jsonrpc: int, reason: str, data: object = None) -> None:
        super().__init__(message, jsonrpc=jsonrpc, reason=reason)
        self.jsonrpc = jsonrpc
        self.reason = reason
        self.data = data


# The event log.


class LogError(TurnwireError):
    """The event log refused or failed. What it had acknowledged before is still there."""

    code = "log_error"
    exit_status = _IO


class AppendConflict(LogError):
    code = "append_conflict"
    http_status = 409
    exit_status = _TEMPORARY
    retryable = True


class NotOwner(AppendConflict):
    """Whoever gets this stops acting for the session."""

    code = "not_owner"


class LifeOver(LogError):
    """Whoever gets this stops its agents and its streams: another node may already act for its sessions."""

    code = "life_over"
    http_status = 503
    exit_status = _TEMPORARY


class PositionLost(LogError):
    """`context["why"]` is `epoch`, `trimmed` or `ahead`."""

    code = "position_lost"
    http_status = 410
    jsonrpc_code = _NOT_FOUND
    exit_status = _NO_INPUT


class LogUnavailable(LogError):
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
    """A part of a view is not in memory. Load the snapshot of this name, hand it to `take`, and begin again.

    Between `core`, which knows what it needs, and `runtime`, which can wait for it. Nobody else hears of it.
    """

    code = "part_needed"
    name: str
    take: Callable[[bytes], None]

    @classmethod
    def of(cls, name: str, take: Callable[[bytes], None]) -> PartNeeded:
        """The snapshot of this name is needed."""
        needed = cls("a part of the session's view is not in memory; load it and ask again")
        needed.name, needed.take = name, take
        return needed


class LogTooNew(LogError):
    code = "log_too_new"
    exit_status = _CONFIG


# A peer: its link, its process, what an agent tells of itself.


class LinkError(TurnwireError):
    """A link to a peer cannot carry frames."""

    code = "link_error"
    http_status = 502
    exit_status = _PROTOCOL


class LinkClosed(LinkError):
    code = "link_closed"
    http_status = 503
    exit_status = _TEMPORARY


class LinkBroken(LinkError):
    code = "link_broken"
    retryable = True


class NodeUnreachable(LinkError):
    """There is no way to another node now. It was not asked."""

    code = "node_unreachable"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class AnswerLost(LinkError):
    """Another node was asked and did not answer: it may have done it."""

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
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class AuthRequired(AgentError):
    """The agent opens no session before its user has logged in by one of `methods`, given as it offered them."""

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
        """What else the client is told, as JSON. Its author's words, so not part of `context`."""


class NotOffered(AgentError):
    """The client did not offer what its agent wants of it. `context` names it."""

    code = "not_offered"


class ModelFailed(AgentError):
    """A language model could not be asked, or its answer was cut. `reason` is a stable word for why."""

    code = "model_failed"

    def __init__(self, message: str, *, reason: str, **context: Shown) -> None:
        super().__init__(message, reason=reason, **context)
        self.reason = reason


# What the SDK tells its caller.


class ClientError(TurnwireError):
    """The SDK cannot give its caller what was asked for."""

    code = "client_error"


class TurnError(ClientError):
    """A turn ended with an error. `reason` is the stable code of its end, such as `agent_exited`.

    What the agent said of it (`stderr_tail`, `agent_error`) is for the caller and stays out of `context`.
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
        """The error object of the agent as JSON."""


class DaemonUnreachable(ClientError):
    """Nothing answers at the daemon's URL. What was asked may have been done if only the answer was lost."""

    code = "daemon_unreachable"
    http_status = 502
    exit_status = _UNAVAILABLE
    retryable = True


class DaemonRefused(ClientError):
    """The daemon, or something in front of it, refused with a code that is not known here."""

    code = "daemon_refused"
    http_status = 502
    exit_status = _PROTOCOL


class ClientClosed(ClientError):
    code = "client_closed"
    http_status = 503
    exit_status = _TEMPORARY


# An HTTP request that never reached a session.


class RequestError(TurnwireError):
    """A request was refused before it reached a session. Nothing was changed."""

    code = "request_error"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class BadRequest(RequestError):
    code = "bad_request"


class InvalidCwd(BadRequest):
    """A session cannot work there: no absolute path, or no directory."""

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
    code = "not_acceptable"
    http_status = 406


class Unauthenticated(RequestError):
    code = "unauthenticated"
    http_status = 401
    jsonrpc_code = _AUTH_REQUIRED
    exit_status = _NO_PERMISSION


class Forbidden(RequestError):
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
    code = "invalid_client_id"
    jsonrpc_code = _INVALID_PARAMS


class UnknownAgent(RequestError):
    code = "unknown_agent"
    jsonrpc_code = _INVALID_PARAMS


class TooManyRequests(RequestError):
    code = "rate_limited"
    http_status = 429
    exit_status = _TEMPORARY
    retryable = True


class ConnectionLimitReached(RequestError):
    code = "connection_limit_exceeded"
    http_status = 503
    exit_status = _TEMPORARY
    retryable = True


class ShuttingDown(RequestError):
    code = "shutting_down"
    http_status = 503
    jsonrpc_code = _INTERNAL
    exit_status = _TEMPORARY
    retryable = True


# A case of the conformance suite: its outcome, where it is not that the rule holds.


class ConformanceError(TurnwireError):
    code = "conformance_error"
    exit_status = _DATA


class RuleBroken(ConformanceError):
    """`frames` are those that prove it."""

    code = "rule_broken"

    def __init__(self, message: str, *, frames: tuple[object, ...] = (), **context: Shown) -> None:
        super().__init__(message, **context)
        self.frames = frames


class NotScored(ConformanceError):
    """The message is the reason."""

    code = "not_scored"


# Of any layer.


class CredentialsNotStored(TurnwireError):
    """The disk, or the database, did not take a token, a login or the end of one."""

    code = "credentials_not_stored"
    http_status = 507
    exit_status = _IO
    retryable = True


class RecordingError(TurnwireError):
    """A recording cannot be played."""

    code = "recording_error"
    http_status = 400
    jsonrpc_code = _INVALID_REQUEST
    exit_status = _DATA


class RecordingUnreadable(RecordingError):
    """The file is no recording, or one of another version."""

    code = "recording_unreadable"


class RecordingMismatch(RecordingError):
    """What the client does is not what it did in the recording. `context` has the number of the frame."""

    code = "recording_mismatch"


class LimitExceeded(TurnwireError):
    """A bound of `turnwire.limits` was passed; `context` names it."""

    code = "limit_exceeded"
    http_status = 413
    jsonrpc_code = _INVALID_PARAMS
    exit_status = _DATA


class FrameTooLarge(LimitExceeded):
    code = "frame_too_large"


class ConfigError(TurnwireError):
    """A setting makes no sense. Raised before anything starts."""

    code = "config_error"
    exit_status = _CONFIG


def tree(root: type[TurnwireError] = TurnwireError) -> Iterator[type[TurnwireError]]:
    """`root` and every error under it that is defined here; a program may derive its own."""
    yield root
    for each in root.__subclasses__():
        if each.__module__ == __name__:
            yield from tree(each)


def kind_of(error: BaseException) -> type[TurnwireError]:
    """Whose numbers an exception has. What is not ours is an internal error: nobody may be told of it."""
    return type(error) if isinstance(error, TurnwireError) else TurnwireError


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group holds, however deep; the error itself, if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(each)
    else:
        yield error
