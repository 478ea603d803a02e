"""The threat model names tests that exist, and every attack of the audit has one.

Reads `docs/security.md` and the syntax trees of all tests, so that a test that was renamed or removed is noticed
whether or not it was selected.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/security.md"
NUMBERS = [f"13.{each}" for each in range(15)]
"""Those of the audit; 0 is what held before it."""
OF_A_SOCKET = ["13.0", "13.1", "13.4", "13.5", "13.6", "13.7", "13.8", "13.9", "13.12", "13.14"]
"""What is done by somebody at the port, and so over each protocol."""


def named_tests(page: str) -> set[str]:
    """The tests that the text names by hand, and those that the table links to."""
    linked = {f"test_{each.replace(' ', '_')}" for each in re.findall(r"\[([^\]]+)\]\(\.\./tests/", page)}
    return set(re.findall(r"`(test_\w+)`", page)) | linked


def functions(tests: Path) -> set[str]:
    return {
        node.name
        for path in tests.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def rows(page: str) -> dict[str, list[str]]:
    """The rows of the table by their number."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if number := re.match(r"\| (\d+\.\d+) \|", line):
            found.setdefault(number[1], []).append(line)
    return found


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = named_tests((ROOT / PAGE).read_text(encoding="utf-8"))
    assert len(named) > 100
    assert named - functions(ROOT / "tests") == set()


def test_every_attack_of_the_audit_has_a_row_and_those_at_the_port_are_made_over_both_protocols() -> None:
    found = rows((ROOT / PAGE).read_text(encoding="utf-8"))
    assert sorted(found, key=NUMBERS.index) == NUMBERS
    assert [number for number in OF_A_SOCKET if not any("²" in row for row in found[number])] == []


def test_everybody_who_is_trusted_with_something_has_a_test_for_the_rest() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    _, _, table = page.partition("| who | is trusted with |")
    lines = [line for line in table.partition("\n## ")[0].splitlines()[2:] if line.startswith("|")]
    assert len(lines) > 8
    # Nothing is kept from whoever runs the daemon.
    assert [line for line in lines[1:] if "`test_" not in line] == []


def test_the_page_is_current() -> None:
    command = [sys.executable, "scripts/write_security.py", "--check"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_a_name_without_a_test_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a_thing_holds() -> None: ...\n", encoding="utf-8")
    page = "`test_by_hand` and [a thing holds](../tests/test_a.py) and [another](../tests/test_a.py)"
    assert named_tests(page) - functions(tmp_path) == {"test_by_hand", "test_another"}
