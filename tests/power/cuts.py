"""Record a run under `strace`, then cut its power at chosen moments and check the remaining files."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.power.disk import ONLY_SYNCED, UNSYNCED, Disk, Luck
from tests.power.promises import is_acknowledgement
from tests.power.trace import Moment, read_trace, run_traced

from turnwire_testing.patience import WAIT_S

SEED = os.environ.get("POWER_SEED") or secrets.token_hex(4)
"""POWER_SEED=… draws the same again. Threads may still run in another order, so a failure can need some runs."""

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A disk in memory, where the syncs of the check cost nothing."""


class Run(NamedTuple):
    """A recorded run: its changes of the folder, and the lines of its ledger as bytes, in their order."""

    folder: Path
    steps: list[Moment | bytes]


def record(place: Path, program: str, *arguments: str) -> Run:
    """Run `python -m program FOLDER LEDGER *arguments` under `strace`."""
    folder, ledger, output = place / "disk", place / "ledger", place / "trace"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", program, str(folder), str(ledger), *arguments]
    run_traced(command, output, timeout_s=2 * WAIT_S)
    run = Run(folder, list(read_trace(output, folder, ledger)))
    output.unlink()
    return run


async def cut_power(
    run: Run,
    random_cuts: int,
    *,
    seed: str,
    note: Callable[[bytes], None],
    look: Callable[[Path], Awaitable[list[str]]],
    drops_sync: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Play the run, cut its power repeatedly, and return the errors that `look` finds in a remaining folder.

    The cuts are after every acknowledgement, with only synced changes, and at random moments, with more than those.
    Ends after the first folder with an error. `note` gets the lines of the ledger.
    """
    chance = Random(seed)
    cuts = _random_cuts(run, random_cuts, chance)
    disk = Disk(run.folder, drops_sync=drops_sync)
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        left = Path(place, "left")
        for number, step in enumerate(run.steps):
            if isinstance(step, bytes):
                note(step)
                if is_acknowledgement(step):
                    cuts[number].append(ONLY_SYNCED)
            else:
                disk.play(step)
            for luck in cuts[number]:
                disk.cut(left, luck, chance)
                if complaints := await look(left):
                    where = f"cut after step {number} of {len(run.steps)}, left {luck.name}"
                    return [f"{where}: {each}" for each in complaints]
                shutil.rmtree(left)
    return []


def _random_cuts(run: Run, count: int, chance: Random) -> defaultdict[int, list[Luck]]:
    """Return random cuts, a third of them while the files are created, because there they are least protected."""
    made = next(number for number, step in enumerate(run.steps) if isinstance(step, bytes))
    cuts: defaultdict[int, list[Luck]] = defaultdict(list)
    for number in range(count):
        step = chance.randrange(len(run.steps) if number % 3 else made or 1)
        cuts[step].append(chance.choice(UNSYNCED))
    return cuts
