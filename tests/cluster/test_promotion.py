"""The database is lost under load and its synchronous standby takes over: nothing acknowledged is lost.

A primary and a standby, both real, and two nodes. The primary is killed with all its processes; the standby is
promoted, and the database's route leads there from then on.
"""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.cluster.clients import ClusterClients
from tests.cluster.examining import INTERRUPTIONS, examined
from tests.cluster.nodes import Cluster
from tests.cluster.standbys import Standbys
from tests.process.starting import needs_linux

from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, needs_linux]

CALM = {"self_s": 4.0, "lease_s": 6.0, "outage_s": 2 * WAIT_S}
LOAD_S = 1.5


@pytest.mark.guarantee("G1", "G2", "G3", "G7", "G9")
async def test_a_synchronous_standby_takes_over_and_nothing_acknowledged_is_lost_and_no_turn_ends(
    tmp_path: Path, standbys: Standbys
) -> None:
    without_writes_s: list[float] = []

    async def fail_over(cluster: Cluster, clients: ClusterClients) -> None:
        await cluster.acquainted()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clients.send, 2 * LOAD_S)
            await anyio.sleep(LOAD_S)
            began = time.monotonic()
            await to_thread.run_sync(cluster.fail_over, standbys.standby)
            async with anyio.create_task_group() as asking:
                for node, session in zip(cluster.nodes, clients.sessions, strict=False):
                    asking.start_soon(clients.prompt, session, "quick", node)
            without_writes_s.append(time.monotonic() - began)

    run = await examined(
        tmp_path,
        standbys.primary,
        fail_over,
        seed="promotion",
        act_s=2 * WAIT_S,
        settle_s=WAIT_S,
        count=2,
        more=CALM,
    )
    assert not run.complaints, "\n".join(run.complaints[:20])
    assert len(run.ledger.receipts) > len(run.clients.sessions)
    codes = {end["data"].get("code") for end in run.ledger.ends.values()}
    assert not codes & INTERRUPTIONS, "a database that is away costs no turn"
    assert [node.codes for node in run.cluster.nodes] == [[0], [0]]
    assert without_writes_s[0] < WAIT_S, without_writes_s
