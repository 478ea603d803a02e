"""Commands that an agent offers: untagged in v1, tagged in v2.

Takes a list of commands; gives it in the words of the other version.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Raw

from turnwire.core.translate.members import entries, members, raw, text_of
from turnwire.core.view.patch import is_object


def commands_to_v2(commands: Raw) -> Raw:
    """All of them, tagged."""
    return raw([_tagged(members(each)) for each in entries(commands)])


def _tagged(command: dict[str, Raw]) -> dict[str, Raw]:
    tagged = {"type": raw("command"), **command}
    if is_object(command.get("input")):
        tagged["input"] = raw({"type": "text", **members(command["input"])})
    return tagged


def commands_to_v1(commands: Raw, losses: Counter[str]) -> Raw:
    """Those that v1 has a form for, without their tags."""
    return raw([each for each in (_untagged(members(one), losses) for one in entries(commands)) if each])


def _untagged(command: dict[str, Raw], losses: Counter[str]) -> dict[str, Raw] | None:
    if text_of(command, "type") not in {None, "command"}:
        losses["command_type"] += 1
        return None
    plain = {name: value for name, value in command.items() if name != "type"}
    if not is_object(plain.get("input")):
        return plain
    given = members(plain["input"])
    if text_of(given, "type") not in {None, "text"}:
        losses["command_type"] += 1
        return {name: value for name, value in plain.items() if name != "input"}
    plain["input"] = raw({name: value for name, value in given.items() if name != "type"})
    return plain
