"""What was agreed with a client, and what the fold over its session remembers.

Takes the client's `initialize`; gives the version and the switches of the drafts. Never changes after the
handshake: one connection speaks one dialect.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.ids import AgentSessionId, PromptId, SessionId

VENDOR = "turnwire"
"""Our name in `_meta` and in methods that begin with `_`."""


class Emission(StrEnum):
    """Towards which v1 clients the end of a turn is marked. An operator decides."""

    NEGOTIATED = "negotiated"
    ALWAYS = "always"
    OFF = "off"


class Dialect(Struct, frozen=True, kw_only=True):
    """How to speak to a client."""

    version: int
    turn_complete: bool = False
    """It asked for the `turn_complete` update."""
    emission: Emission = Emission.NEGOTIATED
    lifecycle: bool = False
    """v1 with the names of the lifecycle draft: `user_message`, `state_change`, `stop_reason`."""
    boolean_options: bool = True
    """It takes config options that are on or off."""

    @property
    def marks(self) -> bool:
        """Whether the client is sent the `turn_complete` update itself."""
        return self.emission is Emission.ALWAYS or (self.emission is Emission.NEGOTIATED and self.turn_complete)


class Known(Struct):
    """What the fold of one session remembers."""

    session_id: SessionId
    agent_version: int | None = None
    agent_session_id: AgentSessionId | None = None
    life: int = 0
    """How often the agent's ids began to mean something new."""
    active: PromptId | None = None
    """The turn that the agent works on."""
    state: str = "idle"
    background: Raw | UnsetType = UNSET
    """The agent's last list of background work, as it came."""
    last_stop: dict[str, Any] = {}
    """How the last turn ended, as members of a v2 idle state."""
    waiting: set[PromptId] = set()
    """Prompts that are accepted and whose message is not in the conversation yet."""
    options: Raw = Raw(b"[]")
    """The agent's config options, as it said them last."""
    losses: Counter[str] = field(default_factory=Counter[str])
    """What could not be said in the client's version, by the codes of `core.translate.losses`."""

    def ends(self, prompt_id: PromptId) -> bool:
        """Whether the end of this prompt ends the foreground's work. One that waited or had joined does not."""
        if self.active != prompt_id:
            return False
        self.active = None
        return True
