"""The daemon from outside, over loopback: how soon it answers, how fast it delivers, what it costs, and its peers.

Prints one table. Every daemon hosts the same agent program (`bench/peers/daemon_agent.py`) and is measured by the
same client. They take turns and never run at the same time; of several runs the best counts, because the others
shared the machine with somebody. `docs/bench.md` says how to read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import uvloop

from bench.daemon_bare import bare_delay, bare_sync
from bench.daemon_bursts import bursts
from bench.daemon_crowd import ALONE, crowd
from bench.daemon_siege import siege
from bench.daemon_table import Found, Table
from bench.daemon_targets import BARE, IN_MEMORY, QWEN_SERVE, TURNWIRE, Running, Target, running
from bench.daemon_turns import ACCEPTED, delay, start, turns


class Phase(NamedTuple):
    """One measurement, with a daemon that was started for it."""

    measure: Callable[[Running], Coroutine[Any, Any, Found]]
    rounds: int
    bare: Callable[[], Found] | None = None
    """What cannot be avoided, measured alone."""
    in_memory: bool = True
    """Also without a disk."""
    others: bool = True
    """Also the daemons that we are compared with."""

    @property
    def name(self) -> str:
        return self.measure.__name__


def measured(target: Target, measure: Callable[[Running], Coroutine[Any, Any, Found]]) -> Found:
    print(f"… {measure.__name__}: {target.name}", file=sys.stderr, flush=True)
    with running(target) as daemon:
        return uvloop.run(measure(daemon))


PHASES = (
    Phase(start, 3),
    Phase(turns, 2, lambda: bare_sync(ACCEPTED)),
    Phase(delay, 2, lambda: uvloop.run(bare_delay())),
    Phase(bursts, 1, lambda: measured(BARE, bursts), in_memory=False),
    Phase(crowd, 1, lambda: bare_sync(ALONE)),
    Phase(siege, 1, in_memory=False, others=False),
)


def main(wanted: Sequence[str] = ()) -> None:
    """Measure all, or only the phases that are named."""
    begun = time.perf_counter()
    daemons = [each for each in (TURNWIRE, IN_MEMORY, QWEN_SERVE) if each.missing is None]
    table = Table([*(each.name for each in daemons), BARE.name], but=IN_MEMORY.name)
    for phase in [each for each in PHASES if not wanted or each.name in wanted]:
        for _ in range(phase.rounds):
            for target in daemons:
                if (phase.in_memory or target is not IN_MEMORY) and (phase.others or target is not QWEN_SERVE):
                    table.take(target.name, measured(target, phase.measure))
            if phase.bare is not None:
                table.take(BARE.name, phase.bare())
    table.show()
    if QWEN_SERVE.missing is not None:
        print(f"{QWEN_SERVE.name}: {QWEN_SERVE.missing}")
    print(f"one agent process, loopback, {time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main(sys.argv[1:])
