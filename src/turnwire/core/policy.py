"""Rules of the operator for questions of agents: by tool kind, path, command and who is there.

Takes rules and a `session/request_permission`; gives the verdict of the first rule that fits, or none. An answer
selects one of the offered options by its kind and is never made up: a rule whose kind the agent does not offer
does not fit. Never allows anything by default: without a rule the question waits.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnwire.core.inputs import Verdict
from turnwire.errors import ConfigError
from turnwire.wire.jsonrpc import raw

PERMISSION = "session/request_permission"


class Answer(StrEnum):
    """What a rule says. All but `ask` are the kinds of options in ACP."""

    ALLOW_ONCE = "allow_once"
    ALLOW_ALWAYS = "allow_always"
    REJECT_ONCE = "reject_once"
    REJECT_ALWAYS = "reject_always"
    ASK = "ask"
    """Leave it to the users, whatever later rules say."""


class When(StrEnum):
    """Who must be there for a rule to count."""

    ALWAYS = "always"
    UNATTENDED = "unattended"
    """No controller is at the session."""
    ATTENDED = "attended"


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. All that it names must fit; what it does not name fits anything."""

    answer: Answer
    name: str = ""
    kind: str | None = None
    """The tool call's kind: `read`, `edit`, `execute` …"""
    path: str | None = None
    """A pattern for the paths of the call; `{cwd}` is the session's directory."""
    command: str | None = None
    """A pattern for the command line of an `execute` call."""
    when: When = When.ALWAYS


def read_rules(tables: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Rules as a settings file has them. Raises `ConfigError` that says which one is wrong, and how."""
    rules: list[Rule] = []
    for number, table in enumerate(tables, 1):
        try:
            rule = msgspec.convert(table, Rule)
        except msgspec.ValidationError as error:
            raise ConfigError(f"permission rule {number}: {error}") from None
        if rule.path is None and rule.command is None and rule.kind is None and rule.answer in _ALLOWS:
            raise ConfigError(f"permission rule {number} allows everything; name a kind, a path or a command")
        rules.append(rule if rule.name else msgspec.structs.replace(rule, name=f"rule {number}"))
    return tuple(rules)


_ALLOWS = frozenset({Answer.ALLOW_ONCE, Answer.ALLOW_ALWAYS})


class _Option(Struct, rename="camel"):
    option_id: str
    kind: str = ""


class _Location(Struct):
    path: str


class _ToolCall(Struct, rename="camel"):
    kind: str = "other"
    locations: list[_Location] = []
    raw_input: Any = None


class _Subject(Struct, rename="camel"):
    tool_call: _ToolCall | None = None


class _Asked(Struct, rename="camel"):
    options: list[_Option] = []
    tool_call: _ToolCall | None = None
    subject: _Subject | None = None


def judge(rules: Sequence[Rule], method: str, params: Raw, *, cwd: str, attended: bool) -> Verdict | None:
    """The verdict of the first rule that fits. None for anything that is no readable permission request."""
    if method != PERMISSION:
        return None
    try:
        asked = msgspec.json.decode(params, type=_Asked)
    except msgspec.DecodeError:
        return None
    call = asked.tool_call or (asked.subject.tool_call if asked.subject is not None else None) or _ToolCall()
    for rule in rules:
        if not _fits(rule, call, cwd, attended):
            continue
        if rule.answer is Answer.ASK:
            return None
        option = next((each for each in asked.options if each.kind == rule.answer.value), None)
        if option is not None:
            outcome = {"outcome": "selected", "optionId": option.option_id}
            return Verdict(f"policy: {rule.name}", raw({"outcome": outcome}))
    return None


def _fits(rule: Rule, call: _ToolCall, cwd: str, attended: bool) -> bool:
    if rule.when is not When.ALWAYS and (rule.when is When.ATTENDED) is not attended:
        return False
    if rule.kind is not None and rule.kind != call.kind:
        return False
    allows = rule.answer in _ALLOWS
    if rule.path is not None and not _paths_fit(rule.path, call, cwd, allows=allows):
        return False
    return rule.command is None or _command_fits(rule.command, call, allows=allows)


def _paths_fit(pattern: str, call: _ToolCall, cwd: str, *, allows: bool) -> bool:
    """To allow, every path must match; to reject or to ask, one is enough. A call without paths matches none."""
    pattern = pattern.replace("{cwd}", posixpath.normpath(cwd))
    paths = [posixpath.normpath(posixpath.join(cwd, each.path)) for each in call.locations]
    matching = [fnmatchcase(path, pattern) for path in paths]
    return bool(paths) and (all(matching) if allows else any(matching))


_CHAINS = frozenset(";&|<>`$\n(){}")
"""Characters by which one command line holds more than one command."""


def _command_fits(pattern: str, call: _ToolCall, *, allows: bool) -> bool:
    """A line that could hold a second command is never allowed: `git *` must not allow `git x; rm y`."""
    given = call.raw_input
    command: object = given.get("command") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(command, list):
        command = shlex.join(str(each) for each in command)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not isinstance(command, str) or (allows and _CHAINS.intersection(command)):
        return False
    return fnmatchcase(command, pattern)
