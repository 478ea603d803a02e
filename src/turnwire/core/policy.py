"""Rules of the operator for permission requests of agents: by tool kind, path, command and who is there.

Takes rules, a `session/request_permission` and what is known of its tool call; gives the verdict of the first rule
that fits, or none. An answer selects one of the offered options by its kind and is never made up: where no option
does what the rule says, the users are asked. Never allows anything by default, nor a call that an earlier rule may
be meant for: what the agent did not say is unknown, not harmless. To allow, what is said must be certain: a plain
line of shell, plain paths. To reject, a way to read it is enough, and where that is only a suspicion, users decide.
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

from turnwire.core.inputs import Verdict
from turnwire.core.shell_line import candidates, read_line, text_of
from turnwire.errors import ConfigError
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION


class RuleAnswer(StrEnum):
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

    answer: RuleAnswer
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


_ALLOWS = frozenset({RuleAnswer.ALLOW_ONCE, RuleAnswer.ALLOW_ALWAYS})


# -- what the agent said -------------------------------------------------------------------------------------


class KnownCall(Struct, frozen=True):
    """What is known of a tool call. `None`, or no paths, is what the agent did not say, not what there is not."""

    kind: str | None = None
    locations: tuple[str, ...] = ()
    diffs: tuple[str, ...] = ()
    """The files that its diffs change."""
    command: str | None = None
    has_more: bool = False
    """Beside the command something else was said that changes what is run: variables, or input."""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.locations + self.diffs


class _Path(Struct, rename="camel"):
    path: str
    old_path: str | None = None
    """Of a move or a copy."""


class _Content(Struct):
    type: str = ""
    path: str | None = None
    """Of a diff in v1."""
    changes: list[_Path] | None = None
    """Of a diff in v2."""


class _Change(Struct, rename="camel"):
    kind: str | UnsetType | None = UNSET
    locations: list[_Path] | UnsetType | None = UNSET
    content: list[_Content] | _Content | UnsetType | None = UNSET
    """One that comes alone is added to those that came before."""
    raw_input: Raw | UnsetType = UNSET


class _Input(Struct):
    command: str | list[Any] | None = None
    args: list[Any] | None = None
    env: Any = None
    stdin: Any = None


_read_change = msgspec.json.Decoder(_Change).decode
_read_input = msgspec.json.Decoder(_Input).decode


def amended(call: KnownCall, change: Raw, *, null_clears: bool) -> KnownCall | None:
    """A call after an update: what is there replaces. None if it cannot be read: then nothing is known any more."""
    try:
        told = _read_change(change)
    except UNREADABLE:
        return None
    omitted = (UNSET,) if null_clears else (UNSET, None)
    if told.kind not in omitted:
        call = msgspec.structs.replace(call, kind=told.kind)
    if told.locations not in omitted:
        call = msgspec.structs.replace(call, locations=tuple(each.path for each in told.locations or ()))
    if isinstance(told.content, _Content):
        call = msgspec.structs.replace(call, diffs=call.diffs + _diffs([told.content]))
    elif told.content not in omitted:
        call = msgspec.structs.replace(call, diffs=_diffs(told.content or ()))
    if told.raw_input is not UNSET and (null_clears or bytes(told.raw_input) != b"null"):
        command, has_more = _command(told.raw_input)
        call = msgspec.structs.replace(call, command=command, has_more=has_more)
    return call


def _diffs(content: Sequence[_Content]) -> tuple[str, ...]:
    paths: list[str | None] = []
    for each in content:
        if each.type == "diff":
            paths.append(each.path)
            paths += [path for change in each.changes or () for path in (change.old_path, change.path)]
    return tuple(path for path in paths if path is not None)


def _command(raw_input: Raw) -> tuple[str | None, bool]:
    """The line of shell, and whether there is more to it."""
    try:
        said = _read_input(raw_input)
    except UNREADABLE:
        return None, False
    words = said.command
    if isinstance(words, list):
        words = shlex.join(str(each) for each in words)
    if words is not None and said.args:
        # A program and its arguments apart; a shell reads neither.
        program = words if isinstance(said.command, list) else shlex.quote(words)
        words = " ".join([program, *(shlex.quote(str(each)) for each in said.args)])
    return words, bool(said.env or said.stdin)


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
    """What rules look at."""

    options: tuple[_Option, ...]
    tool_call_id: str | None
    tool_call: Raw
    """What it says of its tool call: a change of what was known, maybe no more than the id."""


def read_request(method: str, params: Raw) -> PermissionParams | None:
    """None for anything that is no readable permission request."""
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


# -- what the rules say to it --------------------------------------------------------------------------------


_CHOICES = {
    RuleAnswer.ALLOW_ONCE: (RuleAnswer.ALLOW_ONCE,),
    RuleAnswer.ALLOW_ALWAYS: (RuleAnswer.ALLOW_ALWAYS, RuleAnswer.ALLOW_ONCE),
    RuleAnswer.REJECT_ONCE: (RuleAnswer.REJECT_ONCE, RuleAnswer.REJECT_ALWAYS),
    RuleAnswer.REJECT_ALWAYS: (RuleAnswer.REJECT_ALWAYS, RuleAnswer.REJECT_ONCE),
}
"""Kinds of options that carry out an answer, best first. No allowing lasts longer than was meant."""


def judge(
    rules: Sequence[Rule], request: PermissionParams, call: KnownCall, *, cwd: str, attended: bool
) -> Verdict | None:
    """The verdict of the first rule that fits. None leaves it to the users."""
    may_allow = True
    for rule in rules:
        fits = _fits(rule, call, cwd, attended)
        if fits is False:
            continue
        if rule.answer is RuleAnswer.ASK:
            return None
        if fits is None:
            # It may be what this rule rejects, so only another rejection may answer for the users.
            may_allow = False
        elif rule.answer in _ALLOWS and not may_allow:
            return None
        else:
            return _carried_out(rule, request.options)
    return None


def _carried_out(rule: Rule, options: Sequence[_Option]) -> Verdict | None:
    for kind in _CHOICES[rule.answer]:
        for option in options:
            if option.kind == kind.value:
                outcome = {"outcome": "selected", "optionId": option.option_id}
                return Verdict(f"policy: {rule.name}", raw({"outcome": outcome}))
    return None


def _fits(rule: Rule, call: KnownCall, cwd: str, attended: bool) -> bool | None:
    """None if that cannot be known. An allowing rule fits only what is known, and always needs the kind."""
    if rule.when is not When.ALWAYS and (rule.when is When.ATTENDED) is not attended:
        return False
    allows = rule.answer in _ALLOWS
    found = [
        rule.kind is None or _kind_fits(rule.kind, call),
        rule.path is None or _paths_fit(rule.path, call, cwd, allows=allows),
        rule.command is None or _command_fits(rule.command, call, allows=allows),
    ]
    if allows:
        # A rule that only names paths is not meant for running something in them.
        runs = call.kind == "execute" or call.command is not None
        names_it = rule.kind is not None or rule.command is not None
        return call.kind is not None and all(found) and (names_it or not runs)
    return False if False in found else None if None in found else True


def _kind_fits(kind: str, call: KnownCall) -> bool | None:
    return None if call.kind is None else call.kind == kind


def _paths_fit(pattern: str, call: KnownCall, cwd: str, *, allows: bool) -> bool | None:
    """To allow, every path must match; to reject or to ask, one is enough."""
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
    """Whether it is known which file is meant."""


_ODD = re.compile(r"^~|^[A-Za-z][A-Za-z0-9+.-]*:|[$`\\]|[\x00-\x1f\x7f]")
"""What a program may take for something else than the name of a file: a home, an address, a variable."""


def _located(path: str, cwd: str) -> _Located:
    """A location as a path. An address of a file is one; what may mean something else is not plain."""
    if path.lower().startswith("file:"):
        address = urlsplit(path)
        decoded = unquote(address.path)
        is_here = address.netloc in ("", "localhost") and decoded.startswith("/")
        is_plain = is_here and not (address.query or address.fragment) and not re.search(r"[\x00-\x1f]", decoded)
        # A file may be called `~x` here, because nothing is left to be read.
        names, path = decoded.split("/"), decoded
    else:
        names, is_plain = path.split("/"), _ODD.search(path) is None
    # What `..` leads to depends on links, which only the disk knows.
    is_plain = is_plain and ".." not in names
    return _Located(_one_slash(posixpath.normpath(posixpath.join(cwd, path))), is_plain)


def _literal(path: str) -> str:
    """A path as a pattern for itself: a directory may be called `app[2024]`."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in path)


def _one_slash(path: str) -> str:
    """`//etc` is `/etc`, though `normpath` keeps it; `{cwd}/x` begins so where the cwd is the root."""
    return "/" + path.lstrip("/") if path.startswith("/") else path


def _command_fits(pattern: str, call: KnownCall, *, allows: bool) -> bool | None:
    """To allow, the line must be one plain command, and all of it: `git *` must not allow `git x; rm y`.

    To reject or to ask, one of its commands is enough. One that it may be hiding leaves it open.
    """
    if call.command is None:
        return None if call.kind in {None, "execute"} else False
    reading = read_line(call.command)
    if allows:
        return reading.is_plain and not call.has_more and fnmatchcase(text_of(reading.commands[0]), pattern)
    if fnmatchcase(call.command, pattern):
        return True
    found = [each.is_sure for each in candidates(reading) if fnmatchcase(each.text, pattern)]
    if found:
        return True if any(found) else None
    return False if reading.is_known and not call.has_more else None
