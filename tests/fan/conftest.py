"""Shared fixtures of the fan: the programs, and the harness of each pair."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.fan.harness import Harness
from tests.fan.matrix import Pair
from tests.fan.programs import Programs, programs_in


@pytest.fixture(scope="package")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Programs]:
    """All programs of the fan. Each starts with the first test that needs it."""
    with programs_in(tmp_path_factory.mktemp("fan")) as started:
        yield started


@pytest.fixture
def harness(pair: Pair, programs: Programs, tmp_path: Path, request: pytest.FixtureRequest) -> Harness:
    """The harness of a pair."""
    return Harness(pair, programs, tmp_path, is_odd=request.node.get_closest_marker("odd_frames") is not None)
