"""Turns, one after the other: how soon a prompt is accepted, has its end, and reaches those who watch.

Each function takes a running daemon, measures one thing with it, and gives rows for the table. Times are those of
the client, from the first byte it sent to the last it needed.
"""

from __future__ import annotations

import asyncio
import re
import time

import msgspec

from bench.daemon_http import WAIT_S, Connection, Stream
from bench.daemon_table import Found
from bench.daemon_targets import Running

TURNS = 400
STAMPS = 400
WARM = 50
"""Turns, or chunks, before the first that counts."""
ACCEPTED = "prompt → 202"
END = b"event: turn_complete"
_STAMP = re.compile(rb"@(\d+)@")


def spread(row: str, seconds: list[float]) -> dict[str, float]:
    """Two rows: what is usual, and what one in a hundred exceeds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {f"{row}, p50 ms": ordered[last // 2] * 1e3, f"{row}, p99 ms": ordered[round(last * 0.99)] * 1e3}


async def create(connection: Connection, daemon: Running) -> str:
    """A new session's id."""
    reply = await connection.ask(daemon.create())
    assert reply.status == 200, f"no session: {reply.status} {reply.body!r}"
    return msgspec.json.decode(reply.body)["sessionId"]


async def prompt(connection: Connection, asked: bytes) -> float:
    """Seconds until the prompt was accepted."""
    begun = time.perf_counter()
    reply = await connection.ask(asked)
    assert reply.status == 202, f"not accepted: {reply.status} {reply.body!r}"
    return reply.at - begun


async def start(daemon: Running) -> Found:
    """From the daemon's start to its first answer and to its first session, the start of the agent included."""
    begun = time.perf_counter()
    connection = await Connection.open(daemon.port)
    await create(connection, daemon)
    first_s = time.perf_counter() - begun
    connection.close()
    return {
        "start → health 200, ms": daemon.healthy_s * 1e3,
        "start → first session, ms": (daemon.healthy_s + first_s) * 1e3,
    }


async def turns(daemon: Running, through: Running | None = None) -> Found:
    """One-chunk turns, each after the end of the one before, with one subscriber; perhaps through another node."""
    through = through or daemon
    session_id = await create(await Connection.open(daemon.port), daemon)
    connection = await Connection.open(through.port)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[float] = loop.create_future()

    def heard(came: bytes, at: float) -> None:
        if END in came:
            ended.set_result(at)

    stream = await Stream.open(through.port, through.events(session_id), heard)
    asked = through.prompt(session_id, "one")
    used_s = 0.0
    accepted: list[float] = []
    done: list[float] = []
    for number in range(WARM + TURNS):
        if number == WARM:
            used_s = daemon.cpu_s()
        ended = loop.create_future()
        begun = time.perf_counter()
        accepted.append(await prompt(connection, asked))
        done.append(await asyncio.wait_for(ended, WAIT_S) - begun)
    used_s = daemon.cpu_s() - used_s
    stream.close()
    connection.close()
    return {
        **spread(ACCEPTED, accepted[WARM:]),
        **spread("prompt → turn_complete", done[WARM:]),
        "CPU of the daemon for such a turn, ms": used_s / TURNS * 1e3,
    }


class Stamps:
    """Times at which the agent wrote its chunks, against the time when they are here."""

    def __init__(self) -> None:
        self._delays: list[float] = []
        self.all_here = asyncio.Event()

    def heard(self, came: bytes, at: float) -> None:
        now = time.monotonic_ns()
        self._delays.extend((now - int(stamp)) / 1e9 for stamp in _STAMP.findall(came))
        if len(self._delays) >= STAMPS:
            self.all_here.set()

    def found(self) -> Found:
        return spread("agent writes → subscriber has it", self._delays[WARM:])


async def delay(daemon: Running, through: Running | None = None) -> Found:
    """From the agent's write to the subscriber's receipt, perhaps at another node. Both read the same clock."""
    through = through or daemon
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stamps = Stamps()
    stream = await Stream.open(through.port, through.events(session_id), stamps.heard)
    await prompt(connection, daemon.prompt(session_id, f"stamp {STAMPS}"))
    await asyncio.wait_for(stamps.all_here.wait(), WAIT_S)
    stream.close()
    connection.close()
    return stamps.found()
