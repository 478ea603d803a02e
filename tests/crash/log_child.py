"""The child program of the log's kill test: writers on a log file, killed inside of a commit, a sync or a
publication.

It reads orders on standard input, a JSON list each, and forks a process for each, which reports its
acknowledgements on standard output. Every event has its own number and that of the last event of its append, so
that a reader of the file can detect a partial append.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import anyio.lowlevel

from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.log.sqlite_writer import SqliteWriter, Transaction

POINTS = {
    "begin": (Transaction, "__init__"),
    "written": (Transaction, "write_sessions"),
    "committed": (SqliteWriter, "commit"),
    "sync": (SqliteWriter, "sync"),
    "published": (SqliteEventLog, "_moved"),
    "checkpoint": (SqliteWriter, "_checkpoint"),
}
"""Steps of commit, sync and publish. A child dies before or after the method."""

SESSIONS = [SessionId(f"s{number}") for number in range(4)]
LIMITS = Limits(checkpoint_bytes=256 * KiB)


class Order(NamedTuple):
    """One run of a child."""

    path: str
    seed: int
    durability: str
    point: str
    """A name of `POINTS`, or nothing: it is killed from outside."""
    is_after: bool
    passage: int
    within_s: float
    is_alone: bool
    """True if one session writes, so that each group is one append; otherwise all of them."""


def die_at(order: Order) -> None:
    """Wrap the method of the point, in this process only."""
    owner, name = POINTS[order.point]
    method: Callable[..., object] = getattr(owner, name)
    left = order.passage

    def dying(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if not left and not order.is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **named)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


async def live(order: Order) -> None:
    chance = Random(order.seed)
    if order.point:
        die_at(order)
    log = await SqliteEventLog.open(order.path, limits=LIMITS, durability=Durability(order.durability))
    known = {each.session_id for each in await log.sessions()}

    async def write(name: SessionId) -> None:
        if name not in known:
            await log.create(name)
        head = (await log.head(name)).head
        while True:
            count = chance.choice([*range(1, 20), 70, 1025])
            last = head + count
            bodies = [b"%d %d " % (head + 1 + number, last) + b"x" * (number % 300) for number in range(count)]
            durable = chance.random() < 0.5
            head = await log.append(name, bodies, expected=head, unsettled=True, durable=durable)
            os.write(1, f"{name} {head} .\n".encode())
            await anyio.lowlevel.checkpoint()

    async with asyncio.TaskGroup() as tasks:
        for name in [chance.choice(SESSIONS)] if order.is_alone else SESSIONS:
            tasks.create_task(write(name))


def serve() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin.buffer:
        order = Order(*json.loads(line))
        pid = os.fork()
        if not pid:
            asyncio.run(live(order))
            os._exit(1)
        if signal.sigtimedwait({signal.SIGCHLD}, order.within_s) is None:
            os.kill(pid, signal.SIGKILL)
            signal.sigwait({signal.SIGCHLD})
        _, status = os.waitpid(pid, 0)
        # On a separate line, after any half line of the child.
        os.write(1, f"\nended {os.waitstatus_to_exitcode(status)} .\n".encode())


if __name__ == "__main__":
    serve()
