"""The sources of settings: the command line, then the environment, then one TOML file, then the defaults.

They are combined into `Loaded`: the settings, the limits, and each effective value with its source. An unknown name
or a value of the wrong kind is a startup error (`ConfigError`), even if a stronger source overrides it, because a
setting that silently does nothing goes unnoticed. Never shows a secret.
"""

from __future__ import annotations

import difflib
import math
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.log.address import password_of
from turnwire.server.settings.agents import AgentEntry, merged
from turnwire.server.settings.declared import LIMIT, LIMITS, PREFIX, SETTINGS, Setting, Settings, check_together
from turnwire.server.settings.kinds import NEVER

AGENTS = "agents"
"""The setting whose sources add up."""
Entries: TypeAlias = tuple[AgentEntry, ...]
CONFIG = PREFIX + "CONFIG"
"""The variable that names the TOML file."""
_OF_AGENT = (
    "MODEL",
    "MODEL_URL",
    "THINKING",
    "DATA",
    "SYSTEM",
    "ALLOW_FETCH",
    "MAX_REQUESTS",
    "MAX_TOKENS",
    "MODE",
)
BUILT_IN = frozenset(f"{PREFIX}AGENT_{name}" for name in _OF_AGENT)
"""The variables of the built-in agent."""
IGNORED = BUILT_IN | {PREFIX + name for name in ("CRASH_SEED", "HYPOTHESIS", "REQUIRE_ALL", "TEST_LOG", "URL")}
"""Variables that are not the daemon's: those of its tests, and the address for the command line's client."""

TABLE: Mapping[str, Setting] = {each.name: each for each in (*SETTINGS, *LIMITS)}
BY_ENV: Mapping[str, Setting] = {each.env: each for each in TABLE.values() if each.env is not None}


class Source(StrEnum):
    """The source of a value, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "command line"


class Explained(NamedTuple):
    """A setting's effective value and its source."""

    name: str
    value: str
    source: Source
    where: str
    """The flag, the variable, or the file and its key; empty for a default."""


class _Found(NamedTuple):
    value: object
    source: Source
    where: str


@dataclass(frozen=True)
class Loaded:
    """All settings and their sources."""

    settings: Settings
    limits: Limits
    config: Path | None
    """The TOML file that was read."""
    found: Mapping[str, _Found]

    def is_default(self, name: str) -> bool:
        """Return whether no source sets this setting."""
        return self.found[name].source is Source.DEFAULT

    def explained(self) -> list[Explained]:
        """Return the effective values and their sources, with secrets masked."""
        return [
            Explained(row.name, _shown(row, self.found[row.name].value), *self.found[row.name][1:])
            for row in TABLE.values()
        ]


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], config: Path | None = None) -> Loaded:
    """Read every source and check the result.

    `flags` has settings by name; `None` and empty values count as absent. `limits` in it is a list of `name=value`.

    Raises:
        ConfigError: with the source, the mistake and the allowed values.
    """
    file = _find_file(config, environ)
    found = _stacked({} if file is None else _from_file(file), _from_environ(environ), _from_flags(flags))
    named = frozenset(found)
    found = {**_defaults(environ, found), **found}
    settings = Settings(**{row.name: cast("Any", found[row.name].value) for row in SETTINGS})
    limits = Limits(**{row.name.removeprefix(LIMIT): cast("Any", found[row.name].value) for row in LIMITS})
    check_together(settings, named)
    return Loaded(settings, limits, file, found)


def _stacked(*sources: dict[str, _Found]) -> dict[str, _Found]:
    """Return the strongest value of each setting. Each agent is a setting by its name, so all sources count."""
    found: dict[str, _Found] = {}
    for each in sources:
        if AGENTS in each and AGENTS in found:
            weaker, stronger = found[AGENTS], each[AGENTS]
            value = merged(cast("Entries", weaker.value), cast("Entries", stronger.value))
            each = {**each, AGENTS: stronger._replace(value=value)}
        found |= each
    return found


# -- the sources, weakest first ------------------------------------------------------------------------------


def _defaults(environ: Mapping[str, str], found: Mapping[str, _Found]) -> dict[str, _Found]:
    values: dict[str, object] = {row.name: row.default for row in TABLE.values()}
    values["cwd"] = (Path.cwd(),)
    log = found.get("log")
    if "data" not in found and (log is None or log.value != "memory"):
        values["data"] = _folder(environ, "XDG_STATE_HOME", ".local/state", "data")
    return {name: _Found(value, Source.DEFAULT, "") for name, value in values.items()}


def _find_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    if named is not None:
        return named
    if not environ.get("HOME") and not environ.get("XDG_CONFIG_HOME"):
        return None
    usual = _folder(environ, "XDG_CONFIG_HOME", ".config", "config") / "turnwire.toml"
    return usual if usual.is_file() else None


def _folder(environ: Mapping[str, str], variable: str, below_home: str, name: str) -> Path:
    """Return turnwire's folder of one type. A relative path in the variable is ignored, as specified by XDG."""
    named = Path(environ.get(variable, ""))
    if named.is_absolute():
        return named / "turnwire"
    home = environ.get("HOME")
    if not home:
        raise ConfigError(f"HOME is not set, so there is no usual place; say where with --{name}")
    return Path(home) / below_home / "turnwire"


def _from_file(file: Path) -> dict[str, _Found]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    limits = content.pop("limits", {})
    if not isinstance(limits, dict):
        raise ConfigError(f"{file}: limits is a table; write [limits] and the limits below it")
    content |= {LIMIT + name: value for name, value in cast("dict[str, object]", limits).items()}
    found: dict[str, _Found] = {}
    base = file.absolute().parent
    for name, value in content.items():
        where = f"{file}: {name}"
        row = _known(name, TABLE, str(file))
        found[name] = _Found(_read(row, value, where, base, is_text=False), Source.FILE, where)
    _check_secrecy(file, found)
    return found


def _check_secrecy(file: Path, found: Mapping[str, _Found]) -> None:
    entries = cast("Entries", found[AGENTS].value if AGENTS in found else ())
    secrets = [name for name in found if TABLE[name].is_secret]
    secrets += [f"secret of agents.{each.name}" for each in entries if each.has_secrets]
    secrets += ["secret of webhooks"] if "webhooks" in found else []
    secrets += ["password of the log"] if "log" in found and password_of(str(found["log"].value)) else []
    if secrets and file.stat().st_mode & 0o077:
        raise ConfigError(
            f"{file} holds a {secrets[0]} and others can read it; run chmod 600 {shlex.quote(str(file))}"
        )


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG or variable in IGNORED:
            continue
        row = _known(variable, BY_ENV, "the environment")
        # Shells and unit files often set an empty variable for one that should be unset.
        if environ[variable]:
            value = _read(row, environ[variable], variable, Path.cwd(), is_text=True)
            found[row.name] = _Found(value, Source.ENVIRONMENT, variable)
    return found


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for name, value in (*flags.items(), *_limit_flags(flags.get("limits"))):
        if value is None or value == () or value == [] or name == "limits":
            continue
        row = _known(name, TABLE, "the command line")
        where = row.flag or "the command after --"
        read = _read(row, value, where, Path.cwd(), is_text=isinstance(value, str))
        found[name] = _Found(read, Source.FLAG, where)
    return found


def _limit_flags(flags: object) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for each in cast("Iterable[str]", flags or ()):
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--limit {each} has no value; write --limit {each}=NUMBER")
        pairs.append((LIMIT + name, value))
    return pairs


# -- one value -----------------------------------------------------------------------------------------------


def _known(name: str, known: Mapping[str, Setting], place: str) -> Setting:
    row = known.get(name)
    if row is None:
        # Limits share a prefix, which would make any two of them look similar.
        head, dot, tail = name.rpartition(".")
        alike = {each.removeprefix(head + dot): each for each in known if each.startswith(head + dot)}
        near = [alike[each] for each in difflib.get_close_matches(tail, alike, 1)]
        advice = f"did you mean {near[0]}?" if near else "`turnwire config` lists all there are"
        raise ConfigError(f"{place} has {name}, and there is no such setting; {advice}")
    return row


def _read(row: Setting, value: object, where: str, base: Path, *, is_text: bool) -> object:
    try:
        return row.kind.from_text(cast("str", value), base) if is_text else row.kind.from_value(value, base)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", **error.context) from None
    except ValueError:
        shown = "not usable" if row.is_secret else ascii(value)[:100]
        raise ConfigError(f"{where} is {shown}; give {row.kind.allowed}", setting=row.name) from None


def _shown(row: Setting, value: object) -> str:
    if value is None:
        return "not set"
    if row.is_secret:
        return "set, not shown"
    if isinstance(value, bool):
        return str(value).lower()
    if value == math.inf:
        return NEVER
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return " ".join(shlex.quote(str(each)) for each in items) or "none"
    return row.kind.shown(str(value))
