"""One run of a cluster, examined: nodes, clients, faults, and then all conditions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import anyio
from anyio import to_thread
from tests.cluster.checker import Owners, one_agent_at_a_time
from tests.cluster.clients import SESSIONS, ClusterClients
from tests.cluster.nodes import PROGRAM, Cluster, open_cluster
from tests.crash.daemon_ledger import Ledger, session_of
from tests.crash.database_witness import DatabaseWitness
from tests.crash.witness import Accepted
from tests.support.postgres import PostgresServer

INTERRUPTIONS = frozenset({"daemon_restarted", "node_lost", "daemon_stopped"})

Act = Callable[[Cluster, ClusterClients], Awaitable[None]]


@dataclass
class Run:
    """The actions and findings of a run."""

    ledger: Ledger
    owners: Owners
    clients: ClusterClients
    cluster: Cluster
    complaints: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    """Complaints that are lines of a node's log: a defect, but no broken promise."""


async def examined(
    folder: Path,
    server: PostgresServer,
    act: Act,
    *,
    seed: str,
    act_s: float,
    settle_s: float,
    count: int = 3,
    program: Sequence[str] = PROGRAM,
    more: Mapping[str, float] | None = None,
    sessions: Sequence[str] = SESSIONS,
    nodes: tuple[int, int] | None = None,
) -> Run:
    """Let clients and faults act on a cluster, let it come to rest, and examine everything.

    `act_s`: the duration of the actions; `settle_s`: the time afterwards until nothing is owed. `more`: other
    limits of the nodes. `nodes`: the numbers of those where all sessions are made, and where all readers are; by
    default any.
    """
    ledger = Ledger(interruptions=INTERRUPTIONS)
    async with open_cluster(folder, server, count, program=program, more=more) as cluster:
        where = [cluster.nodes[each] for each in nodes or ()]
        clients = ClusterClients(cluster, ledger, Random(f"{seed}/clients"), sessions, *where)
        run = Run(ledger, Owners(cluster), clients, cluster)
        try:
            with anyio.fail_after(act_s) as patience:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run.owners.watch)
                    await clients.run(partial(_acted, act, run, settle_s, patience))
                    tasks.cancel_scope.cancel()
        except TimeoutError:
            is_stuck = True
            run.complaints.append(_stuck(run))
        else:
            is_stuck = False
            witness = DatabaseWitness(cluster.server, cluster.log)
            run.complaints += await to_thread.run_sync(witness.look)
            run.complaints += _untrue(run, witness)
        await to_thread.run_sync(run.owners.look)
    # The nodes have stopped gracefully, so all actions of agents are written down.
    marks = cluster.marks()
    if not is_stuck:
        prompts = [(tag, when) for when, _, _, what, _, tag in marks if what == "prompt"]
        run.complaints += ledger.check({session: each[0] for session, each in clients.told.items()}, prompts)
    run.complaints += [*one_agent_at_a_time(marks), *run.owners.complaints]
    run.errors += [line for node in cluster.nodes for line in node.complaints()]
    run.complaints += run.errors
    return run


async def _acted(act: Act, run: Run, settle_s: float, patience: anyio.CancelScope) -> None:
    await act(run.cluster, run.clients)
    patience.deadline = anyio.current_time() + settle_s


def _stuck(run: Run) -> str:
    ledger, clients = run.ledger, run.clients
    waiting = {each: ledger.waiting(each) for each in clients.sessions if ledger.waiting(each)}
    read = {f"{client} {session}": each.last for (client, session), each in ledger.readings.items()}
    told = {name: [len(part) for part in each] for name, each in clients.told.items()}
    return (
        f"stuck with {len(ledger.receipts)} prompts: without an end {waiting}, in doubt {ledger.doubtful},"
        f" refused {clients.refused}, read {read} of {told}"
    )


def _untrue(run: Run, witness: DatabaseWitness) -> Iterator[str]:
    """Return the promises to clients that the log does not fulfil, once nothing is owed."""
    for name, each in run.clients.told.items():
        for other in each[1:]:
            if other != each[0]:
                place = next((n for n, (a, b) in enumerate(zip(each[0], other, strict=False)) if a != b), None)
                here = "" if place is None else f", first {each[0][place]} and {other[place]}"
                yield f"G9 nodes tell {name} differently, {len(each[0])} and {len(other)} events{here}"
    yield from witness.hear(
        [
            Accepted(session_of(key), each.prompt_id, key, each.last_event_id)
            for key, each in run.ledger.receipts.items()
        ]
    )
    yield from witness.settled()
