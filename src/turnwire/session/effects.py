"""Effects: the actions that follow once the events of a decision are stored.

The core never performs them itself. The runtime performs them in order and never waits for a peer's answer;
outcomes come back as inputs.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import PromptId, RequestId
from turnwire.session.events import CancelRung
from turnwire.wire.jsonrpc import ErrorObject


class Effect(Struct, frozen=True):
    pass


class AskAgent(Effect, frozen=True):
    """Send `session/prompt`, after starting or restoring the agent if necessary."""

    prompt_id: PromptId
    content: Raw
    meta: Raw | UnsetType = UNSET
    offered: bool = False
    """True if the prompt is sent at once, while the agent works on another turn."""


class SteerAgent(Effect, frozen=True):
    """Send `_session/steering`."""

    prompt_id: PromptId
    content: Raw
    meta: Raw | UnsetType = UNSET


class CancelAgent(Effect, frozen=True):
    """Perform one step of the cancel escalation."""

    prompt_id: PromptId
    rung: CancelRung


class ArmDeadline(Effect, frozen=True):
    """Deliver `DeadlinePassed(prompt_id, rung)` after `after_s` seconds, unless the turn has ended by then."""

    prompt_id: PromptId
    rung: CancelRung
    after_s: float


class ArmTimeLimit(Effect, frozen=True):
    """Deliver `TimeLimitPassed(prompt_id)` after `after_s` seconds, unless the turn has ended by then."""

    prompt_id: PromptId
    after_s: float


class AwaitAnswer(Effect, frozen=True):
    """Deliver `AnswerOverdue(prompt_id)` after `after_s` seconds: the agent has marked the end without answering
    yet.
    """

    prompt_id: PromptId
    after_s: float


class AnswerAgent(Effect, frozen=True):
    """Answer an agent's permission request with a JSON-RPC result or error."""

    agent_request_id: RequestId
    answer: Raw | ErrorObject


class CancelChildWork(Effect, frozen=True):
    """Send `session/cancel` for a child session, by the agent's id."""

    agent_id: str


class CloseAgentSession(Effect, frozen=True):
    """Notify the agent that the session is closed and may be forgotten."""


OF_A_TURN = (AskAgent, SteerAgent, CancelAgent, ArmDeadline, ArmTimeLimit, AwaitAnswer)
"""Effects that belong to one turn."""

AnyEffect: TypeAlias = (
    AskAgent
    | SteerAgent
    | CancelAgent
    | ArmDeadline
    | ArmTimeLimit
    | AwaitAnswer
    | AnswerAgent
    | CancelChildWork
    | CloseAgentSession
)
