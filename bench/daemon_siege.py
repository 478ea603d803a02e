"""A siege: ten thousand readers that only wait and a thousand bodies that never come to an end, all at once.

Takes a running daemon; gives rows for the table: what the besiegers cost it, and how soon somebody else is answered
meanwhile. They are in one process with whoever asks, which is one more reason for the daemon to look slow, never to
look fast. `BOUNDS` is what is promised; a row that breaks it says so.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

from bench.daemon_crowd import settled_kb
from bench.daemon_http import HOST, WAIT_S, Connection, Stream, pause, request
from bench.daemon_table import Found
from bench.daemon_targets import Running
from bench.daemon_turns import create, spread

READERS, SESSIONS = 10_000, 100
BODIES = 1_000
BODY_BYTES, BEGUN_BYTES = 64_000, 16_000
"""What each body announces, and what it begins with; then it comes byte by byte."""
DRIP_S = 1.0
ASKED = 1_000
EVERY_S = 0.02
"""Between two questions of somebody else: twenty seconds of them, more than one round of heartbeats."""
AT_ONCE = 50
"""Besiegers that come at the same time, so that the listener's backlog is not what is measured."""
FILES = READERS + BODIES + 1_000
NAME = "besieged"
BOUNDS = {
    f"{NAME}: /health, p99 ms": 100.0,
    f"{NAME}: memory of one, KB": 64.0,
    f"{NAME}: CPU of the daemon, %": 50.0,
}
"""Rows and what they may reach at most."""


async def siege(daemon: Running) -> Found:
    """Besiege one daemon, and ask it for its health meanwhile."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < FILES:
        return {f"{NAME}: /health, p99 ms": f"needs {FILES} files"}
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connection = await Connection.open(daemon.port)
    session_ids = [await create(connection, daemon) for _ in range(SESSIONS)]
    empty_kb = await settled_kb(daemon)
    readers = await _readers(daemon, session_ids)
    bodies = await _bodies(daemon, session_ids)
    dripping = asyncio.ensure_future(_drip(bodies))
    besieged_kb = await settled_kb(daemon)
    used_s, begun = daemon.cpu_s(), time.perf_counter()
    waited = await _ask(daemon)
    share = (daemon.cpu_s() - used_s) / (time.perf_counter() - begun)
    dripping.cancel()
    found = {
        **spread(f"{NAME}: /health", waited),
        f"{NAME}: memory of one, KB": (besieged_kb - empty_kb) / (READERS + BODIES),
        f"{NAME}: CPU of the daemon, %": share * 100,
        f"{NAME}: bodies it ended": float(sum(each.is_over for each in bodies)),
    }
    for each in (*readers, *bodies, connection):
        each.close()
    return found | {row: f"{found[row]:.0f} OVER {most:.0f}" for row, most in BOUNDS.items() if found[row] > most}


async def _readers(daemon: Running, session_ids: Sequence[str]) -> list[Stream]:
    async def read(number: int) -> Stream:
        return await Stream.open(daemon.port, daemon.events(session_ids[number % len(session_ids)]), _ignore)

    found: list[Stream] = []
    for first in range(0, READERS, AT_ONCE):
        found += await asyncio.gather(*(read(each) for each in range(first, first + AT_ONCE)))
    return found


async def _bodies(daemon: Running, session_ids: Sequence[str]) -> list[SlowBody]:
    loop, found = asyncio.get_running_loop(), list[SlowBody]()
    for number in range(BODIES):
        path = f"/session/{session_ids[number % len(session_ids)]}/prompt"
        headers = {**daemon.headers, "Content-Type": "application/json", "Content-Length": str(BODY_BYTES)}
        begin = partial(SlowBody, request("POST", path, headers))
        found.append((await loop.create_connection(begin, HOST, daemon.port))[1])
    return found


class SlowBody(asyncio.Protocol):
    """A request whose body never comes to an end."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.is_over = False
        """The daemon has answered, or has let go of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._head + b" " * BEGUN_BYTES)

    def data_received(self, data: bytes) -> None:
        self.is_over = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True

    def drip(self) -> None:
        if not self.is_over:
            self._transport.write(b" ")

    def close(self) -> None:
        self._transport.abort()


async def _drip(bodies: Sequence[SlowBody]) -> None:
    while True:
        for each in bodies:
            each.drip()
        await pause(DRIP_S)


async def _ask(daemon: Running) -> list[float]:
    """How long somebody waits who has nothing to do with it, on a new connection each time."""
    asked = request("GET", "/health", {"Host": daemon.headers["Host"]})
    waited: list[float] = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        connection = await asyncio.wait_for(Connection.open(daemon.port), WAIT_S)
        reply = await connection.ask(asked)
        assert reply.status == 200, reply
        waited.append(reply.at - begun)
        connection.close()
        await pause(EVERY_S)
    return waited


def _ignore(came: bytes, at: float) -> None:
    pass
