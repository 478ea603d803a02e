"""What a client is sent because of an event, before it has a JSON-RPC id and a stream.

The names in it are ours (`promptId`, `requestId`): the connection knows the JSON-RPC ids that the client gave and
got.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec import UNSET, Raw, UnsetType

from turnwire.ids import ChildId, PermissionId, PromptId


class Tell(NamedTuple):
    """A `session/update`."""

    update: Raw
    beside: Raw | UnsetType = UNSET
    """What its params have beside the update, as an object."""
    child: ChildId | None = None
    """The child session that it is of; none if it is of the session itself."""


class TellBlocked(NamedTuple):
    """A `session/update` that says that the turn waits for its users; whoever writes it adds for what."""

    update: Raw
    waits: tuple[tuple[PermissionId, str], ...]
    """The open permission requests, each with its kind."""


class Answer(NamedTuple):
    """The result of the `session/prompt` that became this prompt, if this connection sent it."""

    prompt_id: PromptId
    result: Raw


class Fail(NamedTuple):
    """The error answer to that `session/prompt`."""

    prompt_id: PromptId
    error: Raw


class Ask(NamedTuple):
    """A question of the agent for the client's user."""

    request_id: PermissionId
    method: str
    params: Raw


class Withdraw(NamedTuple):
    """The question is settled; a client that was asked need not answer any more."""

    request_id: PermissionId


Outgoing: TypeAlias = Tell | TellBlocked | Answer | Fail | Ask | Withdraw
