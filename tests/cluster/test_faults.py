"""Nodes, their database and the routes between them fail in every way, under load, and all promises to clients
hold.

Three real daemons on one PostgreSQL that has a synchronous standby, each with routes that can be cut, held up and
slowed; clients without affinity. `make test-all` has two short runs, `make soak` runs of `SOAK_S` in all.
`CHAOS_SEED` repeats the faults of one run, as far as timing allows; `CHAOS_PACE` stretches the pauses between
faults and between prompts. Each run prints its seed and its actions.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from random import Random

import anyio
import pytest
from tests.cluster.clients import ClusterClients
from tests.cluster.examining import INTERRUPTIONS, Run, examined
from tests.cluster.faults import Faults
from tests.cluster.nodes import LEASE, Cluster
from tests.cluster.standbys import Standbys
from tests.process.starting import needs_linux

pytestmark = [pytest.mark.anyio, needs_linux]

SEED = os.environ.get("CHAOS_SEED") or None
RUNS = 2 if SEED is None else 1
"""A new cluster each: the start is as valuable to test as an old cluster, and failures are found early."""
IS_SOAK = os.environ.get("TURNWIRE_SOAK") == "1"
RUN_S = float(os.environ.get("SOAK_S", "600") if IS_SOAK else 30) / RUNS
PACE = float(os.environ.get("CHAOS_PACE", "1" if IS_SOAK else "2"))
"""Slower among other tests, so that they get their time; `make soak` has the machine for itself."""
PAUSE_S = (PACE - 1) / 2
STRETCHED = {name: min(PACE, 2) * value for name, value in LEASE.items()}
"""The longer lease in that case, because a delayed node beats late."""
IS_STRICT = IS_SOAK
"""True if a line in a node's log that only a defect causes fails the run. Otherwise it is printed."""
SETTLE_S = 150.0
"""Time limit, after all faults have ended, until nothing is owed."""


async def run_faults(folder: Path, standbys: Standbys, seed: str) -> tuple[Run, Faults]:
    """Disturb a cluster under load, let it come to rest, and examine everything."""
    disturbing: list[Faults] = []

    async def disturb(cluster: Cluster, clients: ClusterClients) -> None:
        faults = Faults(cluster, Random(f"{seed}/faults"), standbys, PACE, STRETCHED)
        disturbing.append(faults)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run, RUN_S)
            await clients.send(RUN_S, PAUSE_S)

    run = await examined(
        folder,
        standbys.primary,
        disturb,
        seed=seed,
        settle_s=SETTLE_S,
        act_s=RUN_S + SETTLE_S,
        more=STRETCHED,
    )
    return run, disturbing[0]


def told(run: Run, faults: Faults, seed: str) -> str:
    """Return the summary of a run in one line."""
    done = ", ".join(f"{count} {name}" for name, count in sorted(faults.done.items()))
    turns, events = len(run.ledger.receipts), sum(len(each[0]) for each in run.clients.told.values())
    return (
        f"CHAOS_SEED={seed}: {RUN_S:.0f} s, {faults.done.total()} faults ({done}), {turns} turns, {events} events,"
        f" {run.owners.changes} changes of owners, {sum(node.lives for node in run.cluster.nodes)} lives,"
        f" {run.clients.refusals} requests sent elsewhere, {len(run.complaints)} complaints"
    )


# Not limited like other tests: its duration is configured.
@pytest.mark.soaked
@pytest.mark.timeout(RUN_S + 3 * SETTLE_S)
@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.guarantee("G1", "G2", "G3", "G7", "G9")
async def test_what_clients_hold_is_true_whatever_fails_in_a_cluster(
    tmp_path: Path, standbys: Standbys, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    seed = SEED or secrets.token_hex(4)
    run, faults = await run_faults(tmp_path, standbys, seed)
    did = told(run, faults, seed)
    with capfd.disabled():
        # Bypass the capture: a passed run is reported as well. And not on the workers' channel.
        sys.stderr.write("\n".join(["", did, *(f"FOUND: {line}" for line in run.errors), ""]))
    broken = [each for each in run.complaints if IS_STRICT or each not in run.errors]
    assert not broken, (
        f"{did}\nfiles in {tmp_path}; once more: make soak TESTS=tests/cluster/test_faults.py CHAOS_SEED={seed}"
        f" SOAK_S={RUN_S:.0f} CHAOS_PACE={PACE:g}\n" + "\n".join(broken[:20])
    )
    # A run without faults would pass as well.
    assert faults.done.total() >= 1, did
    assert run.ledger.receipts, did
    if IS_SOAK:
        assert faults.done.total() >= RUN_S / 10, did
        assert run.owners.changes >= 1, did
        assert len(run.ledger.receipts) >= RUN_S / 2, did
        codes = {end["data"].get("code") for end in run.ledger.ends.values()}
        assert codes & INTERRUPTIONS, "no fault met a turn"
