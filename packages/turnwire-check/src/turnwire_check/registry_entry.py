"""An entry of a registry of agents: a JSON file that describes an agent's distribution, and so the way to start it.

`distribution` has `npx` or `uvx` with a `package`, or `binary` with a `cmd` for each platform; each may have `args`
and `env`. Only npx and uvx themselves download anything: a binary has to be installed.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any, NamedTuple, cast

from turnwire.errors import ConfigError
from turnwire_check.tape import at, items

RUNNERS = {"npx": ("npx", "--yes"), "uvx": ("uvx",)}
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}


class Start(NamedTuple):
    """The start command of an entry's agent."""

    command: tuple[str, ...]
    environment: dict[str, str]


def read_entry(path: Path) -> Start:
    """Raises `ConfigError`."""
    try:
        entry: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--registry {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"--registry {path} is no JSON") from None
    ways = [_packaged(at(entry, "distribution"), name) for name in RUNNERS]
    found = [
        each for each in (*ways, _binary(at(entry, "distribution"), path.parent.resolve())) if each is not None
    ]
    if not found:
        raise ConfigError(
            f"--registry {path} has no `distribution` that can be started here: npx or uvx with a `package`, "
            f"or binary with a `cmd` for {_platform()} that is there"
        )
    return found[0]


def _packaged(distribution: object, name: str) -> Start | None:
    package = at(distribution, name, "package")
    if not isinstance(package, str) or shutil.which(name) is None:
        return None
    return _start((*RUNNERS[name], package), at(distribution, name))


def _binary(distribution: object, beside: Path) -> Start | None:
    target = at(distribution, "binary", _platform())
    program = at(target, "cmd")
    if not isinstance(program, str):
        return None
    found = shutil.which(str(beside / program)) or shutil.which(Path(program).name)
    return None if found is None else _start((found,), target)


def _start(command: tuple[str, ...], way: Any) -> Start:
    arguments = tuple(str(each) for each in items(at(way, "args")))
    given = at(way, "env")
    named = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    return Start((*command, *arguments), {name: str(value) for name, value in named.items()})


def _platform() -> str:
    """Return the platform in the notation of entries: `linux-x86_64`."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{MACHINES.get(machine, machine)}"
