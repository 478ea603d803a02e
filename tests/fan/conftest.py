"""What the fan shares: the programs, and the seat of each pair."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.fan.fleet import Fleet, fleet_in
from tests.fan.matrix import Pair
from tests.fan.seats import Seat


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fleet]:
    """All programs of the fan. Each starts with the first test that needs it."""
    with fleet_in(tmp_path_factory.mktemp("fan")) as programs:
        yield programs


@pytest.fixture
def seat(pair: Pair, fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Seat:
    """The seat of a pair."""
    return Seat(pair, fleet, tmp_path, is_odd=request.node.get_closest_marker("odd_frames") is not None)
