"""The daemon from outside, over loopback: how soon it answers, how fast it delivers, what it costs, and its peers.

Prints one table. Every daemon hosts the same agent program (`bench/peers/daemon_agent.py`) and is measured by the
same client. They take turns and never run at the same time; of several runs the best counts, because the others
shared the machine with somebody. `docs/bench.md` says how to read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

import uvloop

from bench import growth
from bench.daemon_bare import bare_delay, bare_sync
from bench.daemon_bursts import bursts
from bench.daemon_crowd import ALONE, crowd
from bench.daemon_siege import siege
from bench.daemon_table import Found, Table
from bench.daemon_targets import BARE, IN_MEMORY, QWEN_SERVE, TURNWIRE, Running, Target, running
from bench.daemon_turns import ACCEPTED, delay, start, turns


class Phase(NamedTuple):
    """One measurement."""

    name: str
    measure: Callable[[Target], Found]
    rounds: int
    bare: Callable[[], Found] | None = None
    """What cannot be avoided, measured alone."""
    in_memory: bool = True
    """Also without a disk."""
    others: bool = True
    """Also the daemons that we are compared with."""

    def run(self, target: Target) -> Found:
        """Measure one daemon."""
        print(f"… {self.name}: {target.name}", file=sys.stderr, flush=True)
        return self.measure(target)


def with_one(measure: Callable[[Running], Coroutine[Any, Any, Found]]) -> Callable[[Target], Found]:
    """A measurement with a daemon that is started for it."""
    return partial(_with_one, measure)


def _with_one(measure: Callable[[Running], Coroutine[Any, Any, Found]], target: Target) -> Found:
    with running(target) as daemon:
        return uvloop.run(measure(daemon))


PHASES = (
    Phase("start", with_one(start), 3),
    Phase("turns", with_one(turns), 2, lambda: bare_sync(ACCEPTED)),
    Phase("delay", with_one(delay), 2, lambda: uvloop.run(bare_delay())),
    Phase("bursts", with_one(bursts), 1, lambda: with_one(bursts)(BARE), in_memory=False),
    Phase("stalls", growth.stalls, 1, in_memory=False),
    Phase("crowd", with_one(crowd), 1, lambda: bare_sync(ALONE)),
    Phase("siege", with_one(siege), 1, in_memory=False, others=False),
    Phase("sessions", growth.sessions, 1, in_memory=False),
    Phase("readers", growth.readers, 1, in_memory=False, others=False),
    Phase("long_session", growth.long_session, 1, in_memory=False, others=False),
    Phase("recovery", growth.recovery, 1, in_memory=False, others=False),
)


def main(wanted: Sequence[str] = ()) -> None:
    """Measure all, or only the phases that are named."""
    begun = time.perf_counter()
    daemons = [each for each in (TURNWIRE, IN_MEMORY, QWEN_SERVE) if each.missing is None]
    table = Table([*(each.name for each in daemons), BARE.name], but=IN_MEMORY.name)
    for phase in chosen(wanted):
        for _ in range(phase.rounds):
            for target in daemons:
                if (phase.in_memory or target is not IN_MEMORY) and (phase.others or target is not QWEN_SERVE):
                    table.take(target.name, phase.run(target))
            if phase.bare is not None:
                table.take(BARE.name, phase.bare())
    table.show()
    if QWEN_SERVE.missing is not None:
        print(f"{QWEN_SERVE.name}: {QWEN_SERVE.missing}")
    print(f"one agent process, loopback, {time.perf_counter() - begun:.0f} s in all")


def chosen(wanted: Sequence[str], phases: Sequence[Phase] = PHASES) -> list[Phase]:
    """The phases of these names, or all. Ends the program at a name that there is not."""
    unknown = sorted(set(wanted) - {each.name for each in phases})
    if unknown:
        sys.exit(f"there is no phase {', '.join(unknown)}; there are: {', '.join(each.name for each in phases)}")
    return [each for each in phases if not wanted or each.name in wanted]


if __name__ == "__main__":
    main(sys.argv[1:])
