"""What the machine wants done once its events are stored.

Never done by the core itself: the runtime performs them, in order, and never waits for a peer's answer; outcomes
come back as inputs.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.events import CancelRung
from turnwire.ids import PromptId, RequestId


class Effect(Struct, frozen=True):
    pass


class AskAgent(Effect, frozen=True):
    """Send `session/prompt`, starting or restoring the agent first if need be."""

    prompt_id: PromptId
    content: Raw
    meta: Raw | UnsetType = UNSET
    offered: bool = False
    """At once, although the agent is at another turn."""


class SteerAgent(Effect, frozen=True):
    """Send `_session/steering`."""

    prompt_id: PromptId
    content: Raw
    meta: Raw | UnsetType = UNSET


class CancelAgent(Effect, frozen=True):
    """Act on one rung of the cancel ladder."""

    prompt_id: PromptId
    rung: CancelRung


class ArmDeadline(Effect, frozen=True):
    """Bring `DeadlinePassed(prompt_id, rung)` after so many seconds, unless the turn has ended by then."""

    prompt_id: PromptId
    rung: CancelRung
    after_s: float


class ArmTimeLimit(Effect, frozen=True):
    """Bring `TimeLimitPassed(prompt_id)` after so many seconds, unless the turn has ended by then."""

    prompt_id: PromptId
    after_s: float


class AwaitAnswer(Effect, frozen=True):
    """Bring `AnswerOverdue(prompt_id)` after so many seconds: the agent has marked the end and not answered yet."""

    prompt_id: PromptId
    after_s: float


class AnswerAgent(Effect, frozen=True):
    """Answer a permission request of the agent with a JSON-RPC result."""

    agent_request_id: RequestId
    answer: Raw


class CancelChildWork(Effect, frozen=True):
    """Send `session/cancel` for a child session, by the agent's id."""

    agent_id: str


class CloseAgentSession(Effect, frozen=True):
    """The session is over; the agent may forget it."""


OF_A_TURN = (AskAgent, SteerAgent, CancelAgent, ArmDeadline, ArmTimeLimit, AwaitAnswer)
"""Effects that are about one turn."""

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
