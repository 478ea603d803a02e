"""One lane of the crash test: log files, each used by many generations, each generation killed and then examined.

The input is a seed; the result is a report of the kills and the findings. It stops at the first error, with the
file as it was then. Every wait is bounded.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from tests.crash.database_witness import DatabaseWitness
from tests.crash.orders import AT_A_TIME, OF_A_FILE, POINTS, Order
from tests.crash.witness import Accepted, Asked, Claim, Seen, Witness
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("v1", "v1plus", "v2")
DURABILITIES = ("full", "normal")
DEATHS = (*POINTS, *POINTS, AT_A_TIME, AT_A_TIME, AT_A_TIME)
"""Kinds of deaths of the generations of one file, in any order."""
DEATHS_ON_A_DATABASE = tuple(each for each in DEATHS if each not in OF_A_FILE)

ANSWER_S = 60.0
"""Maximum silence of the child program: above any generation's own bound."""

MOMENT_S = 0.25
"""Maximum duration of a generation that is killed from outside: opening, recovery and some work."""


@dataclass
class Outcome:
    """The reports of one generation, and its end."""

    exit_code: int = 0
    was_late: bool = False
    """It was killed from outside."""
    recovered: bool = False
    claims: list[Claim] = field(default_factory=list[Claim])
    failures: list[str] = field(default_factory=list[str])

    def take(self, line: str) -> bool:
        """Process one line of the child program; return False after the last. Half a line is ignored."""
        match line.split():
            case ["seen", session, offset, crc, "."]:
                self.claims.append(Seen(session, int(offset), int(crc)))
            case ["accepted", session, prompt_id, key, after_offset, "."]:
                self.claims.append(Accepted(session, prompt_id, None if key == "-" else key, int(after_offset)))
            case ["asked", prompt_id, "."]:
                self.claims.append(Asked(prompt_id))
            case ["recovered", "."]:
                self.recovered = True
            case ["failed", *what, "."]:
                self.failures.append(" ".join(what))
            case ["ended", code, how, "."]:
                self.exit_code, self.was_late = int(code), how == "late"
                return False
            case _:
                pass
        return True


class ChildProgram:
    """The running child program."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._half = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # With the generation that may still be at work.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=ANSWER_S)

    def run(self, order: Order) -> Outcome:
        """Run one generation, from its start to its death. Raises `TimeoutError`, `EOFError`."""
        assert self._process.stdin is not None
        self._process.stdin.write(order.line())
        self._process.stdin.flush()
        outcome = Outcome()
        while all(outcome.take(line) for line in self._lines()):
            pass
        return outcome

    def _lines(self) -> Iterator[str]:
        """The lines that have come; waits for something to come."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_S):
                raise TimeoutError(f"the child program said nothing for {ANSWER_S} s")
        read = os.read(self._process.stdout.fileno(), 1 << 16)
        if not read:
            raise EOFError("the child program is gone")
        *lines, self._half = (self._half + read).split(b"\n")
        return (line.decode() for line in lines)


@dataclass
class Report:
    """The kills and findings of a lane."""

    deaths: Counter[str] = field(default_factory=Counter[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    """Events in the files, by kind."""
    claims: Counter[str] = field(default_factory=Counter[str])
    repeats: int = 0
    """Keys that were accepted in one generation and again, as the same prompt, in a later one."""
    unrecovered: int = 0
    """Generations that died before they had recovered."""
    complaints: list[str] = field(default_factory=list[str])


class FileRun:
    """One log from its first generation to its last: a file, or one in a database if a server is given."""

    def __init__(
        self, child: ChildProgram, path: Path, seed: str, report: Report, server: PostgresServer | None
    ) -> None:
        self._child = child
        self._random = Random(seed)
        if server is None:
            self._log = str(path)
            self._witness, self._deaths, self._durabilities = Witness(path), DEATHS, DURABILITIES
        else:
            self._log = server.new_log()
            self._witness, self._deaths = DatabaseWitness(server, self._log), DEATHS_ON_A_DATABASE
            self._durabilities = DURABILITIES[:2]
        self._report = report
        self._keys: set[tuple[str, str]] = set()
        self._generation = 0

    def run(self) -> None:
        """Kill many generations, then run two to their end: one completes the queue, one finds the state after a
        clean exit.
        """
        for point in self._random.sample(self._deaths, len(self._deaths)):
            passage = self._random.choice([1, 2, 3, self._random.randint(1, 25)])
            within_s = self._random.uniform(0, MOMENT_S) if point == AT_A_TIME else ANSWER_S / 2
            if not self._live(self._order(point=point, passage=passage, within_s=within_s)):
                return
        if self._live(self._order(last=True)) and self._live(self._order(last=True)):
            self._report.complaints += self._witness.settled()
            self._report.kinds += self._witness.kinds

    def _order(
        self, *, last: bool = False, point: str = AT_A_TIME, passage: int = 0, within_s: float = ANSWER_S / 2
    ) -> Order:
        self._generation += 1
        return Order(
            path=self._log,
            seed=self._random.getrandbits(32),
            generation=self._generation,
            profile=self._random.choice(PROFILES),
            durability=self._random.choice(self._durabilities),
            last=last,
            point=point,
            passage=passage,
            within_s=within_s,
        )

    def _live(self, order: Order) -> bool:
        """Run one generation and the witness; return False if there is an error."""
        active = self._witness.active()
        outcome = self._child.run(order)
        found = [*outcome.failures, *_unexpected(order, outcome), *self._witness.look()]
        found += self._witness.hear(outcome.claims)
        if outcome.recovered:
            found += self._witness.recovered(active)
        self._count(order, outcome)
        self._report.complaints += [f"{problem} [{order}]" for problem in found]
        return not found

    def _count(self, order: Order, outcome: Outcome) -> None:
        if not order.last:
            self._report.deaths[order.point] += 1
            self._report.unrecovered += not outcome.recovered
        self._report.claims.update(type(claim).__name__ for claim in outcome.claims)
        keys = {(each.session, each.key) for each in outcome.claims if isinstance(each, Accepted) and each.key}
        self._report.repeats += len(keys & self._keys)
        self._keys |= keys


def _unexpected(order: Order, outcome: Outcome) -> Iterator[str]:
    """Return the error for a death that is not the ordered one."""
    if order.last:
        if outcome.was_late or outcome.exit_code != 0:
            yield f"the last generation did not settle and leave, but ended with {outcome.exit_code}"
    elif outcome.exit_code != -signal.SIGKILL:
        yield f"the generation was not killed, but ended with {outcome.exit_code}"
    elif outcome.was_late and order.point != AT_A_TIME:
        yield "the generation did not come to the point where it was to die"


def run_lane(folder: Path, seed: str, files: int, server: PostgresServer | None = None) -> Report:
    """Some files, or logs in a database, one after the other, until one is found to be wrong."""
    report = Report()
    with ChildProgram() as child:
        for number in range(files):
            FileRun(child, folder / f"log-{number}", f"{seed}/{number}", report, server).run()
            if report.complaints:
                break
    return report
