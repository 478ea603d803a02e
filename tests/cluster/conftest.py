"""Fixtures of the cluster tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.cluster.standbys import Standbys, open_standbys


@pytest.fixture
def standbys() -> Generator[Standbys]:
    """Run a primary and its synchronous standby, for one test."""
    with open_standbys() as found:
        yield found
