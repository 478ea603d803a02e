"""The log is killed inside of each step of commit, sync and publish, repeatedly, and nothing acknowledged is lost.

The file is read after each kill with plain `sqlite3`, on a copy, in its state after the kill.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import IO

import pytest
from tests.crash.log_child import POINTS, SESSIONS, Order
from tests.crash.witness import copied

from turnwire.log import Durability

ROOT = Path(__file__).resolve().parents[2]
FILES, LIVES = 64 if os.environ.get("TURNWIRE_SOAK") == "1" else 6, 16
KILLS = FILES * LIVES


def one_life(child: subprocess.Popen[bytes], order: Order) -> dict[str, int]:
    """The heads that were acknowledged before the kill."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(order).encode() + b"\n")
    child.stdin.flush()
    return heard(child.stdout)


def heard(lines: IO[bytes]) -> dict[str, int]:
    acknowledged: dict[str, int] = {}
    for line in lines:
        match line.split():
            case [b"ended", code, b"."]:
                assert code == b"-9", f"the child ended by itself, with {code!r}"
                return acknowledged
            case [name, head, b"."]:
                acknowledged[name.decode()] = int(head)
            case _:
                pass
    raise AssertionError("the child program is gone")


def events_of(connection: sqlite3.Connection, session: int) -> list[tuple[int, bytes]]:
    """Return a session's events by their segments; the view would need minutes for this number of files."""
    events: list[tuple[int, bytes]] = []
    for key, ends, bodies in connection.execute("SELECT key, ends, bodies FROM segments ORDER BY key"):
        if key >> 36 == session:
            places: list[int] = [0, *json.loads(ends)]
            first = key % (1 << 36) - len(places) + 2
            events += enumerate((bodies[begin:end] for begin, end in pairwise(places)), first)
    return events


def look(path: Path, known: dict[str, int], acknowledged: dict[str, int]) -> None:
    """Check that nothing is lost, partial or out of order; then store the found events."""
    with closing(copied(path)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        keys = dict(connection.execute("SELECT name, id FROM sessions")) if has_tables else {}
        for name in {*known, *acknowledged}:
            events = events_of(connection, keys[name])
            words = [body.split(b" ") for _, body in events]
            assert (
                [offset for offset, _ in events] == [int(word[0]) for word in words] == [*range(1, len(events) + 1)]
            )
            if words:
                assert int(words[-1][1]) == len(events), "an append is there in part"
            assert len(events) >= max(known.get(name, 0), acknowledged.get(name, 0))
            known[name] = len(events)


@pytest.mark.soaked
@pytest.mark.guarantee("G1", "G2")
def test_what_was_acknowledged_survives_a_kill_inside_of_each_step(tmp_path: Path) -> None:
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    chance = Random(seed)
    deaths: Counter[str] = Counter()
    places = [(point, is_after) for point in POINTS for is_after in (False, True)]
    command = [sys.executable, "-m", "tests.crash.log_child"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        for number in range(FILES):
            path, known = tmp_path / f"{number}.db", dict[str, int]()
            for life in range(LIVES):
                point, is_after = places[life] if life < len(places) else ("", False)
                is_rare = point == "checkpoint"
                order = Order(
                    str(path),
                    chance.getrandbits(32),
                    chance.choice(list(Durability)),
                    point,
                    is_after,
                    1 if is_rare else chance.choice([1, 2, 3, 5, 20]),
                    5.0 if point else chance.uniform(0.005, 0.06),
                    is_alone=(number + life) % 2 == 1,
                )
                acknowledged = one_life(child, order)
                deaths[point] += 1
                try:
                    look(path, known, acknowledged)
                except AssertionError as error:
                    raise AssertionError(f"TURNWIRE_CRASH_SEED={seed}, {order}: {error}") from error
            assert set(known) == set(SESSIONS)
        assert child.stdin is not None
        child.stdin.close()
    assert deaths.total() == KILLS
    assert set(deaths) == {*POINTS, ""}
