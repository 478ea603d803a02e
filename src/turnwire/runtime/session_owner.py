"""The owner of a session, as seen by a node that needs it for an operation: the same node or another one.

`LocalSessions` runs these operations for the sessions of this node, `server.cluster.LinkedNode` sends them to
another node. `RemoteSessions.at_owner` decides between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Raw

from turnwire.hosting.agent_connection import Listener
from turnwire.hosting.client_requests import Provider
from turnwire.ids import ClientId, SessionId
from turnwire.runtime.evidence import Explanation
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import Failure, Result

End: TypeAlias = Callable[[], None]
"""Ends an operation that lasts."""


class NewSession(NamedTuple):
    """Parameters for creating a session on its owner."""

    session_id: SessionId
    cwd: str
    setup: Setup
    fork_of: SessionId | None = None
    context: str | None = None
    """The earlier conversation as text, for an agent that does not know it."""
    author: str | None = None
    title: str | None = None


class SessionOwner(Protocol):
    """Operations on the sessions of one node and on their agents.

    Each raises the rejections of the session or its agent, `SessionNotFound`, and `NotOwner` for a session of
    another node.
    """

    async def delete(self, session_id: SessionId) -> None:
        """Remove a session with all its events; followers come to an end."""
        ...

    async def retain(self, session_id: SessionId, keep_events: int) -> int:
        """Trim all but the newest events; return the oldest remaining offset."""
        ...

    async def fork(self, new: NewSession) -> None:
        """Create a session that continues one of the owner's, at its agent."""
        ...

    async def explain(self, session_id: SessionId, *, for_owner: bool) -> Explanation:
        """Return the state of the session and the evidence for it.

        Without `for_owner` the output of an agent that serves other users as well is omitted.
        """
        ...

    async def authenticate(self, session_id: SessionId, method_id: str) -> None:
        """Log in at the session's agent by one of its methods.

        Raises `RemoteProtocolError` if the agent rejects it; `AgentError`, `LinkError` if there is no agent.
        """
        ...

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        """Send a request about the session's settings, such as `session/set_mode`; return the agent's result.

        Raises `LocalProtocolError` if no agent has the session now, `RemoteProtocolError` if the agent rejects it,
        `LinkError` if the agent disconnects.
        """
        ...

    async def wake(self, session_id: SessionId) -> None:
        """Return once an agent has the session, as for a prompt.

        Raises `SessionClosed`, and `LocalProtocolError` if no agent accepts it.
        """
        ...

    async def call(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> Result | Failure:
        """Send a request beyond ACP, with the session's id added; return the agent's answer.

        Raises `LocalProtocolError` if no agent accepts the session, `AgentError`, `LinkError` if there is no agent.
        """
        ...

    async def notify(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> None:
        """Send a notification beyond ACP. Raises as `call` does."""
        ...

    async def offer(
        self, session_id: SessionId, client_id: ClientId, provider: Provider, *, client: object, owner: str | None
    ) -> End:
        """Let an attached client serve requests of the session's agent.

        `client` and `owner` as in `ClientRequests.offer`.
        """
        ...

    async def listen(self, session_id: SessionId, listener: Listener) -> End | None:
        """Notify a client of messages other than updates from the session's agent; return `None` if there is no
        agent now.
        """
        ...
