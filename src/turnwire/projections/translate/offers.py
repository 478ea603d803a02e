"""Translation of a session's offers: options, modes and commands.

In v2 a mode is a config option of the category `mode`, so a v1 agent that has modes gets such an option unless it
lists one itself. The newest list is stored: v2 requires all of it each time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import Raw

from turnwire.session.json_members import entries, is_object, members, raw, read_entries, text_of

_MODE: Final = "mode"
"""The category of a mode's option, and the id of the option generated for modes."""
_SPARE: Final = "_mode"
"""Its id if the agent has an unrelated option of that name."""

# -- options, and the separate modes of v1 ----------------------------------------------------------------------


class Modes:
    """The offers of a v1 agent: options, and modes."""

    def __init__(self, losses: Counter[str], offers: Raw) -> None:
        self._losses = losses
        self._options: list[dict[str, Raw]] = []
        self._modes: list[Raw] = []
        self._state: dict[str, Raw] = {}
        self.current: str | None = None
        self.offers(offers)

    def offers(self, offers: Raw) -> None:
        """Replace all offers by the agent's answer that opened the session."""
        fields = members(offers)
        self._state = members(fields.get("modes"))
        self._modes = entries(self._state.get("availableModes"))
        self.current = text_of(self._state, "currentModeId")
        self.options(fields.get("configOptions"))
        if "models" in fields:
            self._losses["models"] += 1

    def options(self, options: Raw | None) -> None:
        """Replace all options."""
        self._options = [members(each) for each in entries(options)]

    def mode(self, mode: str) -> None:
        """Set another mode. An option that represents it is updated."""
        self.current = mode
        own = self.own_option()
        if own is not None:
            own["currentValue"] = raw(mode)

    def own_option(self) -> dict[str, Raw] | None:
        """Return the agent's option that is its mode."""
        return next((each for each in self._options if text_of(each, "category") == _MODE), None)

    @property
    def standing_id(self) -> str | None:
        """The id of the option generated for the modes; `None` if the agent has no modes or such an option
        itself.
        """
        if self.current is None or self.own_option() is not None:
            return None
        return _SPARE if any(text_of(each, "id") == _MODE for each in self._options) else _MODE

    def listed(self) -> Raw:
        """Return all options in the form of v2."""
        options = [each for each in map(self._option, self._options) if each is not None]
        standing = self.standing_id
        return raw(options if standing is None else [*options, self._standing(standing)])

    def _standing(self, config_id: str) -> dict[str, Any]:
        values = [_renamed(members(each), {"id": "value"}) for each in self._modes]
        if all(text_of(each, "value") != self.current for each in values):
            self._losses["mode_not_listed"] += 1
            values.append({"value": raw(self.current), "name": raw(self.current)})
        option = {"configId": config_id, "name": "Mode", "category": _MODE, "type": "select"}
        others = {"_meta": self._state["_meta"]} if "_meta" in self._state else {}
        return {**option, "currentValue": self.current, "options": values, **others}

    def _option(self, option: dict[str, Raw]) -> dict[str, Raw] | None:
        if text_of(option, "type") == "select" and not entries(option.get("options")):
            self._losses["option_without_values"] += 1
            return None
        return _with_values(_renamed(option, {"id": "configId"}), {"group": "groupId"})


class Options:
    """The offers of a v2 agent. `booleans`: the v1 client accepts options of that type."""

    def __init__(self, losses: Counter[str], offers: Raw, *, booleans: bool) -> None:
        self._losses = losses
        self._types = {"select", "boolean"} if booleans else {"select"}
        self._options: list[dict[str, Raw]] = []
        self.options(members(offers).get("configOptions"))

    def options(self, options: Raw | None) -> None:
        """Replace all options."""
        self._options = [members(each) for each in entries(options)]

    def mode(self, mode: str) -> None:
        """Set another mode for a client."""
        option = self.mode_option()
        if option is not None:
            option["currentValue"] = raw(mode)

    def mode_option(self) -> dict[str, Raw] | None:
        """Return the option that is the agent's mode, if v1 can express it as one."""
        return next((each for each in self._options if _is_mode(each)), None)

    @property
    def current(self) -> str | None:
        """The current mode."""
        option = self.mode_option()
        return None if option is None else text_of(option, "currentValue")

    def listed(self) -> Raw:
        """Return all options that v1 can express, in the form of v1."""
        known = [each for each in self._options if text_of(each, "type") in self._types]
        self._losses["option_type"] += len(self._options) - len(known)
        return raw([_with_values(_renamed(each, {"configId": "id"}), {"groupId": "group"}) for each in known])

    def all(self) -> Raw:
        """Return all options in the agent's form."""
        return raw(self._options)

    def modes(self) -> Raw | None:
        """Return the mode option as the modes of v1."""
        option = self.mode_option()
        if option is None:
            return None
        values = [_renamed(members(each), {"value": "id"}) for each in _flat(option)]
        return raw({"currentModeId": option["currentValue"], "availableModes": values})


def without_booleans(options: Raw, losses: Counter[str]) -> Raw:
    """Return the options of a v1 agent for a v1 client that did not request boolean ones."""
    listed = entries(options)
    known = [each for each in listed if text_of(members(each), "type") != "boolean"]
    losses["option_type"] += len(listed) - len(known)
    return raw(known)


def with_mode(options: Raw, mode: str) -> Raw:
    """Return the options of a v2 agent after a client set another mode."""
    known = Options(Counter(), raw({"configOptions": options}), booleans=True)
    known.mode(mode)
    return known.all()


def _is_mode(option: dict[str, Raw]) -> bool:
    return text_of(option, "category") == _MODE and text_of(option, "type") == "select" and "currentValue" in option


def _flat(option: dict[str, Raw]) -> list[Raw]:
    """Return the values of a select, without their groups."""
    found: list[Raw] = []
    for each in entries(option.get("options")):
        inner = members(each).get("options")
        found += [each] if inner is None else entries(inner)
    return found


def _renamed(fields: dict[str, Raw], names: dict[str, str]) -> dict[str, Raw]:
    return {names.get(name, name): value for name, value in fields.items()}


def _with_values(option: dict[str, Raw], names: dict[str, str]) -> dict[str, Raw]:
    """Return an option with renamed ids of its groups."""
    values = read_entries(option["options"]) if "options" in option else None
    if values is None:
        return option
    return {**option, "options": raw([_renamed(members(each), names) for each in values])}


# -- commands: untagged in v1, tagged in v2 ---------------------------------------------------------------------


def commands_to_v2(commands: Raw) -> Raw:
    """Return all commands, tagged."""
    return raw([_tagged(members(each)) for each in entries(commands)])


def _tagged(command: dict[str, Raw]) -> dict[str, Raw]:
    tagged = {"type": raw("command"), **command}
    if is_object(command.get("input")):
        tagged["input"] = raw({"type": "text", **members(command["input"])})
    return tagged


def commands_to_v1(commands: Raw, losses: Counter[str]) -> Raw:
    """Return the commands that v1 can express, without their tags."""
    return raw([each for each in (_untagged(members(one), losses) for one in entries(commands)) if each])


def _untagged(command: dict[str, Raw], losses: Counter[str]) -> dict[str, Raw] | None:
    if text_of(command, "type") not in {None, "command"}:
        losses["command_type"] += 1
        return None
    plain = {name: value for name, value in command.items() if name != "type"}
    if not is_object(plain.get("input")):
        return plain
    fields = members(plain["input"])
    if text_of(fields, "type") not in {None, "text"}:
        losses["command_type"] += 1
        return {name: value for name, value in plain.items() if name != "input"}
    plain["input"] = raw({name: value for name, value in fields.items() if name != "type"})
    return plain
