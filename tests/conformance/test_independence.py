"""The suite knows nothing of what it judges: it imports the errors of turnwire, and nothing else of it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "turnwire" / "conformance"
ALLOWED = ("turnwire.conformance", "turnwire.errors")


def imported(path: Path) -> set[str]:
    """The modules of turnwire that this one imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {each for each in found if each.split(".")[0] == "turnwire"}


def test_the_suite_shares_no_code_with_the_product() -> None:
    strangers = {
        path.name: sorted(each for each in imported(path) if not each.startswith(ALLOWED))
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: found for name, found in strangers.items() if found} == {}
