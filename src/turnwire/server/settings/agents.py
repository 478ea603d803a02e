"""The agents of a daemon by name: `[agents.NAME]` in the settings file, `--agent NAME=COMMAND` as a flag.

Each table or flag becomes an `AgentEntry`. An entry without a command, an address and an import is a known agent:
the command line knows their names and commands. The command after `--` is an entry without a name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from turnwire.errors import ConfigError
from turnwire.hosting.address import checked_agent_url
from turnwire.ids import UNNAMED, AgentName
from turnwire.server.settings import kinds
from turnwire.server.settings.kinds import Kind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """One agent of a daemon, as its operator describes it."""

    name: AgentName
    command: tuple[str, ...] = ()
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    """The credential sent to `url`."""
    imported: str | None = None
    """A module and a name in it: an agent that runs inside the daemon."""
    cwd: Path | None = None
    """Working directory of its process; the daemon's by default."""
    process: str = "shared"
    protocol: int = 2
    env: tuple[str, ...] = ()
    env_set: tuple[str, ...] = field(default=(), repr=False)
    env_all: bool = False
    label: str | None = None
    icon: str | None = None

    def __str__(self) -> str:
        """Return the entry as `turnwire config` shows it, without possible secrets."""
        return f"{self.name}={shlex.join(self.command) or self.url or self.imported or self.name}"

    @property
    def is_described(self) -> bool:
        """Return whether it has a command, address or import; otherwise its name must be a known one."""
        return bool(self.command or self.url or self.imported)

    @property
    def has_secrets(self) -> bool:
        return bool(self.token or self.env_set)


_KEYS: Mapping[str, Kind] = {
    "command": kinds.command(),
    "url": kinds.agent_url(),
    "token": kinds.text(),
    "import": kinds.importable(),
    "cwd": kinds.path("a folder"),
    "process": kinds.choice("shared", "session"),
    "protocol": kinds.number(1, 2, is_whole=True),
    "env": kinds.variables(),
    "env_set": kinds.assignments(),
    "env_all": kinds.switch(),
    "label": kinds.text(),
    "icon": kinds.text("an address of a picture"),
}
"""The keys of an agent's table."""
_FIELDS = {"import": "imported"}
_SECRET = frozenset({"token", "env_set"})


def agents() -> Kind:
    """Agents by name: a table of tables, or flags."""

    def check(value: object, base: Path) -> object:
        if isinstance(value, dict):
            tables = cast("dict[str, object]", value)
            return tuple(_from_table(name, table, base) for name, table in tables.items())
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in cast("Sequence[Any]", value)):
            return tuple(map(_from_flag, cast("Sequence[str]", value)))
        raise ValueError

    def parse(value: str, base: Path) -> object:
        return tuple(_from_flag(each.strip()) for each in value.splitlines() if each.strip())

    allowed = (
        "the NAME of a known agent, NAME=COMMAND, NAME=URL or NAME=MODULE:OBJECT; in TOML a table [agents.NAME]"
    )
    return Kind(allowed, parse, check, is_many=True)


def _from_flag(text: str) -> AgentEntry:
    name, equals, command = text.partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        raise ConfigError(f"the command of {name!r} has a quote without its end; close it") from None
    if equals and not words:
        raise ConfigError(f"the agent {name!r} has no command; write NAME=COMMAND, or the NAME of a known agent")
    entry = AgentEntry(name=_checked_name(name), command=words)
    if len(words) == 1 and "://" in words[0]:
        return replace(entry, command=(), url=checked_agent_url(words[0]))
    # A program's name has no colon, except in a path.
    if len(words) == 1 and ":" in words[0] and "/" not in words[0]:
        return replace(entry, command=(), imported=str(_read(entry.name, "import", words[0], Path())))
    return entry


def _from_table(name: str, table: object, base: Path) -> AgentEntry:
    if not isinstance(table, dict):
        raise ConfigError(f"agents.{name} is no table; write [agents.{name}] and what it is below that")
    found: dict[str, Any] = {}
    for spelt, value in cast("dict[str, object]", table).items():
        key = spelt.replace("-", "_")
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1)
            advice = f"did you mean {near[0]}?" if near else f"it may have {', '.join(_KEYS)}"
            raise ConfigError(f"agents.{name} has {spelt}, and there is no such key; {advice}")
        found[_FIELDS.get(key, key)] = _read(name, key, value, base)
    entry = AgentEntry(name=_checked_name(name), **found)
    if sum(map(bool, (entry.command, entry.url, entry.imported))) > 1:
        raise ConfigError(f"agents.{name} is either a command, an address or an import; give one of them")
    if entry.token is not None and entry.url is None:
        raise ConfigError(f"agents.{name}: token is for an agent at an address; give url, or leave token out")
    return entry


def _read(name: str, key: str, value: object, base: Path) -> object:
    try:
        return _KEYS[key].from_value(value, base)
    except ValueError:
        shown = "not usable" if key in _SECRET else ascii(value)[:100]
        raise ConfigError(f"agents.{name}: {key} is {shown}; give {_KEYS[key].allowed}") from None


def _checked_name(name: str) -> AgentName:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for an agent; use letters, digits, `_` and `-`")
    if name == UNNAMED:
        raise ConfigError(f"{name!r} is the agent that has no name; give this one another name")
    return AgentName(name)


def merged(weaker: Iterable[AgentEntry], stronger: Iterable[AgentEntry]) -> tuple[AgentEntry, ...]:
    """Return the entries of two sources, the stronger first. A name alone uses the weaker source's entry."""
    known = {each.name: each for each in weaker}
    chosen = {each.name: each if each.is_described else known.get(each.name, each) for each in stronger}
    return tuple({**chosen, **{name: each for name, each in known.items() if name not in chosen}}.values())
