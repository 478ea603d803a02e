"""What grows with use, and what must not: sessions, events, readers, and turns that a crash left open.

Each function takes a target and gives rows for the table; each row names its size, so that a column is read
downwards: what stays the same from the first size to the last does not grow. Long sessions are made by the daemon
itself, so that every revision reads what it wrote.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import time
from collections.abc import Coroutine
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from bench.acp_client import INITIALIZE, UPGRADE, message, text_frame
from bench.acp_client import Stream as Socket
from bench.daemon_bursts import reading
from bench.daemon_crowd import settled_kb
from bench.daemon_http import WAIT_S, Connection, Stream, pause, request
from bench.daemon_table import Found
from bench.daemon_targets import Running, Target, empty_folder, running, running_in
from bench.daemon_turns import END, create, prompt, spread

T = TypeVar("T")

SESSIONS = (1, 1_000, 5_000)
PROMPTS = 400
EVENTS = (1_000, 100_000, 1_000_000)
TURN = 1_000
"""Chunks of each turn of a long session."""
READERS = (1_000, 10_000)
SOCKETS = 400
"""Fewer than one credential may have open."""
OPEN = (1_000, 3_000)
STALLED = 20_000
"""Chunks of the turn beside which somebody else asks."""
FILES = READERS[-1] + 2_000
BETWEEN_S = 0.001
"""Between two questions of the same kind."""
RECOVERED_S = 0.02
"""Between two while it recovers, so that answering takes little of what is measured."""


def run(measuring: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own; daemons come and go between two."""
    return uvloop.run(measuring)


# -- sessions ------------------------------------------------------------------------------------------------


def sessions(target: Target) -> Found:
    """What a turn costs while there are many sessions."""
    with running(target) as daemon:
        return run(_sessions(daemon))


async def _sessions(daemon: Running) -> Found:
    connection = await Connection.open(daemon.port)
    found: dict[str, float | str] = {}
    made: list[str] = []
    for size in SESSIONS:
        made += [await create(connection, daemon) for _ in range(size - len(made))]
        asked = [daemon.prompt(each, "one") for each in islice(cycle(made), PROMPTS)]
        await settled_kb(daemon)
        used_s = daemon.cpu_s()
        accepted = [await prompt(connection, each) for each in asked]
        # The last turns end after their 202.
        await settled_kb(daemon)
        used_s = daemon.cpu_s() - used_s
        found |= spread(f"{size:,} sessions: prompt → 202", accepted)
        found[f"{size:,} sessions: CPU of a turn, ms"] = used_s / PROMPTS * 1e3
    connection.close()
    return found


# -- a long session ------------------------------------------------------------------------------------------


class Neighbour:
    """Somebody who asks for something else all the time: what the slowest answer took is what others wait."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon
        self._asked = request("GET", "/health", {"Host": daemon.headers["Host"]})
        self.waited: list[float] = []

    async def __aenter__(self) -> Neighbour:
        self._connection = await Connection.open(self._daemon.port)
        self._task = asyncio.ensure_future(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._connection.close()

    async def _ask(self) -> None:
        while True:
            begun = time.perf_counter()
            reply = await self._connection.ask(self._asked)
            self.waited.append(reply.at - begun)
            await pause(BETWEEN_S)


def long_session(target: Target) -> Found:
    """A session that gets longer: prompts, and every view of it after a crash, and who waits for that."""
    found: dict[str, float | str] = {}
    with empty_folder() as folder:
        session_id, written = "", 0
        for size in EVENTS:
            with running_in(folder, target) as daemon:
                session_id, written = run(_lengthen(daemon, session_id, written, size))
                found |= run(_prompts(daemon, session_id, size))
                os.kill(daemon.pid, signal.SIGKILL)
            found |= _views(folder, target, session_id, size)
    return found


async def _lengthen(daemon: Running, session_id: str, written: int, size: int) -> tuple[str, int]:
    connection = await Connection.open(daemon.port)
    session_id = session_id or await create(connection, daemon)
    while written < size:
        await _turn(daemon, connection, session_id, f"burst {TURN}")
        written += TURN
    connection.close()
    return session_id, written


async def _turn(daemon: Running, connection: Connection, session_id: str, text: str) -> None:
    """A whole turn."""
    ended = asyncio.Event()

    def heard(came: bytes, at: float) -> None:
        if END in came:
            ended.set()

    stream = await Stream.open(daemon.port, daemon.events(session_id), heard)
    await prompt(connection, daemon.prompt(session_id, text))
    await asyncio.wait_for(ended.wait(), WAIT_S)
    stream.close()


async def _prompts(daemon: Running, session_id: str, size: int) -> Found:
    connection = await Connection.open(daemon.port)
    accepted = [await prompt(connection, daemon.prompt(session_id, "one")) for _ in range(PROMPTS // 4)]
    connection.close()
    row = f"{size:,} events: prompt → 202"
    return {f"{row}, p50 ms": spread(row, accepted)[f"{row}, p50 ms"]}


VIEWS = {
    "session": "/session/{id}",
    "turns": "/session/{id}/turns",
    "prompt-status": "/session/{id}/prompt-status",
    "transcript": "/session/{id}/transcript?limit=50",
}


def _views(folder: Path, target: Target, session_id: str, size: int) -> Found:
    """Each view with a daemon that has just started, then once more; and what a neighbour waits meanwhile.

    A copy of the data for each: what one daemon learns of a session, it keeps for the next.
    """
    found: dict[str, float | str] = {}
    for name, path in VIEWS.items():
        with empty_folder() as copy, running_in(_copied(folder, copy), target) as daemon:
            cold, warm, waited = run(_view(daemon, path.replace("{id}", session_id)))
        found[f"{size:,} events: {name}, cold ms"] = cold * 1e3
        found[f"{size:,} events: {name}, warm ms"] = warm * 1e3
        found[f"{size:,} events: others wait for {name}, ms"] = waited * 1e3
    return found


def _copied(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return copy


async def _view(daemon: Running, path: str) -> tuple[float, float, float]:
    connection = await Connection.open(daemon.port)
    # Whatever a first request costs in itself is no matter of the session.
    await connection.ask(daemon.get("/capabilities"))
    times: list[float] = []
    async with Neighbour(daemon) as neighbour:
        for _ in range(2):
            begun = time.perf_counter()
            reply = await connection.ask(daemon.get(path))
            assert reply.status == 200, f"{path}: {reply.status} {reply.body[:300]!r}"
            times.append(reply.at - begun)
    connection.close()
    return times[0], times[1], max(neighbour.waited, default=0.0)


# -- readers -------------------------------------------------------------------------------------------------


def readers(target: Target) -> Found:
    """Readers of one session that only wait, then one turn to all of them; then clients on WebSockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < FILES:
        return {"readers": f"needs {FILES} files"}
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, float | str] = {}
    for size in READERS:
        with running(target) as daemon:
            found |= run(_readers(daemon, size))
    with running(target) as daemon:
        found |= run(_sockets(daemon))
    return found


async def _readers(daemon: Running, size: int) -> Found:
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    await _turn(daemon, connection, session_id, "one")
    before_kb = await settled_kb(daemon)
    async with reading(daemon, session_id, size, 1) as next_turn:
        after_kb = await settled_kb(daemon)
        used_s, begun = daemon.cpu_s(), time.perf_counter()
        async with Neighbour(daemon) as neighbour:
            await prompt(await Connection.open(daemon.port), daemon.prompt(session_id, "one"))
            turn = await next_turn()
        used_s = daemon.cpu_s() - used_s
        assert not turn.cut, f"{turn.cut} readers were cut off"
    connection.close()
    return {
        f"{size:,} readers: memory of one, KB": (after_kb - before_kb) / size,
        f"{size:,} readers: one turn to all, ms": (turn.at - begun) * 1e3,
        f"{size:,} readers: CPU of it for one, µs": used_s / size * 1e6,
        f"{size:,} readers: others wait meanwhile, ms": max(neighbour.waited, default=0.0) * 1e3,
    }


async def _sockets(daemon: Running) -> Found:
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    before_kb = await settled_kb(daemon)
    sockets: list[Socket] = []
    load = message(2, "session/load", {"sessionId": session_id, "cwd": daemon.cwd, "mcpServers": []})
    for _ in range(SOCKETS):
        socket = await Socket.open(daemon.port, request("GET", "/acp", daemon.headers | UPGRADE))
        socket.write(text_frame(INITIALIZE))
        await socket.until(lambda socket=socket: b'"protocolVersion"' in socket.kept)
        socket.write(text_frame(load))
        await socket.until(lambda socket=socket: b'"id":2' in socket.kept)
        sockets.append(socket)
    after_kb = await settled_kb(daemon)
    for socket in sockets:
        socket.close()
    connection.close()
    return {f"{SOCKETS:,} WebSocket clients: memory of one, KB": (after_kb - before_kb) / SOCKETS}


# -- after a crash -------------------------------------------------------------------------------------------


def recovery(target: Target) -> Found:
    """The daemon is killed while turns are open: from its next start to its answer, to the end of all of them, and
    to the moment when whoever reads the list of sessions has seen that."""
    found: dict[str, float | str] = {}
    for size in OPEN:
        with empty_folder() as folder:
            with running_in(folder, target) as daemon:
                run(_open_turns(daemon, size))
                os.kill(daemon.pid, signal.SIGKILL)
            begun = time.perf_counter()
            with running_in(folder, target) as daemon:
                found[f"{size:,} turns open at a crash: → health, ms"] = daemon.healthy_s * 1e3
                run(_until_recovered(daemon))
                found[f"{size:,} turns open at a crash: → all ended, ms"] = (time.perf_counter() - begun) * 1e3
                run(_until_settled(daemon))
                found[f"{size:,} turns open at a crash: → listed, ms"] = (time.perf_counter() - begun) * 1e3
    return found


async def _open_turns(daemon: Running, size: int) -> None:
    connection = await Connection.open(daemon.port)
    for _ in range(size):
        await prompt(connection, daemon.prompt(await create(connection, daemon), "wait"))
    connection.close()


async def _until_recovered(daemon: Running) -> None:
    """The daemon says that no turn waits for its end. One that knows no such word answers when it is so."""
    connection = await Connection.open(daemon.port)
    while msgspec.json.decode((await connection.ask(daemon.get("/health"))).body).get("recovering"):
        await pause(RECOVERED_S)
    connection.close()


async def _until_settled(daemon: Running) -> None:
    """No session of the list has a turn."""
    connection = await Connection.open(daemon.port)
    cursor = ""
    while True:
        reply = await connection.ask(daemon.get(f"/session?limit=100{cursor}"))
        page = msgspec.json.decode(reply.body)
        if any(each.get("hasActivePrompt") for each in page["sessions"]):
            await pause(BETWEEN_S)
        elif page.get("nextCursor"):
            cursor = f"&cursor={page['nextCursor']}"
        else:
            break
    connection.close()


# -- who waits while a turn streams --------------------------------------------------------------------------


def stalls(target: Target) -> Found:
    """How long somebody else waits for an answer while one turn streams as fast as its agent can."""
    with running(target) as daemon:
        return run(_stalls(daemon))


async def _stalls(daemon: Running) -> Found:
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stream = await Socket.open(daemon.port, daemon.events(session_id))
    stream.begin()
    async with Neighbour(daemon) as neighbour:
        used_s = daemon.cpu_s()
        await prompt(connection, daemon.prompt(session_id, f"burst {STALLED}"))
        await stream.until(lambda: stream.chunks >= STALLED)
        used_s = daemon.cpu_s() - used_s
    stream.close()
    connection.close()
    return {
        "CPU of the daemon for an event of a burst, µs": used_s / STALLED * 1e6,
        **spread("others wait during a burst", neighbour.waited),
    }
