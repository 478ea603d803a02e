"""Build a virtual environment for `make test` with the oldest or the newest allowed versions of all dependencies.

`python scripts/versions.py oldest FOLDER` installs each dependency at its lower bound, and what those need as it
resolves. `newest` installs what a user gets today. The lock files are not read. The folder is built from scratch,
and `make test VENV=FOLDER` uses it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = [ROOT, *sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))]
_LOWER_BOUND = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*>=\s*(?P<version>[\w.]+)[^;]*(?P<marker>;.*)?")


def requirements(project: Path) -> list[str]:
    """Return the dependencies of a distribution, with those of its extras."""
    declared = _declared(project)["project"]
    return [*declared["dependencies"], *(each for extra in _extras(declared) for each in extra)]


def tools() -> Iterator[str]:
    """Yield the requirements of the development group, with those of the groups that it includes."""
    groups: dict[str, list[Any]] = _declared(ROOT)["dependency-groups"]
    pending = list(groups["dev"])
    while pending:
        match pending.pop():
            case {"include-group": name}:
                pending += groups[name]
            case requirement:
                yield requirement


def oldest(requirement: str) -> str | None:
    """Return the requirement pinned at its lower bound, or None if it has none."""
    found = _LOWER_BOUND.fullmatch(requirement)
    return None if found is None else f"{found['name']}=={found['version']}{found['marker'] or ''}"


def build(folder: Path, constraints: list[str]) -> None:
    """Install all distributions of this repository, and the development tools, into a new environment."""
    venv.create(folder, clear=True, with_pip=True)
    pinned = folder / "constraints.txt"
    pinned.write_text("".join(f"{each}\n" for each in constraints), encoding="utf-8")
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    editable = [word for project in PROJECTS for word in ("-e", str(project))]
    extras = [each for project in PROJECTS for each in requirements(project) if not each.startswith("turnwire")]
    subprocess.run([*install, "-c", pinned, *editable, *extras, *tools()], check=True)
    # `make` installs the lock files into an environment without these.
    for stamp in (".serving", ".installed"):
        (folder / stamp).touch()


def _declared(project: Path) -> dict[str, Any]:
    return tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))


def _extras(declared: dict[str, Any]) -> list[list[str]]:
    return list(declared.get("optional-dependencies", {}).values())


def main(which: str, folder: str) -> None:
    bounds = [oldest(each) for project in PROJECTS for each in requirements(project)]
    constraints = [] if which == "newest" else sorted({each for each in bounds if each is not None})
    build(Path(folder), constraints)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("oldest", "newest"):
        sys.exit("usage: python scripts/versions.py oldest|newest FOLDER")
    main(*sys.argv[1:])
