"""Users' choices at the agent (its mode, model and options), and how they are restored at a restarted agent.

An agent that is restarted begins with its defaults, and most agents do not remember earlier settings. A user who
chose a read-only mode would not notice. So a choice belongs to the session:

  C1  A choice holds until a user changes it, or the agent itself changes it while it works for the session.
  C2  An agent that reopens the session receives every choice before it receives any prompt.
  C3  If it rejects one, all clients are notified, and nothing starts until a user chooses or releases the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from turnwire.session.events import LostChoice
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_SET_CONFIG_OPTION, SESSION_SET_MODE, SESSION_SET_MODEL

Value: TypeAlias = str | bool

MODE, MODEL = "mode", "model"
"""Names of the choices that are not options of the agent."""
CHANGING = frozenset({"current_mode_update", "config_option_update"})
"""Updates by which an agent reports that a chosen value has changed."""


class Choices(Struct, frozen=True, omit_defaults=True):
    """Choices that users made and the agent accepted."""

    mode: str | None = None
    """Set by `session/set_mode`. Agents whose modes are an option have it in `options`."""
    model: str | None = None
    """Set by `session/set_model`, likewise."""
    options: dict[str, Value] = {}

    def __bool__(self) -> bool:
        return self.mode is not None or self.model is not None or bool(self.options)

    def without(self, names: tuple[str, ...]) -> Choices:
        """Return the choices without these names."""
        options = {name: value for name, value in self.options.items() if name not in names}
        mode = None if MODE in names else self.mode
        model = None if MODEL in names else self.model
        return Choices(mode, model, options)


NO_CHOICES = Choices()


class Setting(NamedTuple):
    """A choice as it is sent to the agent."""

    name: str
    wanted: Value
    method: str
    params: dict[str, object]

    def lost(self, why: str) -> LostChoice:
        return LostChoice(name=self.name, wanted=self.wanted, why=why)


def option_params(config_id: str, value: Value, version: int) -> dict[str, object]:
    """Return the params of `session/set_config_option`, except the session id."""
    params: dict[str, object] = {"configId": config_id, "value": value}
    if isinstance(value, bool):
        params["type"] = "boolean"
    elif version >= 2:
        params["type"] = "id"
    return params


def settings_of(choices: Choices, version: int) -> list[Setting]:
    """Return the settings for an agent of this version. The mode comes last: it matters most and may depend on the
    rest.
    """
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
    """Return the option values in a result or an update by option id; empty if it cannot be decoded."""
    try:
        options = msgspec.json.decode(payload, type=_Options).config_options
    except UNREADABLE:
        return {}
    # v1 names the member `id`, v2 `configId`.
    return {each.config_id or each.id: each.current_value for each in options if each.current_value is not None}


def changed_by(choices: Choices, update: Raw) -> Choices:
    """Return the choices after the agent reported a change in a turn (C1)."""
    values = current_values(update)
    options = {name: values.get(name, value) for name, value in choices.options.items()}
    mode = choices.mode
    if mode is not None:
        with suppress(*UNREADABLE):
            mode = msgspec.json.decode(update, type=_Mode).current_mode_id or mode
    return replace(choices, mode=mode, options=options)


def undone(settings: Sequence[Setting], values: dict[str, Value]) -> list[LostChoice]:
    """Return accepted options that have another value in the end: a later setting may undo an earlier one."""
    told = [each for each in settings if each.method == SESSION_SET_CONFIG_OPTION]
    return [
        each.lost(f"the agent says {values.get(each.name)!r}")
        for each in told
        if values.get(each.name) != each.wanted
    ]


# -- updates that report a choice to clients -------------------------------------------------------------------


def mode_update(mode: str) -> Raw:
    """Return the update that reports this mode."""
    return raw({"sessionUpdate": "current_mode_update", "currentModeId": mode})


def options_update(options: Raw) -> Raw:
    """Return the update that lists all options of the agent."""
    return raw({"sessionUpdate": "config_option_update", "configOptions": options})
