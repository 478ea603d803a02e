"""How an agent behaves towards its clients, and what it has to offer: settings, commands, modes, options.

Takes values of the agent's author; checks them before anything starts. Never changes after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnwire.errors import ConfigError
from turnwire.limits import MiB

AUTH_TYPES = ("agent", "terminal")


@dataclass(frozen=True, kw_only=True)
class AuthMethod:
    """A way to log in. `terminal`: the client runs the agent's program with `args` and `env` for its user."""

    id: str
    name: str
    description: str | None = None
    type: Literal["agent", "terminal"] = "agent"
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How an agent serves. Every field has a default that fits most agents."""

    ready_s: float | None = 2.0
    """How long what nobody asked for waits for `session/ready`. None waits for ever."""
    held: int = 1024
    """How many updates may wait for it, per session and client."""
    max_queued: int = 16
    """How many prompts may wait behind the one that runs. More are refused."""
    max_unsent: int = 8 * MiB
    """Bytes that may wait for a client that does not read, beside what its link holds."""
    max_cancel_s: float = 10.0
    """How long a cancelled turn may take to stop before it is ended without it."""
    drafts: Literal["draft", "strict", "off"] = "draft"
    """Where `turn_complete` and `session/ready` are offered: as the drafts say, in `_meta` only, or not at all."""
    turn_complete: Literal["negotiated", "always", "off"] = "negotiated"
    """Which v1 clients are sent the `turn_complete` update."""
    image: bool = False
    audio: bool = False
    embedded_context: bool = False
    mcp_http: bool = False
    mcp_sse: bool = False
    auth_methods: tuple[AuthMethod, ...] = ()
    auth_required: bool = False
    """Refuse sessions until a client has logged in."""

    def __post_init__(self) -> None:
        if self.ready_s is not None and self.ready_s < 0:
            raise ConfigError("ready_s is negative; give seconds, or None to wait for ever")
        for name in ("held", "max_unsent", "max_cancel_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0")
        if self.max_queued < 0:
            raise ConfigError("max_queued must be 0 or more")
        if self.auth_required and not self.auth_methods:
            raise ConfigError("auth_required needs at least one of auth_methods")

    @property
    def offers_ready(self) -> bool:
        return self.drafts != "off"

    @property
    def offers_turn_complete(self) -> bool:
        return self.drafts != "off" and self.turn_complete != "off"

    @property
    def block_types(self) -> tuple[str, ...]:
        """The types of content that a prompt may hold."""
        gated = {"image": self.image, "audio": self.audio, "resource": self.embedded_context}
        return ("resource_link", "text", *(kind for kind, is_taken in gated.items() if is_taken))


@dataclass(frozen=True)
class Command:
    """A slash command that the user may type."""

    name: str
    description: str
    hint: str | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("/") or any(each.isspace() for each in self.name):
            raise ConfigError("the name of a command is one word without its slash, such as `plan`", name=self.name)


@dataclass(frozen=True)
class Mode:
    """A way for the agent to work, of which the user chooses one."""

    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True)
class Value:
    """One of the values of an option."""

    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True)
class Option:
    """Something to configure: a choice of `values`, or on and off if it has none. `value` is its default."""

    id: str
    name: str
    value: str | bool
    values: Sequence[Value | str] = ()
    description: str | None = None
    category: str | None = None

    def __post_init__(self) -> None:
        if not self.takes(self.value):
            raise ConfigError("the value of an option must be one of its values", option=self.id)

    def takes(self, value: Any) -> bool:
        """Whether it can have this value."""
        if not self.values:
            return isinstance(value, bool)
        return isinstance(value, str) and value in [
            each if isinstance(each, str) else each.id for each in self.values
        ]
