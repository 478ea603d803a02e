"""The suite is independent of the checked code: apart from its command, it imports only the errors of turnwire."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "turnwire_check"
ALLOWED = {"turnwire.errors"}


def imported(path: Path) -> set[str]:
    """The modules of turnwire that this one imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {each for each in found if each.split(".")[0] in ("turnwire", "turnwire_testing", "turnwire_agent")}


def test_the_suite_shares_no_code_with_the_product() -> None:
    strangers = {
        path.name: sorted(imported(path) - ALLOWED)
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "cli")
    }
    assert {name: found for name, found in strangers.items() if found} == {}
