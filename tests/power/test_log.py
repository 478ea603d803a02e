"""A power cut at any moment loses nothing that the SQLite log has acknowledged as durable, and breaks nothing.

The real log runs in another process under `strace`. From its writes and syncs the test creates the files that a
power cut would leave (`tests.power.disk`), and reopens them with the real log.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest
from tests.power.cuts import SEED, Run, cut_power, record
from tests.power.log_child import WORKLOADS
from tests.power.promises import Found, Promises, complaint_about, life_and_last

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.limits import Limits, MiB
from turnwire.log.base import Position, SessionHead
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_writer import Durability

pytestmark = pytest.mark.anyio

RANDOM_CUTS = int(os.environ.get("POWER_CUTS", "40"))
"""Number of cuts of each run with unsynced changes, in addition to one after each line of the ledger."""
LOG = Path("data", "log.db")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Run]:
    """Runs by workload and level, each recorded once."""
    runs: dict[tuple[str, str], Run] = {}

    def get(workload: str, level: str) -> Run:
        if (workload, level) not in runs:
            place = tmp_path_factory.mktemp(workload)
            runs[workload, level] = record(place, "tests.power.log_child", workload, SEED, level)
        return runs[workload, level]

    return get


async def check(
    run: Run, *, random_cuts: int = RANDOM_CUTS, seed: str = SEED, drops_sync: Callable[[], bool] = lambda: False
) -> list[str]:
    promises = Promises()

    async def look(folder: Path) -> list[str]:
        return await look_at(folder / LOG, promises)

    return await cut_power(run, random_cuts, seed=seed, note=promises.note, look=look, drops_sync=drops_sync)


async def look_at(path: Path, promises: Promises) -> list[str]:
    """Open the log after a power cut, read all of it, write to it, and compare."""
    found: dict[str, Found] = {}
    complaints: list[str] = []
    try:
        async with await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL) as log:
            for head in await log.sessions():
                life = await read_session(log, head, complaints)
                found[head.session_id] = Found(life, head.first, head.head, head.unsettled)
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                complaints += [each for (each,) in connection.execute("PRAGMA integrity_check") if each != "ok"]
            await log.create(SessionId("after the cut"))
            await log.append(SessionId("after the cut"), [b"1"], expected=0, unsettled=False, durable=True)
    except TurnwireError as error:
        return [f"the log cannot be used: {error!r}, because of {error.__cause__!r}"]
    return [*complaints, *promises.complaints(found)]


async def read_session(log: SqliteEventLog, head: SessionHead, complaints: list[str]) -> int | None:
    """Return the session's creation number; append the errors of its events to `complaints`."""
    name, lives = head.session_id, set[int]()
    offset, last = head.first - 1, head.head
    while offset < head.head:
        for event in await log.read(name, Position(head.epoch, offset), max_events=1000, max_bytes=MiB):
            offset += 1
            complaint = complaint_about(event.body, name, event.offset)
            if complaint is not None or event.offset != offset:
                complaints.append(complaint or f"{name}: event {event.offset} was read as event {offset}")
                return None
            life, last = life_and_last(event.body)
            lives.add(life)
    if last != head.head:
        complaints.append(f"{name}: the last append is there in part: {head.head} of {last}")
    snapshot = await log.load_snapshot(name, "fold")
    if snapshot is not None and (snapshot.offset > head.head or snapshot.body != b"%d" % snapshot.offset * 500):
        complaints.append(f"{name}: the snapshot at {snapshot.offset} is damaged or after the head {head.head}")
    if len(lives) > 1:
        complaints.append(f"{name}: events of several lives: {sorted(lives)}")
    return lives.pop() if lives else None


@pytest.mark.guarantee("G1", "G2")
@pytest.mark.parametrize("workload", WORKLOADS)
async def test_durable_appends_survive_a_power_cut(workload: str, recorded: Callable[[str, str], Run]) -> None:
    assert await check(recorded(workload, "normal")) == [], f"POWER_SEED={SEED}"


async def test_every_append_survives_a_power_cut_at_level_full(recorded: Callable[[str, str], Run]) -> None:
    assert await check(recorded("chunks", "full")) == [], f"POWER_SEED={SEED}"


async def test_the_check_notices_a_disk_that_never_syncs(recorded: Callable[[str, str], Run]) -> None:
    assert await check(recorded("one_writer", "normal"), random_cuts=0, drops_sync=lambda: True)


@pytest.mark.parametrize("workload", WORKLOADS)
async def test_the_check_notices_a_disk_that_drops_one_sync_in_ten(
    workload: str, recorded: Callable[[str, str], Run]
) -> None:
    # The next sync can make up for a dropped one before anything is acknowledged, so not every choice shows.
    found: list[str] = []
    for number in range(10):
        dropped = cycle([each == number for each in range(10)])
        found += await check(
            recorded(workload, "normal"), random_cuts=0, drops_sync=lambda each=dropped: next(each)
        )
    assert any("lost, though acknowledged as durable" in each for each in found)


@pytest.mark.soak("power cuts for as long as SOAK_S says")
@pytest.mark.timeout(0)
async def test_durable_appends_survive_power_cuts_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("SOAK_S", "600"))
    for number, workload in enumerate(cycle(WORKLOADS)):
        seed, place = f"{SEED}-{number}", tmp_path / str(number)
        level = "full" if number % 5 == 4 else "normal"
        run = record(place, "tests.power.log_child", workload, seed, level)
        found = await check(run, random_cuts=300, seed=seed)
        assert found == [], f"seed {seed}, workload {workload}, level {level}"
        shutil.rmtree(place)
        if time.monotonic() > end:
            break
