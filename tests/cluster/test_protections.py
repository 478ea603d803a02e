"""Each protection of a cluster is needed: without it a promise breaks, in a deterministic schedule.

Two real nodes on one PostgreSQL. Each schedule runs twice: with unmodified nodes, without any error; and with one
protection switched off (`tests.cluster.broken_node`), which the checker of the fault runs reports.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.cluster.clients import ClusterClients
from tests.cluster.examining import Run, examined
from tests.cluster.network import Condition
from tests.cluster.nodes import PROGRAM, Cluster
from tests.process.starting import needs_linux
from tests.support.postgres import PostgresServer

from turnwire.log.bell import SWEEP_S
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, needs_linux]

ONE = "one"
LIFE_OVER = 75
TWO_AGENTS = "acts for one"
SHORT = {"self_s": 3.5, "lease_s": 4.5}
"""Long enough that a node of a busy machine is not lost while it starts."""
LONG = {"self_s": 20.0, "lease_s": 25.0}
"""A long lease, so that a node that does not wait for its end, or for a lock, conflicts with the owner."""


async def held_up(cluster: Cluster, clients: ClusterClients) -> None:
    """The owner does not reach the database until another node has gone on with its session."""
    owner = cluster.nodes[0]
    await cluster.acquainted()
    await cluster.at_work(await clients.prompt(ONE, "hold on", owner))
    waiting = await clients.prompt(ONE, "work 1500", owner)
    owner.database.become(Condition.HELD)
    await clients.ended(waiting)
    owner.database.become(Condition.OPEN)


async def frozen(cluster: Cluster, clients: ClusterClients) -> None:
    """Freeze the owner's process until another node has continued its session."""
    owner = cluster.nodes[0]
    await cluster.acquainted()
    await cluster.at_work(await clients.prompt(ONE, "hold on", owner))
    waiting = await clients.prompt(ONE, "work 300", owner)
    owner.signal(signal.SIGSTOP)
    await clients.ended(waiting)
    owner.signal(signal.SIGCONT)
    await owner.over()


async def late(cluster: Cluster, clients: ClusterClients) -> None:
    """Delay an append of a node until the node is gone and another one owns the session."""
    owner, next_owner = cluster.nodes
    await cluster.acquainted()
    for _ in range(2):
        await clients.ended(await clients.prompt(ONE, "quick", owner))
    await cluster.released()
    # From here on there is no agent whose end the next owner would have to report.
    await clients.order(ONE, "archive", owner)
    owner.is_wanted = False
    owner.database.become(Condition.HELD)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clients.order, ONE, "unarchive", owner)
        await owner.over()
        tasks.cancel_scope.cancel()
    # There is nothing to cancel: the next owner claims the session, and appends nothing.
    await clients.order(ONE, "cancel", next_owner)
    owner.database.become(Condition.OPEN)
    await owner.database.empty()
    await clients.order(ONE, "unarchive", next_owner)


async def unheard(cluster: Cluster, clients: ClusterClients) -> None:
    """Run a turn on one node while its readers are at the other one."""
    await clients.are_reading()
    await clients.prompt(ONE, "quick", cluster.nodes[0])


async def second_life(cluster: Cluster, clients: ClusterClients) -> None:
    """Start a node a second time, with the same folder, while the first one is frozen."""
    owner = cluster.nodes[0]
    await cluster.acquainted()
    await cluster.at_work(await clients.prompt(ONE, "hold on", owner))
    waiting = await clients.prompt(ONE, "work 300", owner)
    owner.signal(signal.SIGSTOP)
    async with cluster.second(owner) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(first_of, tasks.cancel_scope, second.over)
        tasks.start_soon(first_of, tasks.cancel_scope, partial(clients.ended, waiting))
    owner.signal(signal.SIGCONT)
    await clients.order(ONE, "cancel", owner)


async def first_of(others: anyio.CancelScope, wait: Callable[[], Awaitable[None]]) -> None:
    await wait()
    others.cancel()


class Schedule(NamedTuple):
    act: Callable[[Cluster, ClusterClients], Awaitable[None]]
    more: dict[str, float] = SHORT
    settle_s: float = WAIT_S


async def run(folder: Path, server: PostgresServer, schedule: Schedule, *without: str) -> Run:
    program = (sys.executable, "-m", "tests.cluster.broken_node", *without) if without else PROGRAM
    return await examined(
        folder,
        server,
        schedule.act,
        seed="directed",
        act_s=2 * WAIT_S,
        settle_s=schedule.settle_s,
        count=2,
        program=program,
        more=schedule.more,
        sessions=(ONE,),
        nodes=(0, 1),
    )


HELD_UP = Schedule(held_up)
FROZEN = Schedule(frozen)
LATE = Schedule(late, more={**SHORT, "idle_unload_s": 1.5, "agent_idle_s": 0.5})
UNHEARD = Schedule(unheard)
SECOND_LIFE = Schedule(second_life, more=LONG)


@pytest.mark.parametrize(
    ("schedule", "without"),
    [
        pytest.param(HELD_UP, (), id="held up"),
        pytest.param(FROZEN, (), id="frozen"),
        pytest.param(LATE, (), id="late"),
        pytest.param(UNHEARD, ("rings",), id="unheard"),
        pytest.param(SECOND_LIFE, (), id="second life"),
    ],
)
@pytest.mark.guarantee("G1", "G3", "G7", "G14")
async def test_nodes_with_their_protections_keep_every_promise(
    tmp_path: Path, postgres: PostgresServer, schedule: Schedule, without: tuple[str, ...]
) -> None:
    found = await run(tmp_path, postgres, schedule, *without)
    assert not found.complaints, "\n".join(found.complaints)
    if schedule is FROZEN:
        assert found.cluster.nodes[0].codes[0] == LIFE_OVER


@pytest.mark.parametrize(
    ("schedule", "without", "complaint"),
    [
        pytest.param(HELD_UP, "stop", TWO_AGENTS, id="stop"),
        pytest.param(HELD_UP._replace(more=LONG), "takeover", TWO_AGENTS, id="takeover"),
        pytest.param(FROZEN, "guards", TWO_AGENTS, id="guards"),
        pytest.param(LATE, "fence", "L12", id="fence"),
        pytest.param(UNHEARD._replace(settle_s=3 * SWEEP_S), "sweep", "stuck", id="sweep"),
        pytest.param(SECOND_LIFE, "lock", TWO_AGENTS, id="lock"),
    ],
)
async def test_without_one_of_its_protections_a_cluster_breaks_a_promise_and_it_is_seen(
    tmp_path: Path, postgres: PostgresServer, schedule: Schedule, without: str, complaint: str
) -> None:
    found = await run(tmp_path, postgres, schedule, without)
    assert any(complaint in each for each in found.complaints), found.complaints
