"""Print how large the code is: lines per package, the largest files, the median, tests against source.

Takes the tree it lies in, gives text on stdout, never fails on a number. Size is a consequence: a large file may
hold one concept whole, and a folder of small ones may be one concept in pieces. This shows where to look.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "scripts", "bench")
LARGEST = 8


class Size(NamedTuple):
    """One file and its lines."""

    path: Path
    lines: int


def measure(root: Path) -> list[Size]:
    """Every Python file of ours with its lines, paths relative to `root`."""
    files = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))
    return [Size(path.relative_to(root), _count(path)) for path in files]


def _count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def package(path: Path) -> str:
    """The package a file counts for: `turnwire.log`, `tests/unit`, `scripts`."""
    top, *inside = path.parent.parts
    if top == "src":
        return ".".join(inside[:2])
    return "/".join([top, *inside[:1]])


def report(sizes: list[Size]) -> str:
    """The whole text."""
    packages: defaultdict[str, list[int]] = defaultdict(list)
    for size in sizes:
        packages[package(size.path)].append(size.lines)
    lines = ["package                     files   lines  median"]
    for name, counts in packages.items():
        lines.append(f"{name:<26} {len(counts):>6} {sum(counts):>7} {median(counts):>7g}")
    lines += ["", "largest files"]
    lines += [f"{size.lines:>5}  {size.path}" for size in sorted(sizes, key=lambda size: -size.lines)[:LARGEST]]
    return "\n".join([*lines, "", _totals(sizes)])


def _totals(sizes: list[Size]) -> str:
    source = [size.lines for size in sizes if size.path.parts[0] == "src"]
    tests = sum(size.lines for size in sizes if size.path.parts[0] == "tests")
    if not source:
        return "no source files"
    total = sum(source)
    return (
        f"src {total} lines, median file {median(source):g};"
        f" tests {tests} lines, {tests / total:.2f} per line of src"
    )


if __name__ == "__main__":
    print(report(measure(ROOT)))
