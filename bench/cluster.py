"""The log in PostgreSQL and several nodes on it, beside SQLite in the same run: acks, turns, readers, failover.

Prints two tables. Engines and daemons take turns in each round, and a row is the median of all rounds, because
whoever else uses the machine meets all of them. The server is a real one on loopback that syncs to the same disk.
What each row is stands in `docs/bench.md`. Needs PostgreSQL's programs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path

import uvloop
from tests.support.postgres import PostgresServer, find_postgres, postgres_server, schema_of

from bench.daemon_http import WAIT_S, Connection, Stream, pause
from bench.daemon_table import Found, shown
from bench.daemon_targets import (
    TURNWIRE,
    Running,
    Target,
    empty_folder,
    free_port,
    running,
    running_in,
    serve_command,
)
from bench.daemon_turns import create, delay, prompt, spread, turns
from turnwire.errors import LogError
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability
from turnwire.log.base import EventLog, Position
from turnwire.log.postgres import open_postgres_log
from turnwire.log.sqlite import SqliteEventLog

ROUNDS = 3
EVENT = b"x" * 180
LONE = 300
SESSIONS = 100
PAGE = 1024
MiB = 1024 * 1024
IDLE_S = 5.0
WRITERS = 20
OF_THE_LOG = ("SQLite normal", "SQLite full", "PostgreSQL")
OF_DAEMONS = ("SQLite", "PostgreSQL alone", "two nodes, at the owner", "two nodes, at the other")


class Medians:
    """What was found, round after round."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, column: str, found: Found) -> None:
        print(f"… {column}", file=sys.stderr, flush=True)
        for row, value in found.items():
            assert isinstance(value, float | int)
            self._found[row][column].append(value)

    def show(self) -> None:
        print(f"| | {' | '.join(self._columns)} |\n| --- |{' ---: |' * len(self._columns)}")
        for row, cells in self._found.items():
            medians = [statistics.median(cells[each]) if each in cells else None for each in self._columns]
            print(f"| {row} | {' | '.join(shown(row, each) for each in medians)} |")


# -- the log alone ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(engine: str, server: PostgresServer) -> AsyncGenerator[EventLog]:
    if engine == "PostgreSQL":
        async with open_postgres_log(server.new_log(), limits=Limits(), durability=Durability.FULL) as log:
            yield log
        return
    with empty_folder() as folder:
        durability = Durability(engine.split()[1])
        log = await SqliteEventLog.open(folder / "log.db", limits=Limits(), durability=durability)
        try:
            yield log
        finally:
            await log.aclose()


async def of_the_log(engine: str, server: PostgresServer) -> Found:
    async with opened(engine, server) as log:
        names = [SessionId(f"s{number}") for number in range(SESSIONS)]
        for name in names:
            await log.create(name)
        acks: list[float] = []
        await _append(log, names[0], 1, LONE, acks)
        found = spread("one durable event, alone", acks)
        for each in (1, 8):
            acks, begun = [], time.perf_counter()
            times = 40 if each == 1 else 20
            await asyncio.gather(*(_append(log, name, each, times, acks) for name in names))
            row = f"{SESSIONS} sessions, {each} event{'s' * (each > 1)} each"
            found[f"{row}, events/s"] = SESSIONS * times * each / (time.perf_counter() - begun)
            found |= spread(f"{row}: ack", acks)
        return {**found, **await _replayed(log, names[:10])}


async def _append(log: EventLog, name: SessionId, count: int, times: int, acks: list[float]) -> None:
    head = (await log.head(name)).head
    for _ in range(times):
        begun = time.perf_counter()
        head = await log.append(name, [EVENT] * count, expected=head, unsettled=False, durable=True)
        acks.append(time.perf_counter() - begun)


async def _replayed(log: EventLog, names: Sequence[SessionId]) -> Found:
    for name in names:
        await _append(log, name, 1000, 2, [])
    begun, count = time.perf_counter(), 0
    for name in names:
        head, at = await log.head(name), 0
        while page := await log.read(name, Position(head.epoch, at), max_events=PAGE, max_bytes=64 * MiB):
            count, at = count + len(page), page[-1].offset
    return {"replay in pages of 1,024, events/s": count / (time.perf_counter() - begun)}


# -- daemons ---------------------------------------------------------------------------------------------------


def on_database(address: str, *more: str, name: str = "alone") -> Target:
    def command(port: int, folder: Path) -> list[str]:
        return serve_command(port, folder, "--data", str(folder / name), "--log", address, *more)

    return TURNWIRE._replace(name=name, command=command)


def node(address: str, name: str) -> Target:
    listening = f"127.0.0.1:{free_port()}"
    return on_database(address, "--node", name, "--place", "here", "--cluster-listen", listening, name=name)


async def of_a_daemon(daemon: Running, through: Running | None = None) -> Found:
    found = await turns(daemon, through)
    return {**found, **await delay(daemon, through), **await _idle(daemon)}


async def _idle(daemon: Running) -> Found:
    before = daemon.cpu_s()
    await pause(IDLE_S)
    return {"CPU of the owner while nothing happens, ms/s": (daemon.cpu_s() - before) / IDLE_S * 1e3}


def of_daemons(server: PostgresServer, table: Medians) -> None:
    with running(TURNWIRE) as daemon:
        table.take("SQLite", uvloop.run(of_a_daemon(daemon)))
    with running(on_database(server.new_log())) as daemon:
        table.take("PostgreSQL alone", uvloop.run(of_a_daemon(daemon)))
    address = server.new_log()
    first, second = node(address, "a"), node(address, "b")
    with empty_folder() as folder, running_in(folder, first) as a, running_in(folder, second) as b:
        table.take("two nodes, at the owner", uvloop.run(of_a_daemon(a)))
        table.take("two nodes, at the other", uvloop.run(of_a_daemon(a, b)))


# -- what is lost ----------------------------------------------------------------------------------------------


async def _interrupted(a: Running, b: Running, restart: AbstractContextManager[Running] | None) -> Found:
    """A turn runs on one node and a prompt waits behind it; the node is killed, and perhaps started again."""
    seen: dict[bytes, float] = {}
    over = asyncio.Event()

    def heard(came: bytes, at: float) -> None:
        for each in (b"event: turn_error", b"event: turn_complete"):
            if each in came:
                seen.setdefault(each, at)
        if len(seen) == 2:
            over.set()

    connection = await Connection.open(a.port)
    session_id = await create(connection, a)
    await Stream.open(b.port, b.events(session_id), heard)
    for each in ("wait", "one"):
        await prompt(connection, a.prompt(session_id, each))
    # Each has seen the other one beat by then.
    await pause(4)
    killed = time.perf_counter()
    os.kill(a.pid, signal.SIGKILL)
    with ExitStack() as stack:
        if restart is not None:
            await asyncio.to_thread(stack.enter_context, restart)
        await asyncio.wait_for(over.wait(), WAIT_S)
    how = "killed and started again" if restart is not None else "lost"
    return {
        f"{how} → the turn's end, s": seen[b"event: turn_error"] - killed,
        f"{how} → the end of the next turn, s": seen[b"event: turn_complete"] - killed,
    }


def of_failover(server: PostgresServer, table: Medians) -> None:
    for is_restarted in (True, False):
        address = server.new_log()
        with empty_folder() as folder, running_in(folder, node(address, "b")) as b:
            first = node(address, "a")
            with running_in(folder, first) as a:
                restart = running_in(folder, first) if is_restarted else None
                table.take("two nodes", uvloop.run(_interrupted(a, b, restart)))


async def promoted(primary: PostgresServer, standby: PostgresServer) -> Found:
    """Sessions append without a pause while the primary is killed and the standby promoted."""
    address = primary.new_log().replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
    stopped, kept = asyncio.Event(), [0] * WRITERS
    first_after: dict[int, float] = {}
    acks: list[float] = []
    async with open_postgres_log(
        f"{address}&target_session_attrs=read-write", limits=Limits(), durability=Durability.FULL
    ) as log:
        names = [SessionId(f"s{number}") for number in range(WRITERS)]
        for name in names:
            await log.create(name)
        killed = dead = float("inf")

        async def write(number: int) -> None:
            head = 0
            while not stopped.is_set():
                begun = time.perf_counter()
                try:
                    head = await log.append(names[number], [EVENT], expected=head, unsettled=False, durable=True)
                except LogError:
                    await pause(0.02)
                    head = await _head(log, names[number])
                    continue
                kept[number] = head
                now = time.perf_counter()
                if begun > dead:
                    first_after.setdefault(number, now)
                elif now < killed:
                    acks.append(now - begun)
                if len(first_after) == WRITERS:
                    stopped.set()

        async def fail_over() -> None:
            nonlocal killed, dead
            await pause(2)
            killed = time.perf_counter()
            await asyncio.to_thread(primary.kill)
            dead = time.perf_counter()
            await asyncio.to_thread(standby.promote)

        await asyncio.wait_for(asyncio.gather(fail_over(), *map(write, range(WRITERS))), WAIT_S)
    rows = standby.ask("select name, head from tw_sessions", schema_of(address))
    stored = {name: int(head) for name, head in rows}
    lost = sum(max(0, head - stored[name]) for name, head in zip(names, kept, strict=True))
    return {
        **spread(f"{WRITERS} sessions with a synchronous standby: ack", acks),
        "promotion: kill → all write again, s": max(first_after.values()) - killed,
        "promotion: acknowledged events": float(sum(kept)),
        "promotion: of these lost": float(lost),
    }


async def _head(log: EventLog, name: SessionId) -> int:
    while True:
        try:
            return (await log.head(name)).head
        except LogError:
            await pause(0.02)


def main() -> None:
    programs = find_postgres()
    if programs is None:
        print("several nodes: skipped, PostgreSQL is not installed")
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    logs, daemons, losses = Medians(OF_THE_LOG), Medians(OF_DAEMONS), Medians(["two nodes"])
    with postgres_server(programs, syncs=True) as server:
        for _ in range(rounds):
            for engine in OF_THE_LOG:
                logs.take(engine, uvloop.run(of_the_log(engine, server)))
            of_daemons(server, daemons)
            of_failover(server, losses)
    for _ in range(rounds):
        with (
            postgres_server(programs, syncs=True) as primary,
            postgres_server(programs, primary, syncs=True) as standby,
        ):
            primary.wait_for_standby()
            losses.take("two nodes", uvloop.run(promoted(primary, standby)))
    for table in (logs, daemons, losses):
        table.show()
        print()


if __name__ == "__main__":
    main()
