"""Stopping at a signal: a daemon drains at the first and does not wait at the second; what only reads just ends.

Takes a daemon; sets an event once it is drained: running turns have come to their end, prompts that wait stay for
the next start. The second signal ends the process where it stands: what is recorded is on disk, and the guards end
the agents.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from turnwire.server.daemon import Daemon

FORCED = 128
"""Added to the number of the second signal, as a shell does."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = {"event": "stopping"}

logger = logging.getLogger(__name__)


async def stop_on_signal(daemon: Daemon, stop: anyio.Event) -> None:
    """Drain at the first signal, then set `stop`. A signal for a daemon that stops already ends the process."""
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        async with anyio.create_task_group() as tasks:
            async for number in signals:
                if daemon.stopping.is_set():
                    _end_now(number)
                tasks.start_soon(drain, daemon, stop)


async def drain(daemon: Daemon, stop: anyio.Event) -> None:
    """Let running turns end, up to the limit `drain_s`, then set `stop`."""
    seconds = daemon.limits.drain_s
    logger.info("stopping: turns have %g s to end; a second signal does not wait", seconds, extra=STOPPING)
    await daemon.drain()
    stop.set()


async def until_ctrl_c(function: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Call it, and end it at Ctrl-C. Raises `KeyboardInterrupt` then.

    The interpreter's own way cancels once, and whatever waits at that instant may take it for its own time limit.
    """
    interrupted = False

    async def hear(scope: anyio.CancelScope) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                interrupted = True
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear, tasks.cancel_scope)
        await function(*args)
        tasks.cancel_scope.cancel()
    if interrupted:
        raise KeyboardInterrupt


def _end_now(number: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FORCED + number)
