"""Settings of an agent, and its offers to clients: commands, modes, options.

The author's values are checked before anything starts and never change afterwards. `SessionOffers` has the choices
of a session in ACP v2 form, where the mode is an ordinary option. Stored choices are restored when the author lists
the options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from msgspec import Raw

from turnwire.agent.v2_updates import Json
from turnwire.errors import ConfigError, InvalidOption
from turnwire.limits import MiB
from turnwire.projections.encoder import Dialect
from turnwire.projections.translate.handshake import (
    ClientProfile,
    TurnCompletePolicy,
    gets_turn_complete,
    is_awaited,
)
from turnwire.wire.jsonrpc import raw

AUTH_TYPES = ("agent", "terminal")
MODE: Final = "mode"


@dataclass(frozen=True, kw_only=True)
class AuthMethod:
    """A login method. For `terminal` the client runs the agent's program with `args` and `env` for its user."""

    id: str
    name: str
    description: str | None = None
    type: Literal["agent", "terminal"] = "agent"
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Settings of an agent. The defaults fit most agents."""

    ready_s: float | None = 2.0
    """Time that unsolicited updates wait for `session/ready`. None waits without limit; 0 neither offers it nor
    waits.
    """
    held: int = 1024
    """Number of updates that may wait for it, per session and client."""
    max_queued: int = 16
    """Number of prompts that may queue while a turn runs. Further prompts are rejected."""
    max_unsent: int = 8 * MiB
    """Bytes that may queue for a client that does not read, in addition to its link's buffer."""
    max_cancel_s: float = 10.0
    """Time for a cancelled turn to stop before it is ended without its function."""
    turn_complete: Literal["auto", "always", "asked", "off"] = "auto"
    """The v1 clients that get the `turn_complete` update: all but those known to lack it, all, those that ask, or
    none.
    """
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

    def awaits(self, client: ClientProfile) -> bool:
        """Return whether the agent waits for this client's `session/ready`, and says so."""
        return is_awaited(self.ready_s, client)

    def dialect_for(self, client: ClientProfile) -> Dialect:
        """Return the dialect for a client."""
        return Dialect(
            version=client.version,
            turn_complete=gets_turn_complete(TurnCompletePolicy(self.turn_complete), client),
            # Where v2 has it on the idle state. A client that waits for the mark has ended the turn by then.
            usage_in_mark=True,
            lifecycle=client.lifecycle,
            boolean_options=client.boolean_options,
        )

    @property
    def block_types(self) -> tuple[str, ...]:
        """The types of content that a prompt may hold."""
        gated = {"image": self.image, "audio": self.audio, "resource": self.embedded_context}
        return ("resource_link", "text", *(kind for kind, is_taken in gated.items() if is_taken))


# -- what the author lists -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A slash command."""

    name: str
    description: str
    hint: str | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("/") or any(each.isspace() for each in self.name):
            raise ConfigError("the name of a command is one word without its slash, such as `plan`", name=self.name)


@dataclass(frozen=True)
class Mode:
    """A mode of the agent, chosen by the user."""

    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True)
class Value:
    """A value of an option."""

    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True)
class Option:
    """A configuration option: a choice of `values`, or a switch if it has none. `value` is its default."""

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
        """Return whether the option accepts this value."""
        if not self.values:
            return isinstance(value, bool)
        return isinstance(value, str) and value in [
            each if isinstance(each, str) else each.id for each in self.values
        ]


# -- what one session offers of it, with what is chosen --------------------------------------------------------


class SessionOffers:
    """The options of one session and their values."""

    def __init__(self, kept: dict[str, str | bool], own_commands: Iterable[Command]) -> None:
        self._kept = kept
        self._own_commands = tuple(own_commands)
        self.commands: tuple[Command, ...] = ()
        self.modes: tuple[Mode, ...] = ()
        self._options: dict[str, Option] = {}
        self._chosen: dict[str, str | bool] = {}

    # -- what there is -------------------------------------------------------------------------------------------

    def list_modes(self, modes: Sequence[Mode]) -> None:
        self.modes = tuple(modes)
        if modes:
            values = [Value(each.id, each.name, each.description) for each in modes]
            self._offer([Option(MODE, "Mode", modes[0].id, values, category=MODE), *self.options])
        else:
            self._offer(self.options)

    def list_options(self, options: Sequence[Option]) -> None:
        if any(each.id == MODE for each in options):
            raise ConfigError("the option `mode` stands for the modes; set `session.modes` instead")
        standing = [self._options[MODE]] if MODE in self._options else []
        self._offer([*standing, *options])

    def _offer(self, options: list[Option]) -> None:
        if len({each.id for each in options}) < len(options):
            raise ConfigError("two options have the same id")
        before = {**self._kept, **self._chosen}
        self._options = {each.id: each for each in options}
        self._chosen = {
            each.id: before[each.id] if each.takes(before.get(each.id)) else each.value for each in options
        }

    @property
    def options(self) -> list[Option]:
        """All options except the mode, each with its current value."""
        return [replace(each, value=self._chosen[each.id]) for each in self._options.values() if each.id != MODE]

    # -- what is chosen ------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, str | bool]:
        """Every choice, with those of options that were not listed again."""
        return {**self._kept, **self._chosen}

    def value(self, option_id: str) -> str | bool:
        """Return the current value. Raises `InvalidOption`."""
        if option_id not in self._chosen:
            raise InvalidOption(f"there is no option `{option_id}` in this session", option=option_id)
        return self._chosen[option_id]

    def choose(self, option_id: str, value: Any) -> bool:
        """Choose a value. Return whether that changed anything. Raises `InvalidOption`."""
        before = self.value(option_id)
        if not self._options[option_id].takes(value):
            raise InvalidOption(f"the option `{option_id}` has no such value", option=option_id)
        self._chosen[option_id] = value
        return before != value

    def take_up(self, choices: dict[str, str | bool]) -> bool:
        """Adopt choices made elsewhere. Return whether anything changed. Choices not offered now are stored."""
        before, self._kept = dict(self._chosen), {**self._kept, **choices}
        for option_id, value in choices.items():
            if option_id in self._options and self._options[option_id].takes(value):
                self._chosen[option_id] = value
        return before != self._chosen

    # -- in the words of v2 --------------------------------------------------------------------------------------

    def listed_commands(self) -> list[Json]:
        return [_command(each) for each in (*self._own_commands, *self.commands)]

    def listed_options(self) -> list[Json]:
        return [_option(each, self._chosen[each.id]) for each in self._options.values()]

    def as_opened(self) -> Raw:
        """All of it, as in the answer that opens a session."""
        return raw({"configOptions": self.listed_options(), "availableCommands": self.listed_commands()})


def _command(command: Command) -> Json:
    listed: Json = {"type": "command", "name": command.name, "description": command.description}
    return listed if command.hint is None else {**listed, "input": {"type": "text", "hint": command.hint}}


def _option(option: Option, chosen: str | bool) -> Json:
    listed: Json = {"configId": option.id, "name": option.name}
    if option.description is not None:
        listed["description"] = option.description
    if option.category is not None:
        listed["category"] = option.category
    if not option.values:
        return {**listed, "type": "boolean", "currentValue": chosen}
    return {**listed, "type": "select", "currentValue": chosen, "options": [_value(each) for each in option.values]}


def _value(value: Value | str) -> Json:
    if isinstance(value, str):
        return {"value": value, "name": value}
    listed: Json = {"value": value.id, "name": value.name}
    return listed if value.description is None else {**listed, "description": value.description}
