"""Measure the code of this folder against a revision: `make bench-compare REV=main PHASES="turns bursts" ROUNDS=9`.

The code of the revision is extracted under `build/bench` and runs with the packages of this environment. Each round
measures both, in alternating order, so that other load affects both, and yields one ratio for each row. A row is
better or worse only if every round agrees, and the median differs by more than `SAME`. `qwen serve` is also
measured, if installed.
"""

from __future__ import annotations

import argparse
import compileall
import io
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.client import ROOT
from bench.phases import PHASES, Found, Phase, chosen
from bench.table import WIDTH, is_rate, shown
from bench.targets import QWEN_SERVE, TURNWIRE, Target

SAME = 0.05
Pairs = dict[str, list[tuple[float, float]]]
"""For each row one pair for each round: the other's value and ours."""


class Row(NamedTuple):
    """One quantity over all rounds."""

    other: float
    ours: float
    ratio: float
    """The factor by which the code of this folder is better."""
    least: float
    greatest: float

    @property
    def verdict(self) -> str:
        if self.least > 1 and self.ratio > 1 + SAME:
            return "better"
        if self.greatest < 1 and self.ratio < 1 - SAME:
            return "WORSE"
        return "the same"

    def shown(self) -> str:
        return f"{self.ratio:8.2f} x{f'{self.least:.2f} … {self.greatest:.2f}':>18}"


def compared(name: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Return medians and ratios of the pairs of a row."""
    ratios = [ours / other if is_rate(name) else other / ours for other, ours in pairs]
    others, ours = (median(each) for each in zip(*pairs, strict=True))
    return Row(others, ours, median(ratios), min(ratios), max(ratios))


def extracted(revision: str) -> Path:
    """Extract a revision and return its source folder. Ends the program if git does not know it."""
    verify = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    found = subprocess.run(verify, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(
            f"git knows no revision {revision!r}. Name a branch, a tag or a commit: make bench-compare REV=main"
        )
    commit = found.stdout.strip()
    folder = ROOT / "build" / "bench" / commit
    if not folder.exists():
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
    if subprocess.run(
        ["git", "diff", "--quiet", commit, "--", "requirements.lock"], cwd=ROOT, check=False
    ).returncode:
        print("note: that revision locks other packages; both are measured with those of this folder")
    return folder / "src"


def measured(phases: Sequence[Phase], then: Target, now: Target, rounds: int) -> tuple[Pairs, Pairs]:
    """Run all rounds; return the pairs with the revision, and those with the peer."""
    pairs, with_peer = Pairs(), Pairs()
    for number in range(rounds):
        for phase in phases:
            values = {each: phase.run(each) for each in ((then, now) if number % 2 == 0 else (now, then))}
            _add(pairs, values[then], values[now])
            if QWEN_SERVE in phase.peers and QWEN_SERVE.missing is None:
                _add(with_peer, phase.run(QWEN_SERVE), values[now])
    return pairs, with_peer


def _add(pairs: Pairs, other: Found, ours: Found) -> None:
    for row, value in other.items():
        our = ours.get(row)
        if isinstance(value, float) and isinstance(our, float) and value and our:
            pairs.setdefault(row, []).append((value, our))


def show(pairs: Pairs, with_peer: Pairs, revision: str) -> None:
    peer = f"{QWEN_SERVE.name:>20}{'better':>10}{'spread':>18}" if with_peer else ""
    print(f"{'':{WIDTH}}{revision[:16]:>16}{'here':>16}{'better':>10}{'spread':>18}{'':12}{peer}".rstrip())
    for name, each in pairs.items():
        row = compared(name, each)
        line = (
            f"{name:{WIDTH}}{shown(name, row.other):>16}{shown(name, row.ours):>16}{row.shown()}  {row.verdict:10}"
        )
        if name in with_peer:
            other = compared(name, with_peer[name])
            line += f"{shown(name, other.other):>20}{other.shown()}"
        print(line.rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-compare", description="Compare this folder with a revision.")
    parser.add_argument("revision")
    parser.add_argument("phases", nargs="*", help=f"of {', '.join(each.name for each in PHASES)}")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    phases = chosen(wanted.phases or [each.name for each in PHASES if not each.is_long])
    source = extracted(wanted.revision)
    # Compile both first: the one that is started first would be slower otherwise.
    for each in (source, ROOT / "src"):
        compileall.compile_dir(each, quiet=2)
    then, now = TURNWIRE._replace(name=wanted.revision, source=source), TURNWIRE._replace(name="here")
    show(*measured(phases, then, now, wanted.rounds), wanted.revision)
    print(f"{wanted.rounds} rounds; better: median ratio of the rounds, spread: the least and the greatest")


if __name__ == "__main__":
    main()
