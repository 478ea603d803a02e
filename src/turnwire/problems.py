"""The one table that says what each error is to the outside: HTTP status, JSON-RPC code, exit code.

Takes any exception; gives its row. Never a row without a class of `turnwire.errors`, or a class without a row.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwire.errors import (
    AgentError,
    AgentFailure,
    AgentLaunchFailed,
    AgentUnavailable,
    AppendConflict,
    AuthRequired,
    BadRequest,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectionLimitReached,
    ContentRefused,
    DaemonRefused,
    DaemonUnreachable,
    Forbidden,
    FrameTooLarge,
    HeadersTooLarge,
    IdempotencyConflict,
    InvalidCwd,
    InvalidMetadata,
    InvalidMode,
    InvalidOption,
    LimitExceeded,
    LinkBroken,
    LinkClosed,
    LinkError,
    LocalProtocolError,
    LogCorrupt,
    LogError,
    LogFull,
    LogLocked,
    LogTooNew,
    LogUnavailable,
    MethodNotAllowed,
    ModelFailed,
    NotAcceptable,
    NotFound,
    NotOffered,
    PermissionNotFound,
    PositionLost,
    PromptNotFound,
    PromptNotQueued,
    ProtocolError,
    QueueFull,
    RemoteProtocolError,
    RequestError,
    RequestRefused,
    SessionBusy,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionLimitReached,
    SessionNotFound,
    ShuttingDown,
    TooManyRequests,
    TurnError,
    TurnwireError,
    Unauthenticated,
    UnknownClient,
    UnsupportedMedia,
)


class Problem(NamedTuple):
    """What an error is on each surface."""

    http: int
    jsonrpc: int
    exit: int


_INVALID_PARAMS, _INTERNAL, _NOT_FOUND = -32602, -32603, -32002

PROBLEMS: dict[type[TurnwireError], Problem] = {
    TurnwireError: Problem(500, _INTERNAL, 70),
    ProtocolError: Problem(400, -32600, 65),
    LocalProtocolError: Problem(409, -32600, 70),
    RemoteProtocolError: Problem(502, -32600, 76),
    SessionError: Problem(400, _INVALID_PARAMS, 65),
    SessionNotFound: Problem(404, _NOT_FOUND, 66),
    SessionExists: Problem(409, _INVALID_PARAMS, 65),
    SessionClosed: Problem(410, _NOT_FOUND, 66),
    ContentRefused: Problem(400, _INVALID_PARAMS, 65),
    SessionBusy: Problem(409, _INVALID_PARAMS, 75),
    QueueFull: Problem(429, _INVALID_PARAMS, 75),
    IdempotencyConflict: Problem(409, _INVALID_PARAMS, 65),
    PromptNotFound: Problem(404, _NOT_FOUND, 66),
    PromptNotQueued: Problem(409, _INVALID_PARAMS, 65),
    PermissionNotFound: Problem(404, _NOT_FOUND, 66),
    InvalidOption: Problem(400, _INVALID_PARAMS, 65),
    InvalidMode: Problem(400, _INVALID_PARAMS, 65),
    InvalidMetadata: Problem(400, _INVALID_PARAMS, 65),
    SessionLimitReached: Problem(503, _INVALID_PARAMS, 75),
    RequestRefused: Problem(400, _INVALID_PARAMS, 65),
    LogError: Problem(500, _INTERNAL, 74),
    AppendConflict: Problem(409, _INTERNAL, 75),
    PositionLost: Problem(410, _NOT_FOUND, 66),
    LogUnavailable: Problem(503, _INTERNAL, 75),
    LogLocked: Problem(503, _INTERNAL, 75),
    LogFull: Problem(507, _INTERNAL, 75),
    LogCorrupt: Problem(500, _INTERNAL, 74),
    LogTooNew: Problem(500, _INTERNAL, 78),
    LinkError: Problem(502, _INTERNAL, 76),
    LinkClosed: Problem(503, _INTERNAL, 75),
    LinkBroken: Problem(502, _INTERNAL, 76),
    AgentError: Problem(502, _INTERNAL, 69),
    AgentUnavailable: Problem(503, _INTERNAL, 75),
    AuthRequired: Problem(424, -32000, 77),
    AgentLaunchFailed: Problem(502, _INTERNAL, 69),
    AgentFailure: Problem(502, _INTERNAL, 69),
    NotOffered: Problem(502, _INTERNAL, 69),
    ModelFailed: Problem(502, _INTERNAL, 69),
    ClientError: Problem(500, _INTERNAL, 70),
    TurnError: Problem(502, _INTERNAL, 76),
    DaemonUnreachable: Problem(502, _INTERNAL, 69),
    DaemonRefused: Problem(502, _INTERNAL, 76),
    ClientClosed: Problem(503, _INTERNAL, 75),
    RequestError: Problem(400, -32600, 65),
    BadRequest: Problem(400, -32600, 65),
    InvalidCwd: Problem(400, _INVALID_PARAMS, 65),
    HeadersTooLarge: Problem(431, -32600, 65),
    UnsupportedMedia: Problem(415, -32600, 65),
    NotAcceptable: Problem(406, -32600, 65),
    Unauthenticated: Problem(401, -32000, 77),
    Forbidden: Problem(403, -32600, 77),
    NotFound: Problem(404, _NOT_FOUND, 66),
    MethodNotAllowed: Problem(405, -32601, 65),
    UnknownClient: Problem(400, _INVALID_PARAMS, 65),
    TooManyRequests: Problem(429, -32600, 75),
    ConnectionLimitReached: Problem(503, -32600, 75),
    ShuttingDown: Problem(503, _INTERNAL, 75),
    LimitExceeded: Problem(413, _INVALID_PARAMS, 65),
    FrameTooLarge: Problem(413, _INVALID_PARAMS, 65),
    ConfigError: Problem(500, _INTERNAL, 78),
}
"""Error → HTTP status, JSON-RPC code, exit code (sysexits). A test holds the table complete."""


def problem(error: BaseException) -> Problem:
    """What `error` is to the outside; anything that is not ours is an internal error without a text."""
    return (
        PROBLEMS.get(type(error), PROBLEMS[TurnwireError])
        if isinstance(error, TurnwireError)
        else PROBLEMS[TurnwireError]
    )
