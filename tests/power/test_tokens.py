"""A power cut at any moment leaves `tokens.json` intact, with every acknowledged change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from tests.power.cuts import SEED, Run, cut_power, record

from turnwire.errors import ConfigError
from turnwire.server.access.token_file import NAME, read_records

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(tmp_path_factory.mktemp("tokens"), "tests.power.token_child", SEED)


async def check(run: Run, *, random_cuts: int, drops_sync: Callable[[], bool] = lambda: False) -> list[str]:
    states: list[list[str]] = [[]]
    acknowledged = 0

    def note(line: bytes) -> None:
        nonlocal acknowledged
        number, ids = msgspec.json.decode(line, type=tuple[int, list[str] | None])
        if ids is None:
            acknowledged = number + 1
        else:
            states.append(ids)

    async def look(folder: Path) -> list[str]:
        try:
            found = sorted(each.id for each in read_records(folder / "data" / NAME))
        except ConfigError as error:
            return [str(error)]
        return (
            [] if found in states[acknowledged:] else [f"found {found}, acknowledged were {states[acknowledged]}"]
        )

    return await cut_power(run, random_cuts, seed=SEED, note=note, look=look, drops_sync=drops_sync)


@pytest.mark.guarantee("G2")
async def test_acknowledged_credentials_survive_a_power_cut(run: Run) -> None:
    assert await check(run, random_cuts=300) == [], f"POWER_SEED={SEED}"


@pytest.mark.parametrize("one_in", [1, 10])
async def test_the_check_notices_a_disk_that_drops_syncs(one_in: int, run: Run) -> None:
    dropped = cycle([*[False] * (one_in - 1), True])
    assert await check(run, random_cuts=0, drops_sync=lambda: next(dropped))
