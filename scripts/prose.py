"""Report prose that is hard to read, per package, against ceilings that only decrease.

Two measures: the share of docstrings that open with a subordinate clause ("What …", "Whether …", "Of …") instead of
a noun phrase or an imperative verb, and idioms of our old private dialect per 1,000 words. `scripts/prose.toml` has
a ceiling for each package. `--check` fails if one is exceeded; `--lower` writes the measured values where they are
lower.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "scripts" / "prose.toml"
READ = {".py", ".md", ".ts", ".tsx"}

OPENERS = re.compile(r"(What|Who|Whom|Whose|Where|Whether|That|Of|By (what|which|whom)|When|How|Which|As|Those)\b")
IDIOMS = re.compile(
    r"\b(?:what|who|whoever|whatever) (?:is|was|are|were|has|have|had|comes?|came|goes|waits|asks)\b"
    r"|\bof (?:its|their|his) own\b|\bof ours\b|\bbehind (?:it|them|the answer|the last|each|that|what)\b"
    r"|\bgo(?:es)? on\b|\b(?:is|are|was|were|be) told\b|\bhears?\b|\bheard\b|\b(?:is|are) none\b"
    r"|\b(?:nobody|somebody|whoever)\b|\bmend(?:s|ed)?\b|\bpapers\b|\bin one go\b|\banew\b"
    r"|\bbeside (?:it|them|that)\b|\bput away\b|\bso many\b",
    re.IGNORECASE,
)


class Prose(NamedTuple):
    """Counts for one package, or for one line of text."""

    docstrings: int = 0
    oblique: int = 0
    words: int = 0
    idioms: int = 0

    def plus(self, other: Prose) -> Prose:
        return Prose(*map(sum, zip(self, other, strict=True)))

    @property
    def oblique_percent(self) -> float:
        return round(100 * self.oblique / max(self.docstrings, 1), 1)

    @property
    def idioms_per_1000(self) -> float:
        return round(1000 * self.idioms / max(self.words, 1), 1)


def count(text: str, *, is_docstring: bool = False) -> Prose:
    return Prose(
        docstrings=int(is_docstring),
        oblique=int(is_docstring and OPENERS.match(text) is not None),
        words=len(text.split()),
        idioms=len(IDIOMS.findall(text)),
    )


def texts(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the docstrings, comments or paragraphs of a file; True marks a docstring."""
    source = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield " ".join(text.split()), True
                case _:
                    pass
        comments = re.findall(r"^\s*#\s+((?!noqa|type:|pyright:).*)", source, re.MULTILINE)
    elif path.suffix == ".md":
        outside = re.sub(r"^\s*```.*?^\s*```", "", source, flags=re.MULTILINE | re.DOTALL)
        comments = outside.splitlines()
    else:
        comments = re.findall(r"^\s*(?://+|/?\*+)\s*(.*)", source, re.MULTILINE)
    yield from ((comment, False) for comment in comments)


def package(path: Path) -> str:
    """Return the unit that has a ceiling: a subpackage of turnwire, a sibling package, or a top-level folder."""
    parts = path.parts
    if parts[0] == "src":
        return parts[2] if len(parts) > 3 else "turnwire"
    if parts[0] == "packages":
        return f"{parts[1]} tests" if parts[2] == "tests" else parts[1]
    return parts[0] if len(parts) > 1 else "top"


def measure() -> dict[str, Prose]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Prose] = {}
    for name in filter(None, names.stdout.split("\0")):
        path = Path(name)
        if path.suffix in READ and (ROOT / path).is_file():
            for text, is_docstring in texts(ROOT / path):
                key = package(path)
                found[key] = found.get(key, Prose()).plus(count(text, is_docstring=is_docstring))
    return dict(sorted(found.items()))


def main(option: str = "") -> int:
    measured = measure()
    ceilings: dict[str, list[int]] = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))["ceilings"]
    too_high = False
    for name, prose in measured.items():
        oblique, idioms = ceilings.get(name, [0, 0])
        is_over = prose.oblique_percent > oblique or prose.idioms_per_1000 > idioms
        too_high |= is_over
        print(
            f"{name:24} {prose.oblique_percent:5} % oblique docstrings (at most {oblique}),"
            f" {prose.idioms_per_1000:5} idioms per 1,000 words (at most {idioms}){'  TOO HIGH' if is_over else ''}"
        )
    if option == "--lower":
        lines = [
            f'"{name}" = [{min(ceil(prose.oblique_percent), old[0])}, {min(ceil(prose.idioms_per_1000), old[1])}]'
            for name, prose in measured.items()
            for old in [ceilings.get(name, [100, 1000])]
        ]
        head = CEILINGS.read_text(encoding="utf-8").partition("[ceilings]")[0]
        CEILINGS.write_text(f"{head}[ceilings]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    if too_high and option == "--check":
        print('Rewrite the prose you added; CONTRIBUTING.md, "How we write", has the rules.')
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
