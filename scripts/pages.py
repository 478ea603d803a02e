"""Pages of the documentation that are written from data.

Takes a page and its text; writes it, or with `--check` says whether it is fresh. Never judges what it says.
"""

from __future__ import annotations

import sys
from pathlib import Path


def keep(program: str, arguments: list[str], page: Path, source: Path, text: str) -> int:
    """Write the page, or with `--check` say whether it is fresh; gives the exit code."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {Path(program).name} [--check]", file=sys.stderr)
        return 64
    if not arguments:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.is_file() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page.name} is not what {source.name} says; run: make fix", file=sys.stderr)
    return 1


def table(title: str, columns: list[str], rows: list[list[str]]) -> list[str]:
    """A heading and a table below it. What a cell holds cannot end it."""
    cells = [[each.replace("|", "\\|") for each in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return ["", f"## {title}", "", *(f"| {' | '.join(each)} |" for each in lines)]
