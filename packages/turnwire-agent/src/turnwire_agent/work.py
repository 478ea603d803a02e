"""The work of one turn of the built-in agent: the conversation, the model, the tools and the bounds.

It is created for each turn, so that a session's files, MCP servers and notes are current.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwire.agent import Turn
from turnwire_agent.conversation import Conversation
from turnwire_agent.model import Model, ToolSpec, UserMessage
from turnwire_agent.permits import PLAN
from turnwire_agent.system_prompt import Note, system_prompt
from turnwire_agent.tools.tool import Tool
from turnwire_agent.tools.workplace import Workplace

ALLOWED = "allowed"
"""Key of the user's permanent permissions in a session's state."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one turn."""

    max_requests: int = 100
    """Requests to the model."""
    max_tokens: int | None = None
    """Maximum tokens of one answer; None uses the model's default."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One turn."""

    turn: Turn
    conversation: Conversation
    model: Model
    tools: Mapping[str, Tool]
    workplace: Workplace
    bounds: Bounds
    steered: list[UserMessage] = field(default_factory=list[UserMessage])
    """The user's messages since the turn began, for the next request to the model."""
    notes: tuple[Note, ...] = ()
    own_rules: str | None = None

    @property
    def mode(self) -> str:
        """The current mode: a user may change it while the turn runs."""
        return self.turn.session.mode or ""

    @property
    def allowed(self) -> list[Any]:
        return self.turn.session.state.setdefault(ALLOWED, [])

    async def keep(self) -> None:
        """Store the conversation as it is now, so that it survives this process."""
        await self.turn.session.save()

    def offered(self) -> list[ToolSpec]:
        """The tools that the model may use in this mode."""
        is_planning = self.mode == PLAN.id
        tools = [each for each in self.tools.values() if not is_planning or not (each.asks or each.edits)]
        return [each.spec for each in tools]

    def system(self, offered: list[ToolSpec]) -> str:
        session = self.turn.session
        return system_prompt(session.cwd, session.directories, self.mode, offered, self.notes, self.own_rules)
