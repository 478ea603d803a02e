"""Errors of a peer: its link, its process, what an agent tells of itself. See `turnwire.errors`."""

from __future__ import annotations

from turnwire.errors.base import Shown, TurnwireError


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


class AuthRequired(AgentError):
    """The agent opens no session before its user has logged in by one of `methods`, given as it offered them."""

    code = "auth_required"

    def __init__(self, message: str, *, methods: bytes = b"[]") -> None:
        super().__init__(message)
        self.methods = methods


class AgentFailure(AgentError):
    """Raised by an agent's author to end a turn with an error. Message, `jsonrpc` and `data` reach the client."""

    code = "agent_failure"

    def __init__(self, message: str, *, jsonrpc: int = -32603, data: bytes | None = None) -> None:
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
