"""Write the table of attacks into `docs/security.md` from the tests that make them.

Takes the `attack` markers of all tests, gives one row for each number and its words, with the tests that show it;
`--check` writes nothing and fails when the table is not what the tests say. What stands around the table is written
by hand. Markers are found in the syntax tree, so nothing has to be imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pages import keep, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "security.md"
TESTS = ROOT / "tests"
TITLE = "Attacks that are tried"
NOTE = "² The test is made twice, over HTTP/1.1 and over HTTP/2."
PROTOCOL = "http2"
"""The argument of a test that runs over each protocol."""


class Attack(NamedTuple):
    """One marker on one test."""

    number: tuple[int, ...]
    words: str
    path: str
    test: str
    is_both: bool
    """It is made over HTTP/1.1 and over HTTP/2."""


def attacks(tests: Path) -> list[Attack]:
    """Every attack of the tests below a folder, by its number. Raises `ValueError` for a marker that is none."""
    return sorted(each for path in tests.rglob("test_*.py") for each in _of_file(path, tests.parent))


def _of_file(path: Path, root: Path) -> Iterator[Attack]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.attack":
                    yield _read(each, path.relative_to(root).as_posix(), node)


def _read(marker: ast.Call, path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Attack:
    test = function.name
    given = [each.value for each in marker.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if len(given) != 2 or marker.keywords or not re.fullmatch(r"\d+\.\d+", given[0]) or not given[1]:
        raise ValueError(f'{path}: {test} needs its attack as a number and words: @pytest.mark.attack("13.1", "…")')
    is_both = any(each.arg == PROTOCOL for each in function.args.args)
    return Attack(tuple(map(int, given[0].split("."))), given[1], path, test, is_both)


def render(page: str, found: list[Attack]) -> str:
    """The page with this table; all before its heading is kept, and nothing else follows the table."""
    tests: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for each in found:
        link = f"[{each.test.removeprefix('test_').replace('_', ' ')}](../{each.path})" + " ²" * each.is_both
        tests.setdefault((each.number, each.words), []).append(link)
    rows = [[".".join(map(str, number)), words, "<br>".join(links)] for (number, words), links in tests.items()]
    before = page.partition(f"\n## {TITLE}\n")[0].rstrip("\n")
    return "\n".join([before, *table(TITLE, ["number", "attack", "held by"], rows), "", NOTE]) + "\n"


if __name__ == "__main__":
    page = render(PAGE.read_text(encoding="utf-8"), attacks(TESTS))
    sys.exit(keep(__file__, sys.argv[1:], PAGE, TESTS, page))
