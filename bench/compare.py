"""Two revisions side by side: does a change make anything slower, or larger?

    make bench-compare REV=main                        # what is in the folder now, against a revision
    make bench-compare REV=v0.1.0 PHASES="turns bursts" ROUNDS=9

The code of the revision is laid out under `build/bench` and runs on the packages of this environment. Both are
measured by the client of this folder, in turns: each round measures both, once this one first and once the other.
So whatever else uses the machine meets both, and a round gives one ratio. Prints the medians, the median ratio, and
the least and greatest ratio of the rounds, which is the spread: a row is better or worse only if it was so in every
round, and by more than `SAME` in the middle. Where `qwen serve` is installed, it is measured in each round as well.
"""

from __future__ import annotations

import argparse
import compileall
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import acp_turn, stdio
from bench.daemon import PHASES, Phase, chosen
from bench.daemon_table import WIDTH, Found, is_rate, shown
from bench.daemon_targets import QWEN_SERVE, ROOT, TURNWIRE, Target, running

ROUNDS = 5
USUAL = ("start", "turns", "delay", "bursts", "stalls", "crowd", "stdio", "acp")
"""The phases that are short enough for several rounds; the others have to be named."""
SAME = 0.05
"""What a median may differ by and still be called the same."""


class Row(NamedTuple):
    """One quantity of both revisions, over all rounds."""

    then: float
    now: float
    ratio: float
    """How many times better the code of this folder is."""
    least: float
    greatest: float

    @property
    def verdict(self) -> str:
        if self.least > 1 and self.ratio > 1 + SAME:
            return "better"
        if self.greatest < 1 and self.ratio < 1 - SAME:
            return "WORSE"
        return "the same"


def compared(name: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """What the pairs of a row come to, each first the revision's value; the name says whether more is better."""
    ratios = [now / then if is_rate(name) else then / now for then, now in pairs]
    return Row(
        median(then for then, _ in pairs),
        median(now for _, now in pairs),
        median(ratios),
        min(ratios),
        max(ratios),
    )


# -- what only exists here -----------------------------------------------------------------------------------


def over_stdio(target: Target) -> Found:
    """The SDK over stdio, as `bench.stdio` measures it."""
    client = stdio.CLIENTS[0]
    numbers = stdio.run(client, stdio.CHUNKS, {"PYTHONPATH": f"{target.source}{os.pathsep}{ROOT}"})
    return {
        "SDK over stdio, messages/s": stdio.CHUNKS / numbers.seconds,
        "SDK over stdio: CPU of a message, µs": numbers.cpu / stdio.CHUNKS * 1e6,
    }


def over_acp(target: Target) -> Found:
    """One long turn over `/acp`, as `bench.acp_turn` measures it."""
    found: dict[str, float] = {}
    for transport in acp_turn.TRANSPORTS:
        with running(target) as daemon:
            turn = acp_turn.turn_of(acp_turn.served(daemon), daemon.pid, transport, acp_turn.CHUNKS)
        found[f"/acp, {transport}, messages/s"] = turn.per_second
        found[f"/acp, {transport}: CPU of a message, µs"] = turn.cpu_us
    return found


ALL = (*PHASES, Phase("stdio", over_stdio, 1, others=False), Phase("acp", over_acp, 1, others=False))


# -- the revision --------------------------------------------------------------------------------------------


def laid_out(revision: str) -> Path:
    """The source folder of a revision. Ends the program if there is none of that name."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        sys.exit(
            f"git knows no revision {revision!r}; give a branch, a tag or a commit: make bench-compare REV=main"
        )
    commit = found.stdout.strip()
    folder = ROOT / "build" / "bench" / commit
    if not folder.exists():
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
    locked = subprocess.run(["git", "diff", "--quiet", commit, "--", "requirements.lock"], cwd=ROOT)
    if locked.returncode:
        print("note: that revision locks other packages; both are measured with those of this folder")
    return folder / "src"


class Rounds(NamedTuple):
    """What all rounds have found, by row."""

    pairs: dict[str, list[tuple[float, float]]]
    peers: dict[str, list[tuple[float, float]]]
    """The same with the peer's value in the place of the revision's; nothing where it is not measured."""


def rounds_of(phases: Sequence[Phase], then: Target, now: Target, peer: Target | None, rounds: int) -> Rounds:
    """Measure all of them in turns."""
    found = Rounds({}, {})
    for number in range(rounds):
        for phase in phases:
            both = [then, now] if number % 2 == 0 else [now, then]
            others = [peer] if peer is not None and phase.others else []
            values = {each.name: phase.run(each) for each in (*both, *others)}
            _pair(found.pairs, values[then.name], values[now.name])
            if peer is not None and others:
                _pair(found.peers, values[peer.name], values[now.name])
    return found


def _pair(pairs: dict[str, list[tuple[float, float]]], first: Found, second: Found) -> None:
    for row, value in first.items():
        other = second.get(row)
        if isinstance(value, float) and isinstance(other, float) and value and other:
            pairs.setdefault(row, []).append((value, other))


def show(found: Rounds, revision: str, peer: Target | None) -> None:
    beside = "" if peer is None else f"{peer.name:>20}{'better':>10}{'spread':>18}"
    print(f"{'':{WIDTH}}{revision[:16]:>16}{'here':>16}{'better':>10}{'spread':>18}{'':12}{beside}".rstrip())
    for name, each in found.pairs.items():
        row = compared(name, each)
        values = f"{shown(name, row.then):>16}{shown(name, row.now):>16}"
        line = f"{name:{WIDTH}}{values}{_ratio(row)}  {row.verdict:10}"
        if name in found.peers:
            other = compared(name, found.peers[name])
            line += f"{shown(name, other.then):>20}{_ratio(other)}"
        print(line.rstrip())


def _ratio(row: Row) -> str:
    spread = f"{row.least:.2f} … {row.greatest:.2f}"
    return f"{row.ratio:8.2f} x{spread:>18}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-compare", description="Measure the code here against another revision, in turns."
    )
    parser.add_argument("revision")
    parser.add_argument("phases", nargs="*", help=f"of {', '.join(each.name for each in ALL)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    wanted = parser.parse_args()
    phases = chosen(wanted.phases or USUAL, ALL)
    source = laid_out(wanted.revision)
    # The one that is started first would else be slower for compiling.
    for each in (source, ROOT / "src"):
        compileall.compile_dir(each, quiet=2)
    then, now = TURNWIRE._replace(name=wanted.revision, source=source), TURNWIRE._replace(name="here")
    peer = QWEN_SERVE if QWEN_SERVE.missing is None else None
    show(rounds_of(phases, then, now, peer, wanted.rounds), wanted.revision, peer)
    print(f"{wanted.rounds} rounds; better: the median of the rounds' ratios, spread: the least and the greatest")


if __name__ == "__main__":
    main()
