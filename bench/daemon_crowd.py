"""Many sessions and many subscribers: what each costs while it is idle, and what they do to a prompt.

Takes a running daemon; gives rows for the table. Memory is that of the daemon's own process as the kernel has it,
so it is coarse: a difference over hundreds of sessions, not a sum of objects.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, islice

from bench.daemon_http import WAIT_S, Connection, Stream, pause
from bench.daemon_table import Found
from bench.daemon_targets import Running
from bench.daemon_turns import create, prompt, spread

SESSIONS = 500
PER_SESSION = 2
"""Subscribers of each session: one of the daemons takes few for one session."""
PROMPTS = 1000
AT_ONCE = 32
ALONE = f"{SESSIONS} sessions: prompt → 202"
SETTLE_S = 1.0
"""Before memory is read: what was only needed for opening is given back by then."""


async def crowd(daemon: Running) -> Found:
    """One daemon from empty to crowded."""
    empty_kb = daemon.rss_kb()
    connection = await Connection.open(daemon.port)
    await create(connection, daemon)
    one_kb = await settled_kb(daemon)
    session_ids = [await create(connection, daemon) for _ in range(SESSIONS)]
    sessions_kb = await settled_kb(daemon)
    streams = [
        await Stream.open(daemon.port, daemon.events(each), _ignore)
        for each in session_ids
        for _ in range(PER_SESSION)
    ]
    streams_kb = await settled_kb(daemon)
    for stream in streams:
        stream.close()
    prompts = [daemon.prompt(each, "one") for each in islice(cycle(session_ids), PROMPTS)]
    alone = [await prompt(connection, each) for each in prompts]
    connection.close()
    crowded = await _at_once(daemon, prompts)
    return {
        "memory before the first session, MB": empty_kb / 1024,
        "memory of an idle session, KB": (sessions_kb - one_kb) / SESSIONS,
        "memory of an idle subscriber, KB": (streams_kb - sessions_kb) / len(streams),
        **spread(ALONE, alone),
        **spread(f"{SESSIONS} sessions, {AT_ONCE} at once: → 202", crowded),
    }


def _ignore(came: bytes, at: float) -> None:
    pass


async def settled_kb(daemon: Running) -> int:
    """Its memory, a moment later."""
    await pause(SETTLE_S)
    return daemon.rss_kb()


async def _at_once(daemon: Running, prompts: list[bytes]) -> list[float]:
    left = iter(prompts)

    async def ask() -> list[float]:
        connection = await Connection.open(daemon.port)
        accepted = [await prompt(connection, each) for each in left]
        connection.close()
        return accepted

    asking = asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return [each for accepted in await asyncio.wait_for(asking, WAIT_S) for each in accepted]
