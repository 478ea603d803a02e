"""One long turn to many subscribers: events delivered per second, from the prompt to the last subscriber's end.

Takes a running daemon; gives a row for each number of chunks and subscribers. The subscribers are a process of
their own (`bench/daemon_readers.py`), which on two cores shares them with the daemon and the agent.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from bench.daemon_http import WAIT_S, Connection
from bench.daemon_readers import Turn, Wanted
from bench.daemon_table import Found
from bench.daemon_targets import ROOT, Running
from bench.daemon_turns import create, prompt

CHUNKS = (2000, 20_000)
SUBSCRIBERS = (1, 10, 64, 1000)
REPEATS = 2
"""Turns of each kind; the best counts."""
MOST_EVENTS = 500_000
"""A turn that delivers more than this is measured once: it takes long enough to be steady."""


async def bursts(daemon: Running) -> Found:
    """All numbers of subscribers, each with a session of its own."""
    found: dict[str, float | str] = {}
    for subscribers in SUBSCRIBERS:
        for chunks in CHUNKS:
            row = f"{chunks:,} chunks to {subscribers:,}, events/s"
            if subscribers > daemon.target.most_subscribers:
                found[row] = f"{daemon.target.most_subscribers} at most"
            else:
                found[row] = await _deliver(daemon, subscribers, chunks)
    return found


async def _deliver(daemon: Running, subscribers: int, chunks: int) -> float | str:
    turns = 1 if chunks * subscribers > MOST_EVENTS else REPEATS
    session_id = await create(await Connection.open(daemon.port), daemon)
    best = 0.0
    async with reading(daemon, session_id, subscribers, turns) as next_turn:
        for _ in range(turns):
            # Servers close a connection that was quiet for some seconds.
            connection = await Connection.open(daemon.port)
            begun = time.perf_counter()
            await prompt(connection, daemon.prompt(session_id, f"burst {chunks}"))
            connection.close()
            turn = await next_turn()
            if turn.cut:
                return f"cut off {turn.cut} of {subscribers}"
            assert turn.events > chunks, f"{turn.events} of more than {chunks} events arrived"
            best = max(best, turn.events * subscribers / (turn.at - begun))
    return best


@asynccontextmanager
async def reading(
    daemon: Running, session_id: str, subscribers: int, turns: int
) -> AsyncGenerator[Callable[[], Awaitable[Turn]]]:
    """Subscribers in a process of their own, which are all there; gives what waits for the end of a turn."""
    wanted = Wanted(daemon.port, daemon.events(session_id).decode(), subscribers, turns)
    readers = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.daemon_readers", msgspec.json.encode(wanted).decode()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    stdout = readers.stdout
    assert stdout is not None

    async def next_turn() -> Turn:
        return msgspec.json.decode(await asyncio.wait_for(stdout.readline(), WAIT_S), type=Turn)

    try:
        ready = await asyncio.wait_for(stdout.readline(), WAIT_S)
        assert ready == b"ready\n", f"the subscribers could not begin: {ready!r}"
        yield next_turn
    finally:
        if readers.returncode is None:
            readers.kill()
        await readers.wait()
