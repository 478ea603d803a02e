"""The operator's rules for permission requests: matched by tool kind, path and exact command.

Rules are tables of the settings file. The first rule that matches answers; without a match the users are asked:

    [[permission]]
    answer = "reject_once"      # or reject_always, allow_once, allow_always, ask
    path = "*/.env"             # a pattern for the paths of the call; {cwd} is the session's directory

    [[permission]]
    answer = "allow_once"
    kind = "read"               # the kind of the tool call in ACP
    path = "{cwd}/*"
    when = "unattended"         # or attended, always (the default)

    [[permission]]
    answer = "allow_once"
    argv = ["git", "status"]    # exactly this command; only rules that allow may name one

All fields of a rule must match. Nothing is allowed by default, and a field that the agent did not report is
unknown, not harmless: an allowing rule matches only known fields, and a call that an earlier rule might be meant
for is not allowed by a later one.

A call that runs a command is allowed only by a rule with its exact `argv`. The agent reports a command as a list of
arguments, as a program with arguments, or as a line of shell. A line matches only if it is spelled as `shlex.join`
spells the rule's `argv`: one plain command, which every POSIX shell splits identically. There is no shell parser:
users are asked about any other line, and about a command with variables, input or another directory. For the same
reason no rule rejects by the text of a command: a shell has too many ways to spell it.

An answer selects one of the offered options by its kind. If no option does this, users are asked.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import ConfigError
from turnwire.session.inputs import Verdict
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION


class RuleAnswer(StrEnum):
    """The answer of a rule. All but `ask` are kinds of permission options in ACP."""

    ALLOW_ONCE = "allow_once"
    ALLOW_ALWAYS = "allow_always"
    REJECT_ONCE = "reject_once"
    REJECT_ALWAYS = "reject_always"
    ASK = "ask"
    """Ask the users, regardless of later rules."""


class When(StrEnum):
    """The presence of a controller that a rule requires."""

    ALWAYS = "always"
    UNATTENDED = "unattended"
    """No controller is connected to the session."""
    ATTENDED = "attended"


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. All its fields must match; an absent field matches anything."""

    answer: RuleAnswer
    name: str = ""
    kind: str | None = None
    """The tool call's kind: `read`, `edit`, `execute` …"""
    path: str | None = None
    """A pattern for the paths of the call; `{cwd}` is the session's directory."""
    argv: tuple[str, ...] | None = None
    """The exact arguments of the command, with the program first."""
    when: When = When.ALWAYS


def read_rules(tables: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Convert the tables of a settings file. Raises `ConfigError` with the number of the rule that is wrong."""
    rules: list[Rule] = []
    for number, table in enumerate(tables, 1):
        try:
            rule = msgspec.convert(table, Rule)
        except msgspec.ValidationError as error:
            raise ConfigError(f"permission rule {number}: {error}") from None
        if problem := _problem(rule):
            raise ConfigError(f"permission rule {number} {problem}")
        rules.append(rule if rule.name else msgspec.structs.replace(rule, name=f"rule {number}"))
    return tuple(rules)


def _problem(rule: Rule) -> str | None:
    if rule.argv is not None:
        if rule.answer not in _ALLOWS:
            return "has argv, which only rules that allow may have; name a kind or a path"
        if not rule.argv or not rule.argv[0]:
            return "has an argv without a program"
    elif rule.answer in _ALLOWS:
        if rule.kind == "execute":
            return "allows every command; name one with argv"
        if rule.kind is None and rule.path is None:
            return "allows everything; name a kind, a path or an argv"
    return None


_ALLOWS = frozenset({RuleAnswer.ALLOW_ONCE, RuleAnswer.ALLOW_ALWAYS})


# -- fields of a tool call -----------------------------------------------------------------------------------


class KnownCall(Struct, frozen=True):
    """The fields of a tool call that the agent reported. `None`, or no paths, if unreported."""

    kind: str | None = None
    locations: tuple[str, ...] = ()
    diffs: tuple[str, ...] = ()
    """The files that its diffs change."""
    command: tuple[str, ...] | str | None = None
    """Its arguments, or a line of shell."""
    directory: str | None = None
    """The command's working directory, if reported."""
    has_more: bool = False
    """The command is unreadable, or comes with members that may change its effect."""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.locations + self.diffs

    @property
    def runs(self) -> bool:
        """True if the call runs a command, as far as is known."""
        return self.kind == "execute" or self.command is not None or self.has_more

    @property
    def size(self) -> int:
        """Characters of its paths and its command."""
        command = self.command or ""
        return sum(map(len, self.paths)) + (len(command) if isinstance(command, str) else sum(map(len, command)))


class _Path(Struct, rename="camel"):
    path: str
    old_path: str | None = None
    """The source of a move or a copy."""


class _Content(Struct):
    type: str = ""
    path: str | None = None
    """The path of a v1 diff."""
    changes: list[_Path] | None = None
    """The changes of a v2 diff."""


class _Change(Struct, rename="camel"):
    kind: str | UnsetType | None = UNSET
    locations: list[_Path] | UnsetType | None = UNSET
    content: list[_Content] | _Content | UnsetType | None = UNSET
    """A single item is appended to the earlier content."""
    raw_input: Raw | UnsetType = UNSET


class _Input(Struct):
    """The `rawInput` of a tool that runs a command."""

    command: str | list[str]
    args: list[str] = []
    cwd: str | None = None
    workdir: str | None = None
    directory: str | None = None


_UNDERSTOOD = frozenset({*_Input.__struct_fields__, "description", "timeout", "timeout_ms", "timeoutMs"})
"""Members of `rawInput` that are compared, or do not change the effect of a command."""

_read_change = msgspec.json.Decoder(_Change).decode
_read_input = msgspec.json.Decoder(_Input).decode
_read_members = msgspec.json.Decoder(dict[str, Any]).decode


def amended(call: KnownCall, change: Raw, *, null_clears: bool) -> KnownCall | None:
    """Return the call after an update, whose fields replace the earlier ones; `None` if it cannot be decoded."""
    try:
        update = _read_change(change)
    except UNREADABLE:
        return None
    omitted = (UNSET,) if null_clears else (UNSET, None)
    if update.kind not in omitted:
        call = msgspec.structs.replace(call, kind=update.kind)
    if update.locations not in omitted:
        call = msgspec.structs.replace(call, locations=tuple(each.path for each in update.locations or ()))
    if isinstance(update.content, _Content):
        call = msgspec.structs.replace(call, diffs=call.diffs + _diffs([update.content]))
    elif update.content not in omitted:
        call = msgspec.structs.replace(call, diffs=_diffs(update.content or ()))
    if update.raw_input is not UNSET and (null_clears or bytes(update.raw_input) != b"null"):
        command, directory, has_more = _command(update.raw_input)
        call = msgspec.structs.replace(call, command=command, directory=directory, has_more=has_more)
    return call


def _diffs(content: Sequence[_Content]) -> tuple[str, ...]:
    paths: list[str | None] = []
    for each in content:
        if each.type == "diff":
            paths.append(each.path)
            paths += [path for change in each.changes or () for path in (change.old_path, change.path)]
    return tuple(path for path in paths if path is not None)


def _command(raw_input: Raw) -> tuple[tuple[str, ...] | str | None, str | None, bool]:
    """Return the command of a `rawInput`, its directory, and True if other members may change its effect."""
    if bytes(raw_input) == b"null":
        return None, None, False
    try:
        members = _read_members(raw_input)
        if members.get("command") is None:
            return None, None, False
        tool_input = _read_input(raw_input)
    except UNREADABLE:
        return None, None, True
    command = tool_input.command
    if isinstance(command, list):
        command = (*command, *tool_input.args)
    elif tool_input.args:
        command = (command, *tool_input.args)
    directories = [each for each in (tool_input.cwd, tool_input.workdir, tool_input.directory) if each]
    others = [name for name, value in members.items() if name not in _UNDERSTOOD and value is not None]
    return command, directories[0] if directories else None, bool(others) or len(directories) > 1


class _Option(Struct, rename="camel"):
    option_id: str
    kind: str = ""


class _Subject(Struct, rename="camel"):
    tool_call: Raw | UnsetType = UNSET


class _Asked(Struct, rename="camel"):
    options: list[_Option] = []
    tool_call: Raw | UnsetType = UNSET
    subject: _Subject | None = None


class _Named(Struct, rename="camel"):
    tool_call_id: str | None = None


class PermissionParams(Struct, frozen=True):
    """The fields of a permission request that rules match."""

    options: tuple[_Option, ...]
    tool_call_id: str | None
    tool_call: Raw
    """Its tool call: an update of the known call, with at least the id."""


def read_request(method: str, params: Raw) -> PermissionParams | None:
    """Return the fields of a permission request; `None` for another method, or if it cannot be decoded."""
    if method != SESSION_REQUEST_PERMISSION:
        return None
    try:
        asked = msgspec.json.decode(params, type=_Asked)
        change = asked.tool_call
        if change is UNSET and asked.subject is not None:
            change = asked.subject.tool_call
        if change is UNSET:
            change = Raw(b"{}")
        named = msgspec.json.decode(change, type=_Named)
    except UNREADABLE:
        return None
    return PermissionParams(tuple(asked.options), named.tool_call_id, change)


# -- evaluation of rules -------------------------------------------------------------------------------------


_CHOICES = {
    RuleAnswer.ALLOW_ONCE: (RuleAnswer.ALLOW_ONCE,),
    RuleAnswer.ALLOW_ALWAYS: (RuleAnswer.ALLOW_ALWAYS, RuleAnswer.ALLOW_ONCE),
    RuleAnswer.REJECT_ONCE: (RuleAnswer.REJECT_ONCE, RuleAnswer.REJECT_ALWAYS),
    RuleAnswer.REJECT_ALWAYS: (RuleAnswer.REJECT_ALWAYS, RuleAnswer.REJECT_ONCE),
}
"""Kinds of options for an answer, best first. No permission lasts longer than the rule allows."""


def judge(
    rules: Sequence[Rule], request: PermissionParams, call: KnownCall, *, cwd: str, attended: bool
) -> Verdict | None:
    """Return the verdict of the first rule that matches, or `None` if the users must be asked."""
    may_allow = True
    for rule in rules:
        matches = _matches(rule, call, cwd, attended)
        if matches is False:
            continue
        if rule.answer is RuleAnswer.ASK:
            return None
        if matches is None:
            # This rule may be meant to reject the call, so no later rule may allow it.
            may_allow = False
        elif rule.answer in _ALLOWS and not may_allow:
            return None
        else:
            return _select(rule, request.options)
    return None


def _select(rule: Rule, options: Sequence[_Option]) -> Verdict | None:
    for kind in _CHOICES[rule.answer]:
        for option in options:
            if option.kind == kind.value:
                outcome = {"outcome": "selected", "optionId": option.option_id}
                return Verdict(f"policy: {rule.name}", raw({"outcome": outcome}))
    return None


def _matches(rule: Rule, call: KnownCall, cwd: str, attended: bool) -> bool | None:
    """True if a rule matches; `None` if that is unknown. An allowing rule matches only a call of known kind."""
    if rule.when is not When.ALWAYS and (rule.when is When.ATTENDED) is not attended:
        return False
    allows = rule.answer in _ALLOWS
    kind = None if call.kind is None else rule.kind is None or call.kind == rule.kind
    path = rule.path is None or _paths_match(rule.path, call, cwd, allows=allows)
    if allows:
        command = not call.runs if rule.argv is None else _command_matches(rule.argv, call, cwd)
        return bool(kind and path and command)
    if rule.kind is None:
        return path
    return False if False in (kind, path) else None if None in (kind, path) else True


def _command_matches(argv: tuple[str, ...], call: KnownCall, cwd: str) -> bool:
    """True if the call runs exactly this command, in the session's directory."""
    if call.has_more:
        return False
    if call.directory is not None:
        directory = _located(call.directory, cwd)
        if not directory.is_plain or directory.text != _one_slash(posixpath.normpath(cwd)):
            return False
    return call.command == argv or (isinstance(call.command, str) and call.command.strip(" ") == shlex.join(argv))


def _paths_match(pattern: str, call: KnownCall, cwd: str, *, allows: bool) -> bool | None:
    """True if the paths match: every path to allow, any path to reject or to ask. `None` if that is unknown."""
    if not call.paths:
        return None
    pattern = _one_slash(pattern.replace("{cwd}", _literal(posixpath.normpath(cwd))))
    paths = [_located(each, cwd) for each in call.paths]
    if allows:
        return all(each.is_plain and fnmatchcase(each.text, pattern) for each in paths)
    if any(fnmatchcase(each.text, pattern) for each in paths):
        return True
    return False if all(each.is_plain for each in paths) else None


class _Located(NamedTuple):
    text: str
    is_plain: bool
    """True if the path certainly names this file."""


_ODD = re.compile(r"^~|^[A-Za-z][A-Za-z0-9+.-]*:|[$`\\]|[\x00-\x1f\x7f]")
"""Text that a program may read as a home directory, a URL or a variable, not as the name of a file."""


def _located(path: str, cwd: str) -> _Located:
    """Return a location, which may be a `file:` URL, as an absolute path."""
    if path.lower().startswith("file:"):
        address = urlsplit(path)
        decoded = unquote(address.path)
        is_here = address.netloc in ("", "localhost") and decoded.startswith("/")
        is_plain = is_here and not (address.query or address.fragment) and not re.search(r"[\x00-\x1f]", decoded)
        # A decoded URL has no special characters: `~x` is a file of that name.
        names, path = decoded.split("/"), decoded
    else:
        names, is_plain = path.split("/"), _ODD.search(path) is None
    # The target of `..` depends on symbolic links.
    is_plain = is_plain and ".." not in names
    return _Located(_one_slash(posixpath.normpath(posixpath.join(cwd, path))), is_plain)


def _literal(path: str) -> str:
    """Return a pattern that matches only this path: a directory may be called `app[2024]`."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in path)


def _one_slash(path: str) -> str:
    """Replace leading slashes by one: `normpath` retains `//etc`, and `{cwd}/x` becomes `//x` in the root."""
    return "/" + path.lstrip("/") if path.startswith("/") else path
