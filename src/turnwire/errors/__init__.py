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

from turnwire.errors.base import (
    ConfigError,
    FrameTooLarge,
    LimitExceeded,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    Shown,
    TurnwireError,
    leaves,
)
from turnwire.errors.client import (
    ClientClosed,
    ClientError,
    DaemonRefused,
    DaemonUnreachable,
    TurnError,
)
from turnwire.errors.log import (
    AppendConflict,
    LogCorrupt,
    LogError,
    LogFull,
    LogLocked,
    LogTooNew,
    LogUnavailable,
    PositionLost,
)
from turnwire.errors.peer import (
    AgentError,
    AgentFailure,
    AgentLaunchFailed,
    AgentUnavailable,
    AuthRequired,
    LinkBroken,
    LinkClosed,
    LinkError,
    ModelFailed,
    NotOffered,
)
from turnwire.errors.request import (
    BadRequest,
    ConnectionLimitReached,
    Forbidden,
    HeadersTooLarge,
    InvalidCwd,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    RequestError,
    ShuttingDown,
    TooManyRequests,
    Unauthenticated,
    UnknownClient,
    UnsupportedMedia,
)
from turnwire.errors.session import (
    ContentRefused,
    IdempotencyConflict,
    InvalidMetadata,
    InvalidMode,
    InvalidOption,
    PermissionNotFound,
    PromptNotFound,
    PromptNotQueued,
    QueueFull,
    RequestRefused,
    SessionBusy,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionLimitReached,
    SessionNotFound,
)

__all__ = [
    "AgentError",
    "AgentFailure",
    "AgentLaunchFailed",
    "AgentUnavailable",
    "AppendConflict",
    "AuthRequired",
    "BadRequest",
    "ClientClosed",
    "ClientError",
    "ConfigError",
    "ConnectionLimitReached",
    "ContentRefused",
    "DaemonRefused",
    "DaemonUnreachable",
    "Forbidden",
    "FrameTooLarge",
    "HeadersTooLarge",
    "IdempotencyConflict",
    "InvalidCwd",
    "InvalidMetadata",
    "InvalidMode",
    "InvalidOption",
    "LimitExceeded",
    "LinkBroken",
    "LinkClosed",
    "LinkError",
    "LocalProtocolError",
    "LogCorrupt",
    "LogError",
    "LogFull",
    "LogLocked",
    "LogTooNew",
    "LogUnavailable",
    "MethodNotAllowed",
    "ModelFailed",
    "NotAcceptable",
    "NotFound",
    "NotOffered",
    "PermissionNotFound",
    "PositionLost",
    "PromptNotFound",
    "PromptNotQueued",
    "ProtocolError",
    "QueueFull",
    "RemoteProtocolError",
    "RequestError",
    "RequestRefused",
    "SessionBusy",
    "SessionClosed",
    "SessionError",
    "SessionExists",
    "SessionLimitReached",
    "SessionNotFound",
    "Shown",
    "ShuttingDown",
    "TooManyRequests",
    "TurnError",
    "TurnwireError",
    "Unauthenticated",
    "UnknownClient",
    "UnsupportedMedia",
    "leaves",
]
