"""What users chose at the agent: its mode, its model, its options; and how an agent that comes anew hears of it.

An agent that is started again begins with its own defaults, and most do not remember what was set. A user who chose
that nothing is written would not know. So a choice is the session's own:

    C1  A choice stands until a user chooses anew, or the agent itself changes it while it works for the session.
    C2  An agent that opens the session anew is told every choice before it is told any prompt.
    C3  If it does not take one, everybody is told, and nothing starts until a user chooses or lets the queue go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from turnwire.core.events import LostChoice
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_SET_CONFIG_OPTION, SESSION_SET_MODE, SESSION_SET_MODEL

Value: TypeAlias = str | bool

MODE, MODEL = "mode", "model"
"""What choices are called that are no options of the agent."""
CHANGING = frozenset({"current_mode_update", "config_option_update"})
"""Updates by which an agent says that something chosen is different now."""


class Choices(Struct, frozen=True, omit_defaults=True):
    """What users chose, and the agent took."""

    mode: str | None = None
    """By `session/set_mode`; of an agent whose modes are an option it is among those."""
    model: str | None = None
    """By `session/set_model`, likewise."""
    options: dict[str, Value] = {}

    def __bool__(self) -> bool:
        return self.mode is not None or self.model is not None or bool(self.options)

    def without(self, names: tuple[str, ...]) -> Choices:
        """Those that are left when these are given up."""
        options = {name: value for name, value in self.options.items() if name not in names}
        mode = None if MODE in names else self.mode
        model = None if MODEL in names else self.model
        return Choices(mode, model, options)


NO_CHOICES = Choices()


class Setting(NamedTuple):
    """A choice as the agent is told it."""

    name: str
    wanted: Value
    method: str
    params: dict[str, object]

    def lost(self, why: str) -> LostChoice:
        return LostChoice(name=self.name, wanted=self.wanted, why=why)


def option_params(config_id: str, value: Value, version: int) -> dict[str, object]:
    """The params of `session/set_config_option`, but for the session."""
    params: dict[str, object] = {"configId": config_id, "value": value}
    if isinstance(value, bool):
        params["type"] = "boolean"
    elif version >= 2:
        params["type"] = "id"
    return params


def settings_of(choices: Choices, version: int) -> list[Setting]:
    """What an agent of this version is told. The mode comes last: it matters most, and may depend on the rest."""
    settings: list[Setting] = []
    if choices.model is not None:
        settings.append(Setting(MODEL, choices.model, SESSION_SET_MODEL, {"modelId": choices.model}))
    for config_id, value in choices.options.items():
        params = option_params(config_id, value, version)
        settings.append(Setting(config_id, value, SESSION_SET_CONFIG_OPTION, params))
    if choices.mode is not None:
        settings.append(Setting(MODE, choices.mode, SESSION_SET_MODE, {"modeId": choices.mode}))
    return settings


class _Option(Struct, rename="camel"):
    config_id: str = ""
    id: str = ""
    current_value: Value | None = None


class _Options(Struct, rename="camel"):
    config_options: list[_Option] = []


class _Mode(Struct, rename="camel"):
    current_mode_id: str | None = None


def current_values(payload: Raw) -> dict[str, Value]:
    """The values of the options in a result or an update, by their ids; what cannot be read is not known."""
    try:
        options = msgspec.json.decode(payload, type=_Options).config_options
    except UNREADABLE:
        return {}
    # v1 says `id` and v2 `configId`.
    return {each.config_id or each.id: each.current_value for each in options if each.current_value is not None}


def changed_by(choices: Choices, update: Raw) -> Choices:
    """The choices after the agent said in a turn that something is different (C1)."""
    values = current_values(update)
    options = {name: values.get(name, value) for name, value in choices.options.items()}
    mode = choices.mode
    if mode is not None:
        with suppress(*UNREADABLE):
            mode = msgspec.json.decode(update, type=_Mode).current_mode_id or mode
    return replace(choices, mode=mode, options=options)


def undone(settings: Sequence[Setting], values: dict[str, Value]) -> list[LostChoice]:
    """Options that the agent took and that have another value at the end: a later setting may undo an earlier."""
    told = [each for each in settings if each.method == SESSION_SET_CONFIG_OPTION]
    return [
        each.lost(f"the agent says {values.get(each.name)!r}")
        for each in told
        if values.get(each.name) != each.wanted
    ]


# -- for everybody who was not there when it was set -----------------------------------------------------------


def mode_update(mode: str) -> Raw:
    """That the agent has this mode."""
    return raw({"sessionUpdate": "current_mode_update", "currentModeId": mode})


def options_update(options: Raw) -> Raw:
    """What all options of the agent are."""
    return raw({"sessionUpdate": "config_option_update", "configOptions": options})
