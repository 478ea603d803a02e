"""What the tests of the command line share: one daemon for all that only look at it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.rig import Served, served


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A daemon with the scripted agent. Each test has sessions of its own on it."""
    home: Path = tmp_path_factory.mktemp("home")
    with served(home) as running:
        yield running
