"""A node with one of its protections switched off, to show that a promise then breaks, and that this is detected.

Run as `python -m tests.cluster.broken_node WHAT …`, followed by the arguments of `turnwire`:

    stop       it never stops by itself, and reports to its guards that they need not either
    guards     its guards get no deadline, so that its agents outlive a frozen node
    takeover   it does not wait for the end of a lease
    fence      it appends although another node may own the session now
    rings      it rings nothing; it still polls the others' events
    sweep      it rings nothing, and does not poll
    lock       it does not check if its data folder is in use
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

from tests.support.limited import apply

from turnwire.cli.main import main
from turnwire.log import postgres_bell, postgres_writer
from turnwire.runtime.members import Lease
from turnwire.server.daemon import daemon, membership

FOR_EVER = 1e9
"""Seconds after the machine was booted."""
IMPATIENT_S = 2.0
"""Shorter than the time a node may act without a beat, and longer than one beat."""


def _stop() -> None:
    safe_until = property(lambda _: FOR_EVER, lambda _, __: None)
    patch.object(Lease, "safe_until", safe_until, create=True).start()


def _guards() -> None:
    patch.object(membership, "renew_lease", Mock()).start()


def _takeover() -> None:
    patch.object(Lease, "_patience_s", Mock(return_value=IMPATIENT_S)).start()


def _fence() -> None:
    fenced = "s.fence = w.fence and "
    assert fenced in postgres_writer.APPEND
    patch.object(postgres_writer, "APPEND", postgres_writer.APPEND.replace(fenced, "")).start()


def _rings() -> None:
    patch.object(postgres_bell, "notices", Mock(return_value=[])).start()


def _sweep() -> None:
    _rings()
    patch.object(postgres_bell, "SWEEP_S", FOR_EVER).start()


def _lock() -> None:
    def unlocked(path: Path, *_: Any) -> int:
        return os.open(path.with_suffix(".unlocked"), os.O_CREAT | os.O_RDWR, 0o600)

    patch.object(daemon, "lock_file", unlocked).start()


PROTECTIONS: dict[str, Callable[[], None]] = {
    "stop": _stop,
    "guards": _guards,
    "takeover": _takeover,
    "fence": _fence,
    "rings": _rings,
    "sweep": _sweep,
    "lock": _lock,
}

if __name__ == "__main__":
    PROTECTIONS[sys.argv.pop(1)]()
    sys.argv = ["turnwire", *apply(sys.argv[1:])]
    main()
