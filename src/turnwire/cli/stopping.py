"""Stopping at a signal: the first drains, the second does not wait.

Takes a daemon; sets an event once it is drained: running turns have come to their end, prompts that wait stay for
the next start. The second signal ends the process where it stands: what is recorded is on disk, and the guards end
the agents.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

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


def _end_now(number: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FORCED + number)
