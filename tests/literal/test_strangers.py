"""The peers of this folder are strangers: they know nothing of turnwire but its commands."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
UNDER_TEST = {"sdk_agent.py"}
"""Files written with turnwire because they are what a raw client talks to."""


def imported(path: Path) -> set[str]:
    """The packages that a module imports, by their first name."""
    nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in plain} | {
        (node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)
    }


def test_peers_import_nothing_of_turnwire() -> None:
    importing = {path.name for path in FOLDER.glob("*.py") if "turnwire" in imported(path)}
    assert importing == UNDER_TEST


def test_a_peer_shares_no_support_with_our_other_tests() -> None:
    modules = {
        node.module or ""
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name for name in modules if name.startswith("tests.") and not name.startswith("tests.literal.")}
    assert ours == {"tests.patience"}


def test_the_agent_process_has_the_standard_library_only() -> None:
    assert imported(FOLDER / "relay_agent.py") <= sys.stdlib_module_names
