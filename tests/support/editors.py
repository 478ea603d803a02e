"""Daemons that `turnwire stdio` started for the editors of a test."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from turnwire.hosting.local_daemon import LocalDaemon, running
from turnwire_testing.patience import WAIT_S


def editor_daemons(environ: Mapping[str, str]) -> list[LocalDaemon]:
    """Return the running daemons whose records are where `environ` points."""
    return [each for each in running(environ) if each.editors is not None]


def wait_for_exit(daemon: LocalDaemon) -> None:
    """Wait until its process has ended. Raises `TimeoutError`."""
    try:
        process = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return
    with os.fdopen(process):
        if not select.select([process], [], [], WAIT_S)[0]:
            raise TimeoutError(f"the daemon {daemon.pid} goes on")


@contextmanager
def ending_editor_daemons(environ: Mapping[str, str]) -> Generator[None]:
    """Kill at the end the daemons that would otherwise end by themselves some seconds later."""
    try:
        yield
    finally:
        for each in editor_daemons(environ):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
