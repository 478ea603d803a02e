"""The configuration of a scripted agent, apart from the commands in its prompts.

Scripts are text, one command per line, and are checked when the options are created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from turnwire.errors import ConfigError
from turnwire_testing.scripted.script import parse_script

Profile: TypeAlias = Literal["v1", "v1plus", "v2"]
"""`v1plus` is v1 with `turn_complete` and `session/ready`."""

PROFILES: tuple[Profile, ...] = get_args(Profile)

Step: TypeAlias = Literal["user_message", "response", "running"]

ORDER: tuple[Step, ...] = get_args(Step)
"""The default order in which a v2 agent acknowledges a prompt."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of one agent. Every script is checked when the options are made (`ConfigError`)."""

    script: str | None = None
    """Commands for every prompt, regardless of its text."""
    before: str = ""
    """Commands done before the answer to `session/new`."""
    inside: str = ""
    """Commands executed directly after the answer to `session/new`, in the same batch."""
    after: str = ""
    """Commands executed after the answer to `session/new`, in a separate batch."""
    history: str | None = None
    """The history that `session/load` of an unknown session replays; without it such a load is rejected."""
    auth_required: bool = False
    """Sessions are refused until the client has authenticated."""
    steering: bool = False
    """Offer `_session/steering`."""
    accept_v1: bool = False
    """A v2 agent accepts a request for version 1 and speaks it, instead of rejecting."""
    order: tuple[Step, ...] = ORDER
    """The order in which a v2 agent acknowledges a prompt."""
    repeat_idle: int = 0
    """Number of times a v2 agent repeats the idle that ended a turn."""
    session_prefix: str = "session"
    """Session ids are this and a number."""

    def __post_init__(self) -> None:
        for text in (self.script, self.before, self.inside, self.after, self.history):
            parse_script(text or "")
        if sorted(self.order) != sorted(ORDER):
            raise ConfigError(f"order is {','.join(self.order)!r}; give each of {', '.join(ORDER)} once")
        if self.repeat_idle < 0:
            raise ConfigError(f"repeat_idle is {self.repeat_idle}; give 0 or more")
