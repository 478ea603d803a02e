"""What one turn of the built-in agent works with: the conversation, the model, the tools and the bounds.

Made anew for each turn, so that a session's files, MCP servers and notes are those of this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwire.agent import Turn
from turnwire.builtin.conversation import Conversation
from turnwire.builtin.model import Model, ToolSpec, UserMessage
from turnwire.builtin.permits import PLAN
from turnwire.builtin.system_prompt import Note, system_prompt
from turnwire.builtin.tools.tool import Tool
from turnwire.builtin.tools.workplace import Workplace

ALLOWED = "allowed"
"""Where in a session's state the permissions are that its user gave for good."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far one turn may go."""

    max_requests: int = 100
    """Requests to the model."""
    max_tokens: int | None = None
    """Of one answer; none leaves it to the model."""


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
    """What the user said since the turn began, for the next request to the model."""
    notes: tuple[Note, ...] = ()
    own_rules: str | None = None

    @property
    def mode(self) -> str:
        """As it is now: a user may change it while the turn runs."""
        return self.turn.session.mode or ""

    @property
    def allowed(self) -> list[Any]:
        return self.turn.session.state.setdefault(ALLOWED, [])

    async def keep(self) -> None:
        """Have the store keep the conversation as it is now, whatever becomes of this process."""
        await self.turn.session.save()

    def offered(self) -> list[ToolSpec]:
        """The tools that the model may use in this mode."""
        is_planning = self.mode == PLAN.id
        tools = [each for each in self.tools.values() if not is_planning or not (each.asks or each.edits)]
        return [each.spec for each in tools]

    def system(self, offered: list[ToolSpec]) -> str:
        session = self.turn.session
        return system_prompt(session.cwd, session.directories, self.mode, offered, self.notes, self.own_rules)
