"""The child program of the crash test: starts generations that run a node on a log file until they are killed.

It reads orders on standard input, one line each; forks a process for each, so that a generation costs no imports;
and writes the events to standard output. A generation writes its clients' acknowledgements, and dies by SIGKILL at
the point its order names or, from outside, when its time is over. The product contains none of this: the points are
wrapped around it here.

A line counts only with its last word `.`: a killed process may leave half a line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import anyio
from tests.crash.clients import Clients
from tests.crash.orders import Order, read_order

from turnwire.hosting.hosted_session import HostedSession
from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import EventLog
from turnwire.log.address import is_database
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_writer import Durability, SqliteWriter, Transaction
from turnwire.runtime.node import Node, open_node
from turnwire.runtime.tail import Tail
from turnwire.session.effects import AnyEffect, AskAgent
from turnwire_testing.scripted.agent import ScriptedSource
from turnwire_testing.scripted.options import AgentOptions, Profile

LIMITS = Limits(
    batch_inputs=32,
    ring_events=16,
    page_events=16,
    snapshot_events=100,
    idle_unload_s=0.05,
    cancel_grace_s=0.05,
    cancel_rung_s=0.05,
    checkpoint_bytes=256 * KiB,
)
"""Small, so that snapshots, checkpoints, unloading, escalation and reading past the ring happen all the time."""


TELLING_S = 2.0
"""Time for a generation to report its pending waits, before it is killed because its time is over."""


def say(*lines: str) -> None:
    """Report to the test, in one write and without a buffer that a kill would empty."""
    os.write(1, "".join(f"{line} .\n" for line in lines).encode())


class Fuse:
    """Kills this process at the nth passage of one point."""

    def __init__(self, order: Order) -> None:
        self._point = order.point
        self._left = order.passage
        self._steps = Random(order.seed).randrange(6)

    def passes(self, point: str) -> None:
        if self._burns(point):
            self._kill()

    def passes_soon(self, point: str) -> None:
        """Kill some steps of the event loop later, so that a task that was woken too early is detected."""
        if self._burns(point):
            self._kill_after(self._steps)

    def _burns(self, point: str) -> bool:
        if point != self._point:
            return False
        self._left -= 1
        return self._left == 0

    def _kill_after(self, steps: int) -> None:
        if steps:
            asyncio.get_running_loop().call_soon(self._kill_after, steps - 1)
        else:
            self._kill()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def wrap_log(log: type[SqliteEventLog | PostgresEventLog], fuse: Fuse) -> None:
    """Put a point before, in and after each append to the product's log, in this process only."""
    append = log.append

    async def fused_append(
        self: Any, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        fuse.passes("append")
        fuse.passes_soon("hand")
        head = await append(self, session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)
        fuse.passes("stored")
        return head

    log.append = fused_append


def wrap(fuse: Fuse) -> None:
    """Put the other points around it."""
    write, commit, sync = Transaction.write_sessions, SqliteWriter.commit, SqliteWriter.sync
    publish, perform = Tail.publish, HostedSession.perform

    def fused_write(self: Transaction) -> None:
        write(self)
        fuse.passes("flush")

    def fused_commit(self: SqliteWriter, jobs: Any, transaction: Transaction) -> Any:
        results = commit(self, jobs, transaction)
        fuse.passes("commit")
        return results

    def fused_sync(self: SqliteWriter) -> None:
        fuse.passes("sync")
        sync(self)
        fuse.passes("synced")

    def fused_publish(self: Tail, bodies: Sequence[bytes]) -> None:
        publish(self, bodies)
        fuse.passes("publish")

    def fused_perform(self: HostedSession, effect: AnyEffect) -> None:
        fuse.passes("perform")
        if isinstance(effect, AskAgent):
            say(f"asked {effect.prompt_id}")
        perform(self, effect)
        fuse.passes("performed")

    Transaction.write_sessions = fused_write
    SqliteWriter.commit = fused_commit
    SqliteWriter.sync = fused_sync
    Tail.publish = fused_publish
    HostedSession.perform = fused_perform


class _Complaints(logging.Handler):
    """An error in the product's log is a failure: no kill of a process may lead to one."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"failed {' '.join(self.format(record).split())}")


async def live(order: Order) -> None:
    """Run one generation."""
    fuse = Fuse(order)
    wrap(fuse)
    source = ScriptedSource(cast("Profile", order.profile), AgentOptions(steering=True))
    async with opened(order, fuse) as log, source, open_node(log, source, limits=LIMITS) as node:
        clients = Clients(node, log, order, say, fuse.passes)
        async with anyio.create_task_group() as tasks:
            # Clients come meanwhile.
            tasks.start_soon(_tell_recovery, node)
            await (clients.settle() if order.last else clients.work())


@asynccontextmanager
async def opened(order: Order, fuse: Fuse) -> AsyncGenerator[EventLog]:
    """The log of the order, a file or a database."""
    durability = Durability(order.durability)
    if is_database(order.path):
        wrap_log(PostgresEventLog, fuse)
        async with open_postgres_log(order.path, limits=LIMITS) as log:
            yield log
        return
    wrap_log(SqliteEventLog, fuse)
    async with await SqliteEventLog.open(order.path, limits=LIMITS, durability=durability) as log:
        yield log


async def _tell_recovery(node: Node) -> None:
    await node.recovered()
    say("recovered")


def _tell_tasks(*_: object) -> None:
    """Report the pending waits of a generation that should have ended by now."""
    for task in asyncio.all_tasks():
        frames: list[str] = []
        waiting: Any = task.get_coro()
        while waiting is not None:
            frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
            if frame is not None:
                frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
        say(f"failed a task waits: {' > '.join(frames)}")


def run(order: Order) -> int:
    """Run a generation as a process; return its exit code."""
    signal.signal(signal.SIGUSR1, _tell_tasks)
    logging.getLogger("turnwire").addHandler(_Complaints(logging.ERROR))
    try:
        anyio.run(live, order)
    except BaseException:  # noqa: BLE001  The door of the process: whatever it is, the test must hear of it.
        say(f"failed {' '.join(traceback.format_exc().split())}")
        return 1
    return 0


def serve() -> None:
    """Fork a generation for each order, kill it when its time is over, and report its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin.buffer:
        order = read_order(line)
        pid = os.fork()
        if not pid:
            os._exit(run(order))
        is_late = signal.sigtimedwait({signal.SIGCHLD}, order.within_s) is None
        if is_late and order.last:
            os.kill(pid, signal.SIGUSR1)
        if is_late and not (order.last and signal.sigtimedwait({signal.SIGCHLD}, TELLING_S)):
            os.kill(pid, signal.SIGKILL)
            # Consume the signal here, or the next generation would seem to have ended.
            signal.sigwait({signal.SIGCHLD})
        _, status = os.waitpid(pid, 0)
        # On a separate line, after any half line of the generation.
        os.write(1, f"\nended {os.waitstatus_to_exitcode(status)} {'late' if is_late else 'itself'} .\n".encode())


if __name__ == "__main__":
    serve()
