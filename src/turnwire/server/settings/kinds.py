"""Kinds of settings: parsing of text and TOML into values, and descriptions of the allowed values.

Each kind parses a string from the command line or the environment, or a value from a TOML file. It raises
`ValueError` without a message: `allowed` and the source of the value make the message. Never reads a file and never
depends on another setting.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from turnwire.hosting.address import checked_agent_url
from turnwire.hosting.environment import is_variable
from turnwire.log.address import HOW, check_database, shown
from turnwire.server.access.origins import parse_host, parse_network, parse_origin

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


NEVER = "never"
"""The word for an unlimited wait."""


class Kind(NamedTuple):
    """A kind of setting."""

    allowed: str
    """Description of the allowed values, to follow the word 'give'."""
    from_text: Callable[[str, Path], object]
    """Parses a string, with the folder that relative paths start from."""
    from_value: Callable[[object, Path], object]
    """Parses a value of TOML, or of an embedding program."""
    is_many: bool = False
    """True for a list: its flag may be repeated, and its variable holds all items."""
    is_switch: bool = False
    shown: Callable[[str], str] = str
    """Formats a value as text without its secrets."""


def text(allowed: str = "some text") -> Kind:
    """Any text but the empty one."""

    def read(value: object, base: Path) -> object:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return Kind(allowed, read, read)


def number(at_least: float, at_most: float, *, is_whole: bool) -> Kind:
    """A number in a range."""

    def check(value: object, base: Path) -> object:
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise ValueError
        # This form of the comparison also rejects NaN.
        if not at_least <= value <= at_most:
            raise ValueError
        return value

    def parse(value: str, base: Path) -> object:
        return check(int(value) if is_whole else float(value), base)

    allowed = f"a {'whole ' if is_whole else ''}number from {at_least:.12g} to {at_most:.12g}"
    return Kind(allowed, parse, check)


def patience() -> Kind:
    """A timeout in seconds. An unlimited one is infinite."""

    def check(value: object, base: Path) -> object:
        if value == NEVER:
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError
        return float(value)

    def parse(value: str, base: Path) -> object:
        return check(value if value == NEVER else float(value), base)

    return Kind(f"seconds, 0 or more, or {NEVER}", parse, check)


def choice(*names: str) -> Kind:
    """One of several words."""

    def read(value: object, base: Path) -> object:
        if value not in names:
            raise ValueError
        return value

    return Kind("one of " + ", ".join(names), read, read)


def log_place() -> Kind:
    """Check the location of a log. Raises `ConfigError` for an invalid address, without showing it."""

    def read(value: object, base: Path) -> object:
        if value in ("sqlite", "memory"):
            return value
        # A value that looks like an address may hold a password, so it is not shown like other mistakes.
        if not isinstance(value, str) or ":" not in value:
            raise ValueError
        return check_database(value)

    return Kind(f"one of sqlite, memory, {HOW}", read, read, shown=shown)


def switch() -> Kind:
    """A switch: on or off."""

    def check(value: object, base: Path) -> object:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(value: str, base: Path) -> object:
        found = _SWITCH.get(value.lower())
        if found is None:
            raise ValueError
        return found

    return Kind("true or false", parse, check, is_switch=True)


def path(allowed: str) -> Kind:
    """A path. A relative one is resolved against the folder of the file that names it, or the working directory."""
    return Kind(allowed, _path, _path)


def paths(allowed: str) -> Kind:
    """Several paths; a variable holds them with the system's path separator between them."""

    def split(value: str, base: Path) -> object:
        return tuple(_path(each, base) for each in value.split(os.pathsep) if each)

    def check(value: object, base: Path) -> object:
        return tuple(_path(each, base) for each in _items(value))

    return Kind(allowed, split, check, is_many=True)


def origins() -> Kind:
    """Web origins, in the form that browsers send."""
    return _words("origins such as https://app.example, without a path; `*` and `null` are not allowed", _is_origin)


def hosts() -> Kind:
    """Names of hosts, without a port."""
    return _words("host names or addresses without a port, such as agents.example", _is_host)


def networks() -> Kind:
    """Addresses and networks."""
    return _words("addresses or networks, such as 127.0.0.1 or 10.0.0.0/8", _is_network)


def variables() -> Kind:
    """Names of environment variables."""
    return _words(
        "names of variables, such as ANTHROPIC_API_KEY, and none that begins with TURNWIRE_", is_variable, str
    )


def assignments() -> Kind:
    """Environment variables with their values, from a table of a TOML file: NAME=VALUE each."""

    def refuse(value: str, base: Path) -> object:
        raise ValueError

    def check(value: object, base: Path) -> object:
        if not isinstance(value, dict):
            raise ValueError
        found = cast("dict[str, object]", value)
        if not all(
            is_variable(name) and isinstance(each, str) and "\0" not in each for name, each in found.items()
        ):
            raise ValueError
        return tuple(f"{name}={each}" for name, each in found.items())

    allowed = 'a table of texts, such as { LOG_LEVEL = "debug" }, with no name that begins with TURNWIRE_'
    return Kind(allowed, refuse, check)


def command() -> Kind:
    """A program and its arguments. A variable holds them in shell syntax; no shell runs them."""

    def split(value: str, base: Path) -> object:
        return _command(shlex.split(value))

    def check(value: object, base: Path) -> object:
        return _command(_items(value))

    allowed = 'the program and its arguments, in TOML as a list: ["some-agent", "--flag"]'
    return Kind(allowed, split, check, is_many=True)


def agent_url() -> Kind:
    """The address of an agent's ACP endpoint."""

    def read(value: object, base: Path) -> object:
        if not isinstance(value, str):
            raise ValueError
        return checked_agent_url(value)

    return Kind("an address such as wss://agents.example/acp or https://agents.example/acp", read, read)


def importable() -> Kind:
    """A name in a Python module."""

    def read(value: object, base: Path) -> object:
        if not isinstance(value, str):
            raise ValueError
        module, _, name = value.partition(":")
        if not all(each.isidentifier() for each in (*module.split("."), *name.split("."))):
            raise ValueError
        return value

    return Kind("a module and a name in it, such as my_package.my_agent:agent", read, read)


def tables(allowed: str, read: Callable[[list[dict[str, object]]], object]) -> Kind:
    """Tables of a TOML file; another module validates them."""

    def refuse(value: str, base: Path) -> object:
        raise ValueError

    def check(value: object, base: Path) -> object:
        items = _items(value)
        if not all(isinstance(each, dict) for each in items):
            raise ValueError
        return read(cast("list[dict[str, object]]", items))

    return Kind(allowed, refuse, check, is_many=True)


def _words(allowed: str, fits: Callable[[str], bool], form: Callable[[str], str] = str.lower) -> Kind:
    """Several words, each normalized by `form`: lower case by default."""

    def check(value: object, base: Path) -> object:
        words = [form(each) if isinstance(each, str) else "" for each in _items(value)]
        if not all(map(fits, words)):
            raise ValueError
        return tuple(words)

    def split(value: str, base: Path) -> object:
        return check([each.strip() for each in value.split(",") if each.strip()], base)

    return Kind(allowed, split, check, is_many=True)


def _is_origin(word: str) -> bool:
    return parse_origin(word) is not None


def _is_host(word: str) -> bool:
    host = parse_host(word)
    return host is not None and host.port is None


def _is_network(word: str) -> bool:
    return parse_network(word) is not None


def _path(value: object, base: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError
    try:
        return base / Path(value).expanduser()
    except RuntimeError:
        # There is no such user, or it has no home folder.
        raise ValueError from None


def _command(value: Sequence[object]) -> tuple[str, ...]:
    words = [each for each in value if isinstance(each, str) and "\0" not in each]
    if len(words) != len(value) or not words or not words[0]:
        raise ValueError
    return tuple(words)


def _items(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        raise ValueError
    return list(cast("list[object]", value))
