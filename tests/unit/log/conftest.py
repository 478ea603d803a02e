"""Fixtures of the log's tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from turnwire_testing.faults import SqliteFaults, sqlite_faults


@pytest.fixture
def faults() -> Generator[SqliteFaults]:
    """SqliteFaults for every connection that the test opens."""
    with sqlite_faults() as given:
        yield given
