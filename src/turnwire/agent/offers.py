"""What a session offers its users to choose: commands, modes and options, with what is chosen.

Takes lists of the author and choices of clients; gives them in the words of ACP v2, in which the mode is an
option like others. Choices that were kept are taken up again when the author lists what can be chosen. Never
tells anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import Raw

from turnwire.agent.options import Command, Mode, Option, Value
from turnwire.agent.words import Json
from turnwire.errors import ConfigError, InvalidOption
from turnwire.wire.jsonrpc import raw

MODE: Final = "mode"


class Offers:
    """Of one session."""

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
        """All but the mode, each with what is chosen."""
        return [replace(each, value=self._chosen[each.id]) for each in self._options.values() if each.id != MODE]

    # -- what is chosen ------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, str | bool]:
        """Every choice, with those of options that were not listed again."""
        return {**self._kept, **self._chosen}

    def value(self, option_id: str) -> str | bool:
        """What is chosen. Raises `InvalidOption`."""
        if option_id not in self._chosen:
            raise InvalidOption(f"there is no option `{option_id}` in this session", option=option_id)
        return self._chosen[option_id]

    def choose(self, option_id: str, value: Any) -> bool:
        """Choose, and say whether that changed anything. Raises `InvalidOption`."""
        before = self.value(option_id)
        if not self._options[option_id].takes(value):
            raise InvalidOption(f"the option `{option_id}` has no such value", option=option_id)
        self._chosen[option_id] = value
        return before != value

    def take_up(self, choices: dict[str, str | bool]) -> bool:
        """Choices that were made elsewhere, and whether they changed anything. What is not offered now is kept."""
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
