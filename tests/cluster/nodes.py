"""Real nodes of one cluster: `turnwire serve` processes that share a database, each with routes that can fail.

A node that has ended is restarted after a while, as by a supervisor, until the cluster is to come to rest.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.cluster.network import Condition, FaultyRoute, faulty_route
from tests.crash.daemon_life import SEVERE, TOKEN, WAIT_S
from tests.support.limited import LIMITED
from tests.support.postgres import CLUSTER_KEY, PostgresServer, schema_of

ROOT = Path(__file__).resolve().parents[2]
AGENT = Path(__file__).parents[1] / "support/recording_agent.py"
LINE_BYTES = 65_536
AT_WORK_S = 0.05
"""Interval between two reads of the agents' records."""

EXPECTED = frozenset({"append_failed", "credentials_not_stored", "node_lost"})
"""Events of a node's log that the loss of the database leads to, and of a node that was lost."""

Mark = tuple[int, int, str, str, str, str]
"""Time, process, node, action, the agent's session, and prompt."""

LEASE = {"beat_s": 0.2, "lease_s": 2.0, "self_s": 1.4, "outage_s": 30}
"""So short that a run of a minute has many changes of owners; their proportions are those of the defaults."""
SMALL = {
    "ring_events": 64,
    "page_events": 64,
    "snapshot_events": 200,
    "idle_unload_s": 0.5,
    "drain_s": 1,
    "stop_eof_s": 0.05,
}
"""Small limits, so that reading past the ring, snapshots and releases happen all the time."""


class Node:
    """One node over all its incarnations."""

    def __init__(self, name: str, folder: Path, record: Path, database: FaultyRoute, log: str) -> None:
        self.name = name
        self.folder = folder
        self._record = record
        self.database = database
        self.others: FaultyRoute
        """The route on which the other nodes reach this one."""
        self.log = log
        self._port, self._link_port = _held_port(), _held_port()
        self.link_port: int = self._link_port.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port.getsockname()[1]}"
        self.errors = folder / "errors"
        self.process: Process | None = None
        self.is_wanted = True
        self.lives = 0
        self.codes: list[int] = []
        """Exit codes of its incarnations."""
        self._restart_s = 0.0
        self._ended = anyio.Event()

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def keep_up(self, program: Sequence[str], more: Mapping[str, float]) -> None:
        """Start it, and again whenever it has ended, for as long as it is wanted."""
        while self.is_wanted:
            await self.live(program, more)
            restart_s, self._restart_s = self._restart_s, 0.0
            await anyio.sleep(restart_s)

    async def live(self, program: Sequence[str], more: Mapping[str, float]) -> None:
        """Run one incarnation to its end. `more` are additional limits."""
        self.lives += 1
        with self.errors.open("ab") as errors:
            self.process = await anyio.open_process(
                [*program, *self._arguments(more)],
                cwd=ROOT,
                stdin=None,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        await self._drain_output(self.process)
        self.codes.append(await self.process.wait())
        ended, self._ended = self._ended, anyio.Event()
        ended.set()

    async def _drain_output(self, process: Process) -> None:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead):
            while True:
                await lines.receive_until(b"\n", LINE_BYTES)

    def _arguments(self, more: Mapping[str, float]) -> list[str]:
        agent = [sys.executable, "-I", "-S", str(AGENT), str(self._record), self.name, "marks"]
        config = self.folder / "turnwire.toml"
        config.write_text(f'[agents.marks]\ncommand = {json.dumps(agent)}\nprocess = "session"\n')
        options = {
            "--port": self.url.rpartition(":")[2],
            "--data": str(self.folder / "data"),
            "--cwd": str(self.folder.parent),
            "--token": TOKEN,
            "--log": self.log,
            "--log-format": "json",
            "--log-level": "warning",
            "--config": str(config),
            "--node": self.name,
            "--place": "shared",
            "--cluster-key": CLUSTER_KEY,
            "--cluster-listen": f"127.0.0.1:{self.link_port}",
            "--cluster-url": f"http://127.0.0.1:{self.others.port}",
        }
        limits = [
            word for name, value in {**LEASE, **SMALL, **more}.items() for word in ("--limit", f"{name}={value}")
        ]
        words = [word for option in options.items() for word in option]
        return ["serve", "--json", *words, *limits]

    # -- what can happen to it -----------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self, restart_s: float) -> None:
        """End it now; it comes back after a while."""
        self._restart_s = restart_s
        self.signal(signal.SIGKILL)

    async def leave(self) -> None:
        """End it in good order; it comes back at once."""
        ended = self._ended
        self.signal(signal.SIGTERM)
        await ended.wait()

    async def over(self, lives: int = 1) -> None:
        """Return once this number of incarnations have ended."""
        while len(self.codes) < lives:
            await self._ended.wait()

    async def stop(self) -> None:
        """End it for good."""
        self.is_wanted = False
        if self.is_up:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with anyio.move_on_after(WAIT_S):
                await self._ended.wait()
            self.signal(signal.SIGKILL)

    def complaints(self) -> list[str]:
        """Return its log lines about errors that only a defect causes."""
        lines = self.errors.read_text().splitlines() if self.errors.exists() else []
        return [f"{self.name}: {line}" for line in lines if line.startswith("{") and _is_severe(json.loads(line))]

    def close(self) -> None:
        self._port.close()
        self._link_port.close()


def _is_severe(entry: dict[str, Any]) -> bool:
    return entry["level"] in SEVERE and entry.get("event") not in EXPECTED


def _held_port() -> socket.socket:
    """Bind a port without listening: it stays ours between two incarnations, and each of them may bind it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Cluster:
    """Some nodes, their database, and their agents' records."""

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        nodes: Sequence[Node],
        log: str,
        record: Path,
        program: Sequence[str],
        more: Mapping[str, float],
    ) -> None:
        self.folder = folder
        self._program = program
        self._more = more
        self.server = server
        self.nodes = nodes
        self.log = log
        self.record = record

    def heal(self) -> None:
        """Open every route, resume every process, run the database."""
        for node in self.nodes:
            node.database.become(Condition.OPEN)
            node.others.become(Condition.OPEN)
            node.signal(signal.SIGCONT)
        if not self.server.is_running:
            self.server.start()

    def fail_over(self, standby: PostgresServer) -> None:
        """Lose the database, and let the nodes use its standby."""
        self.server.kill()
        standby.promote()
        for node in self.nodes:
            node.database.lead_to(standby.port)
        self.log = self.log.replace(f":{self.server.port}/", f":{standby.port}/")
        self.server = standby

    async def acquainted(self) -> None:
        """Return once every node has seen one beat of each other, so that none gets more time than the lease."""
        await self._until_there_are(len(self.nodes), "tw_nodes where not gone and beat > 4")

    async def at_work(self, key: str) -> None:
        """Return once an agent works for this prompt."""
        while True:
            if any(tag == key for *_, tag in await to_thread.run_sync(self.marks)):
                return
            await anyio.sleep(AT_WORK_S)

    async def released(self) -> None:
        """Return once no node has any session."""
        await self._until_there_are(0, "tw_sessions where owner is not null")

    async def _until_there_are(self, count: int, rows: str) -> None:
        ask = partial(self.server.ask, f"select count(*) from {rows}", schema_of(self.log))
        while await to_thread.run_sync(ask) != [[str(count)]]:
            # Each query is a separate process: they do not follow each other closely.
            pass

    @asynccontextmanager
    async def second(self, first: Node) -> AsyncGenerator[Node]:
        """Start the same node a second time, in the same folder, for one incarnation."""
        second = Node(first.name, first.folder, self.record, first.database, first.log)
        second.errors = first.folder / "errors of the second"
        async with faulty_route(second.link_port) as second.others, anyio.create_task_group() as tasks:
            tasks.start_soon(second.live, self._program, self._more)
            try:
                yield second
            finally:
                with anyio.CancelScope(shield=True):
                    await second.stop()
                second.close()
                tasks.cancel_scope.cancel()

    def marks(self) -> list[Mark]:
        """Return the agents' records in chronological order."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        found: list[Mark] = []
        for line in lines:
            when, pid, node, what, session, tag = line.split(" ")
            found.append((int(when), int(pid), node, what, session, tag))
        return sorted(found)


PROGRAM = LIMITED


@asynccontextmanager
async def open_cluster(
    folder: Path,
    server: PostgresServer,
    count: int = 3,
    *,
    program: Sequence[str] = PROGRAM,
    more: Mapping[str, float] | None = None,
) -> AsyncGenerator[Cluster]:
    """Running nodes, `more` being limits besides; they, their agents and their routes are gone at the end."""
    log, record = server.new_log(), folder / "record"
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for number in range(count):
            name = f"n{number}"
            (folder / name).mkdir()
            database = await stack.enter_async_context(faulty_route(server.port))
            through = log.replace(f":{server.port}/", f":{database.port}/")
            node = Node(name, folder / name, record, database, through)
            stack.callback(node.close)
            node.others = await stack.enter_async_context(faulty_route(node.link_port))
            nodes.append(node)
        cluster = Cluster(folder, server, nodes, log, record, program, more or {})
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(node.keep_up, program, more or {})
            try:
                yield cluster
            finally:
                with anyio.CancelScope(shield=True):
                    cluster.heal()
                    async with anyio.create_task_group() as stopping:
                        for node in nodes:
                            stopping.start_soon(node.stop)
                tasks.cancel_scope.cancel()
