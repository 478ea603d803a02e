"""One long turn to many subscribers: events delivered per second, from the prompt to the last subscriber's end.

Takes a running daemon; gives a row for each number of chunks and subscribers. The subscribers are a process of
their own (`bench/daemon_readers.py`), which on two cores shares them with the daemon and the agent.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

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
    wanted = Wanted(daemon.port, daemon.events(session_id).decode(), subscribers, turns)
    readers = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.daemon_readers", msgspec.json.encode(wanted).decode()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert readers.stdout is not None
    try:
        ready = await asyncio.wait_for(readers.stdout.readline(), WAIT_S)
        assert ready == b"ready\n", f"the subscribers could not begin: {ready!r}"
        best = 0.0
        for _ in range(turns):
            # Servers close a connection that was quiet for some seconds.
            connection = await Connection.open(daemon.port)
            begun = time.perf_counter()
            await prompt(connection, daemon.prompt(session_id, f"burst {chunks}"))
            connection.close()
            turn = msgspec.json.decode(await asyncio.wait_for(readers.stdout.readline(), WAIT_S), type=Turn)
            if turn.cut:
                return f"cut off {turn.cut} of {subscribers}"
            assert turn.events > chunks, f"{turn.events} of more than {chunks} events arrived"
            best = max(best, turn.events * subscribers / (turn.at - begun))
        return best
    finally:
        if readers.returncode is None:
            readers.kill()
        await readers.wait()
