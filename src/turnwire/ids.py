"""Identifiers: one type per kind, so that the type checker distinguishes them.

This module makes no identifier: making one needs randomness, which enters at the edge (`turnwire.new_ids`) and
reaches the pure layers inside an input.
"""

from typing import NewType, TypeAlias

SessionId = NewType("SessionId", str)
"""A session's public id."""

AgentSessionId = NewType("AgentSessionId", str)
"""The agent's id of the same session; changes when an agent is restarted without its memory."""

AgentName = NewType("AgentName", str)
"""The operator's name of one of the agents that a node hosts."""

UNNAMED = AgentName("default")
"""The name of an only agent without a configured name."""

ChildId = NewType("ChildId", str)
"""A child session's public id. It is never the id of a session."""

PromptId = NewType("PromptId", str)
"""A turn. Assigned when a prompt is accepted, or when an agent starts a turn itself."""

PermissionId = NewType("PermissionId", str)
"""A permission request of the agent to its users, as clients answer it."""

ClientId = NewType("ClientId", str)
"""One attached client."""

MessageId = NewType("MessageId", str)
"""A message in the conversation."""

Epoch = NewType("Epoch", str)
"""One incarnation of a session's log. A cursor from another epoch is invalid."""

RequestId: TypeAlias = int | str
"""A JSON-RPC id. `2` and `"2"` are different ids; `true` is not an id."""

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
