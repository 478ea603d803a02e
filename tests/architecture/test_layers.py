"""Imports go down only: the layers of turnwire, enforced by a walk over every import line.

A line of `LAYERS` may import from the lines below it. Packages on one line are siblings and never import each
other. An import for type checking only counts as well: it is a dependency all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src"
SIBLINGS: dict[str, set[str]] = {
    "turnwire_agent": set(),
    "turnwire_check": {"turnwire_testing"},
    "turnwire_testing": set(),
}
"""Sibling distributions, each with the siblings that it may import. The main package imports none of them."""

LAYERS = [
    {"__main__"},
    {"cli"},
    {"api", "demo"},
    {"server", "client", "agent"},
    {"runtime"},
    {"log", "hosting"},
    {"projections"},
    {"session"},
    {"wire"},
    {"new_ids"},
    {"limits", "ids", "clock"},
    {"errors"},
]
RANK = {name: rank for rank, line in enumerate(reversed(LAYERS)) for name in line}
ROOT = ""
"""The layer of `turnwire/__init__.py`, which only re-exports."""


class Import(NamedTuple):
    """One internal import."""

    place: str
    importer: str
    imported: str


def layer(module: tuple[str, ...]) -> str:
    if module[0] in SIBLINGS:
        return module[0]
    return module[1] if len(module) > 1 else ROOT


def imports(source: Path) -> Iterator[Import]:
    """Every import inside the package, as the layers at both ends."""
    package = source / "turnwire"
    top = {path.stem for path in package.iterdir()}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(source).with_suffix("").parts
        module = inside[:-1] if inside[-1] == "__init__" else inside
        for node in ast.walk(ast.parse(path.read_bytes())):
            for target in targets(node, inside[:-1]):
                # `from turnwire import log` names a layer; `from turnwire import __version__` does not.
                known = target if target[0] in SIBLINGS or target[1:2] == () or target[1] in top else target[:1]
                place = f"{path.relative_to(source).as_posix()}:{getattr(node, 'lineno', 0)}"
                if target != ("turnwire", "__version__"):
                    yield Import(place, layer(module), layer(known))


def targets(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Return our modules in an import statement, as dotted parts; `package` is the base of a relative one."""
    found: list[tuple[str, ...]] = []
    if isinstance(node, ast.Import):
        found = [tuple(alias.name.split(".")) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        base = (*start, *(node.module.split(".") if node.module else ()))
        found = [(*base, alias.name) for alias in node.names]
    return (parts for parts in found if parts[0] == "turnwire" or parts[0] in SIBLINGS)


def complaint(each: Import) -> str | None:
    """Return the reason why this import is forbidden, with the fix; `None` if it is allowed."""
    importer, imported = each.importer, each.imported
    if importer == imported:
        return None
    for name in (importer, imported):
        if name not in RANK and name != ROOT and name not in SIBLINGS:
            return f"{each.place}: `{name}` has no place in the layers; give it a line in LAYERS"
    return _forbidden(each) or _not_below(each)


def _forbidden(each: Import) -> str | None:
    if each.imported in SIBLINGS:
        return f"{each.place}: `turnwire` does not import `{each.imported}`; find it through an entry point"
    if each.imported == ROOT:
        return f"{each.place}: import the module that defines the name, not the package that re-exports it"
    if each.imported == "cli" and each.importer != "__main__":
        return f"{each.place}: nothing imports `cli`; move what you need to a layer below"
    return None


def _not_below(each: Import) -> str | None:
    if each.importer == ROOT or RANK[each.imported] < RANK[each.importer]:
        return None
    if RANK[each.imported] == RANK[each.importer]:
        return f"{each.place}: `{each.importer}` and `{each.imported}` are siblings; meet in another layer"
    return f"{each.place}: `{each.importer}` is below `{each.imported}`; pass the thing in, or move it down"


def complaints(source: Path) -> list[str]:
    return [found for each in imports(source) if (found := complaint(each))]


def test_every_import_goes_down() -> None:
    assert complaints(SOURCE) == []


def test_every_package_has_a_place() -> None:
    names = {path.stem for path in (SOURCE / "turnwire").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names - set(RANK) - {"__init__", "__pycache__"} == set()


def test_every_sibling_is_known() -> None:
    found = {path.name for path in REPOSITORY.glob("packages/*/src/*") if path.name != "__pycache__"}
    assert found == set(SIBLINGS)


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_sibling_imports_no_other_sibling_but_those_it_may(name: str) -> None:
    [package] = REPOSITORY.glob(f"packages/*/src/{name}")
    imported = {
        target[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        for target in targets(node, ())
    }
    assert imported - {"turnwire", name} == SIBLINGS[name]


def tree(folder: Path, module: str, text: str) -> Path:
    """Create a package of empty layers with one module in it."""
    package = folder / "turnwire"
    for name in ("cli", "server", "client", "agent", "runtime", "log", "hosting", "projections", "session", "wire"):
        (package / name).mkdir(parents=True)
    for name in ("errors.py", "limits.py", "ids.py"):
        (package / name).write_text("")
    (package / module).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        ("session/turn.py", "import turnwire.runtime.follow", "`session` is below `runtime`"),
        ("wire/sse.py", "from turnwire.session import turn", "`wire` is below `session`"),
        ("wire/sse.py", "from turnwire import session", "`wire` is below `session`"),
        ("wire/sse.py", "from ..session.turn import NEXT", "`wire` is below `session`"),
        ("wire/sse.py", "from .. import session", "`wire` is below `session`"),
        ("session/turn.py", "def f():\n    from ..log.base import EventLog", "`session` is below `log`"),
        (
            "session/turn.py",
            "if TYPE_CHECKING:\n    from turnwire.log.base import EventLog",
            "`session` is below `log`",
        ),
        ("errors.py", "from .limits import Limits", "`errors` is below `limits`"),
        ("log/memory.py", "from turnwire.hosting.base import FrameLink", "`log` and `hosting` are siblings"),
        ("hosting/peer.py", "from ..log import base", "`hosting` and `log` are siblings"),
        ("server/app.py", "import turnwire.agent", "`server` and `agent` are siblings"),
        ("limits.py", "import turnwire.ids", "`limits` and `ids` are siblings"),
        ("client/session.py", "from turnwire.server import app", "`client` and `server` are siblings"),
        ("runtime/node.py", "from turnwire.client import session", "`runtime` is below `client`"),
        ("runtime/loop.py", "from turnwire_testing import ManualClock", "does not import `turnwire_testing`"),
        ("cli/main.py", "def f():\n    import turnwire_check.run", "does not import `turnwire_check`"),
        ("agent/agent.py", "from turnwire_agent import adapt", "does not import `turnwire_agent`"),
        ("server/app.py", "from turnwire.cli.config import read", "nothing imports `cli`"),
        ("session/turn.py", "from turnwire import Client", "import the module that defines the name"),
        ("session/turn.py", "import turnwire", "import the module that defines the name"),
        ("extra.py", "from turnwire.errors import TurnwireError", "`extra` has no place in the layers"),
    ],
)
def test_an_import_that_breaks_a_rule_is_refused(tmp_path: Path, module: str, text: str, reason: str) -> None:
    [found] = complaints(tree(tmp_path, module, text))
    assert reason in found


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("cli/main.py", "import turnwire.server.app, turnwire.client, turnwire.cli.config"),
        ("__main__.py", "from turnwire.cli import main"),
        ("server/app.py", "from turnwire.runtime.node import Node"),
        ("runtime/loop.py", "from ..log import base\nfrom ..hosting import peer\nfrom . import clock"),
        ("session/turn.py", "from .events import TurnEnded\nfrom turnwire.wire import jsonrpc\nimport msgspec"),
        ("limits.py", "from turnwire.errors import ConfigError"),
        ("client/session.py", "from turnwire.runtime.node import Node\nfrom turnwire.projections.view import View"),
        ("hosting/handshake.py", "from turnwire import __version__"),
        ("__init__.py", "from turnwire.client.client import connect\nfrom .errors import TurnwireError"),
    ],
)
def test_an_import_that_keeps_the_rules_passes(tmp_path: Path, module: str, text: str) -> None:
    assert complaints(tree(tmp_path, module, text)) == []
