"""One lane of the daemon's kill test: folders, each used by many processes of a daemon, each killed and then
examined.

The input is a seed; the result is a report of the kills and the findings. It stops at the first folder with an
error. Every wait is bounded.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import anyio
import httpx
from anyio import to_thread
from anyio.abc import TaskGroup
from tests.crash.daemon_clients import POINTS, DaemonClients, Fuse
from tests.crash.daemon_ledger import Ledger, session_of
from tests.crash.daemon_life import WAIT_S, Daemons, Folder, Life, Manner, open_daemons
from tests.crash.database_witness import DatabaseWitness
from tests.crash.witness import Accepted, Witness
from tests.support.postgres import PostgresServer

AT_A_TIME = "time"
"""Killed at a random moment of its work."""
STARTING = "start"
"""Killed before it accepts requests: while it opens its log and recovers the last one's state."""
ALONE = "alone"
"""Killed at a random moment in a life that no client came to."""

DEATHS = (
    *(("answer",), ("answer", STARTING, STARTING)),
    *(("queued",), ("queued", ALONE)),
    *((point,) for point in ("burst", "burst", "question", "end", AT_A_TIME, AT_A_TIME)),
)
"""Kinds of deaths in one folder, in any order; those in one bracket follow each other."""
KILLS = sum(map(len, DEATHS))

MOMENT_S = 0.4
"""Maximum duration of a process that ends at a random moment."""
ALONE_S = 0.3
"""And one without clients so much more: its agent has to start before anything can be seen of it."""
START_S = 0.15
"""Approximate duration of a start; measured again with every start."""
LATE_S = 6.0
"""A process that has not reached its point by then is killed at its current one."""


@dataclass
class Report:
    """The kills and findings of a lane."""

    deaths: Counter[str] = field(default_factory=Counter[str])
    late: int = 0
    """Lives that did not come to the point where they were to die."""
    unannounced: int = 0
    """Lives that died before they accepted requests."""
    kinds: Counter[str] = field(default_factory=Counter[str])
    """Events in the logs, by kind."""
    receipts: int = 0
    repeats: int = 0
    read: int = 0
    """Events that clients have read."""
    interrupted: int = 0
    """Prompts that a kill ended."""
    continued: int = 0
    """Prompts that waited when a daemon was killed, and ran to their end in a later life."""
    alone: int = 0
    """Prompts that an agent got in a life that no client came to."""
    complaints: list[str] = field(default_factory=list[str])


class FolderRun:
    """One folder from its first process to its last."""

    def __init__(
        self, daemons: Daemons, path: Path, seed: str, report: Report, server: PostgresServer | None
    ) -> None:
        self._daemons = daemons
        self._random = Random(seed)
        address = None if server is None else server.new_log()
        self._folder = Folder(path, address)
        self._witness = Witness(self._folder.log)
        if server is not None and address is not None:
            self._witness = DatabaseWitness(server, address)
        self._durabilities = ["full", "normal"]
        self._ledger = Ledger()
        self._report = report
        self._lives = 0
        self._start_s = START_S
        self._cursor: str | None = None
        self._heard: set[str] = set()
        self._waited: set[str] = set()
        """Prompts that waited in the queue when a daemon was killed."""
        self._alone: set[int] = set()
        self._agent_process = self._random.choice(["shared", "session"])

    async def run(self) -> None:
        """Kill many lives, then let one live until nothing is owed."""
        deaths = [death for each in self._random.sample(DEATHS, len(DEATHS)) for death in each]
        cold = self._random.randrange(len(deaths))
        try:
            async with anyio.create_task_group() as burials:
                for number, death in enumerate(deaths):
                    if self._report.complaints:
                        return
                    await self._live(death, self._manner(cold=number == cold), burials)
            await self._last()
        finally:
            self._folder.close()

    def _manner(self, *, cold: bool = False) -> Manner:
        self._lives += 1
        return Manner(
            number=self._lives,
            cold=cold,
            durability=self._random.choice(self._durabilities),
            agent_process=self._agent_process,
        )

    # -- one life ------------------------------------------------------------------------------------------

    async def _live(self, death: str, manner: Manner, burials: TaskGroup) -> None:
        """Run one process, kill it, and return the witness's findings."""
        active = self._witness.active()
        life = await self._daemons.start(self._folder.start(manner))
        if death == STARTING:
            with anyio.move_on_after(self._random.uniform(0, self._start_s)):
                await life.announced()
        elif await self._has_announced(life, manner):
            await self._spend(life, death, manner)
        life.kill()
        code = await self._daemons.bury(life)
        burials.start_soon(self._agents_gone, manner)
        found = [] if code == -signal.SIGKILL else [f"the daemon was not killed, but ended with {code}"]
        found += await self._examine()
        if life.has_recovered:
            found += self._witness.recovered(active)
        self._count(death, life)
        self._report.complaints += [f"{problem} [{self._folder.path}, {death}, {manner}]" for problem in found]

    async def _has_announced(self, life: Life, manner: Manner) -> bool:
        began = anyio.current_time()
        with anyio.fail_after(WAIT_S):
            await life.announced()
        if not manner.cold:
            self._start_s = anyio.current_time() - began
        return life.url is not None

    async def _spend(self, life: Life, death: str, manner: Manner) -> None:
        """Let it live until it dies of the ordered death."""
        most_s = LATE_S if death in POINTS else self._random.uniform(0, MOMENT_S)
        if death == ALONE:
            self._alone.add(manner.number)
            # No client requests a session of it: it fulfils its obligations by itself.
            with anyio.move_on_after(ALONE_S + most_s):
                await _hear_recovery(life)
                await life.ended()
            return
        fuse = Fuse(life, death, self._random.randint(1, POINTS.get(death, 1)))
        clients = DaemonClients(life, self._ledger, self._random, fuse, self._cursor)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clients.work)
            tasks.start_soon(_hear_recovery, life)
            with anyio.move_on_after(most_s):
                await life.ended()
            life.kill()
        self._cursor = clients.many_cursor
        self._report.late += death in POINTS and not fuse.has_burnt

    async def _last(self) -> None:
        manner = self._manner()
        life = await self._daemons.start(self._folder.start(manner))
        if not await self._has_announced(life, manner):
            self._report.complaints.append(f"the last daemon of {self._folder.path} did not start")
            return
        clients = DaemonClients(life, self._ledger, self._random, Fuse(life, "", 0), self._cursor)
        whole = await clients.settle()
        life.stop()
        code = await self._daemons.bury(life)
        found = [] if code == 0 else [f"the last daemon did not leave in good order, but with {code}"]
        await self._agents_gone(manner)
        tags = self._folder.tags()
        found += [*await self._examine(), *self._witness.settled(), *self._ledger.check(whole, tags)]
        found += self._folder.complaints()
        self._report.complaints += [f"{problem} [{self._folder.path}]" for problem in found]
        self._sum_up(tags)

    # -- what is found -------------------------------------------------------------------------------------

    async def _examine(self) -> list[str]:
        """Examine the log after the kill, and compare it with the clients' acknowledgements."""
        found = await to_thread.run_sync(self._witness.look)
        fresh = {key: each for key, each in self._ledger.receipts.items() if key not in self._heard}
        self._heard |= fresh.keys()
        claims = [Accepted(session_of(key), each.prompt_id, key, each.last_event_id) for key, each in fresh.items()]
        return [*found, *self._witness.hear(claims)]

    async def _agents_gone(self, manner: Manner) -> None:
        try:
            await self._folder.agents_gone(manner.number)
        except TimeoutError:
            self._report.complaints.append(f"G14 an agent is left of {manner} in {self._folder.path}")

    def _count(self, death: str, life: Life) -> None:
        self._report.deaths[death] += 1
        self._report.unannounced += life.url is None
        for record in self._witness.sessions.values():
            self._waited |= record.open - record.handed

    def _sum_up(self, tags: list[tuple[str, int]]) -> None:
        report, ledger = self._report, self._ledger
        report.kinds += self._witness.kinds
        report.receipts += len(ledger.receipts)
        report.repeats += ledger.repeats
        report.read += sum(len(each.envelopes) for each in ledger.readings.values())
        report.interrupted += sum(each["type"] == "turn_error" for each in ledger.ends.values())
        complete = {each for each, end in ledger.ends.items() if end["type"] == "turn_complete"}
        report.continued += len(self._waited & complete)
        report.alone += sum(life in self._alone for _, life in tags)


async def run_lane(
    folder: Path, seed: str, folders: int, report: Report, server: PostgresServer | None = None
) -> None:
    """Some folders, one after the other, until one is found to be wrong."""
    async with open_daemons() as daemons:
        for number in range(folders):
            await FolderRun(daemons, folder / f"daemon-{number}", f"{seed}/{number}", report, server).run()
            if report.complaints:
                break


async def _hear_recovery(life: Life) -> None:
    """Ask it, until it has recovered or is gone."""
    async with httpx.AsyncClient(base_url=life.url or "", timeout=WAIT_S) as client:
        with suppress(httpx.HTTPError):
            while (await client.get("/health")).json().get("recovering"):
                pass
            life.has_recovered = True
