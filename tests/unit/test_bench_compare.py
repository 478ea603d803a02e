"""`bench.compare`: the verdict over several rounds, and its usage errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.compare import compared

ROOT = Path(__file__).resolve().parents[2]
TIME, RATE = "prompt → 202, p50 ms", "20,000 chunks to 1, events/s"


@pytest.mark.parametrize(
    ("name", "pairs", "ratio", "verdict"),
    [
        (TIME, [(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)], 2.0, "better"),
        (TIME, [(1.0, 2.0), (1.0, 2.5), (1.0, 1.6)], 0.5, "WORSE"),
        (RATE, [(100.0, 200.0), (100.0, 150.0), (100.0, 210.0)], 2.0, "better"),
        (RATE, [(200.0, 100.0), (200.0, 90.0), (200.0, 120.0)], 0.5, "WORSE"),
        # One round with the opposite result, and a constant but small difference, are inconclusive.
        (TIME, [(2.0, 1.0), (0.9, 1.0), (2.2, 1.0)], 2.0, "the same"),
        (TIME, [(1.02, 1.0), (1.03, 1.0), (1.01, 1.0)], 1.02, "the same"),
    ],
)
def test_row_is_better_or_worse_if_every_round_says_so(
    name: str, pairs: list[tuple[float, float]], ratio: float, verdict: str
) -> None:
    row = compared(name, pairs)
    assert (row.ratio, row.verdict) == (pytest.approx(ratio), verdict)
    assert row.least <= row.ratio <= row.greatest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-revision"], "git knows no revision 'no-such-revision'"),
        (["HEAD", "sprints"], "Unknown phase sprints. Phases: start, turns"),
    ],
)
def test_unknown_name_is_reported_with_the_known_ones(words: list[str], told: str) -> None:
    command = [sys.executable, "-m", "bench.compare", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert told in done.stderr
