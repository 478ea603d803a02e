"""The names of things: one type per kind of identifier, so that the type checker keeps them apart.

Never makes an identifier: making one needs randomness, which enters at the edge (`turnwire.runtime.new_ids`) and
reaches the pure layers inside an input.
"""

from typing import NewType, TypeAlias

SessionId = NewType("SessionId", str)
"""A session as turnwire's clients know it."""

AgentSessionId = NewType("AgentSessionId", str)
"""The same session as the agent knows it; changes when an agent is restarted without its memory."""

AgentName = NewType("AgentName", str)
"""One of the agents that a node hosts, as its operator calls it."""

UNNAMED = AgentName("default")
"""What the one agent is called that nobody has given a name."""

ChildId = NewType("ChildId", str)
"""A child session, as turnwire's clients know it. It is never the id of a session."""

PromptId = NewType("PromptId", str)
"""A turn. Given when a prompt is accepted, or when an agent starts a turn of its own."""

PermissionId = NewType("PermissionId", str)
"""A permission request of the agent to its users, as clients answer it."""

ClientId = NewType("ClientId", str)
"""One attached client."""

MessageId = NewType("MessageId", str)
"""A message in the conversation."""

Epoch = NewType("Epoch", str)
"""One life of a session's log. A cursor from another epoch means nothing here."""

RequestId: TypeAlias = int | str
"""A JSON-RPC id. `2` and `"2"` are different ids; `true` is none."""

__all__ = [
    "UNNAMED",
    "AgentName",
    "AgentSessionId",
    "ChildId",
    "ClientId",
    "Epoch",
    "MessageId",
    "PermissionId",
    "PromptId",
    "RequestId",
    "SessionId",
]
