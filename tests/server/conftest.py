"""Leaves the generated requests to `make test-all`: they are made while tests are collected, by each worker."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_short = "not full" in str(config.getoption("markexpr"))
    return True if is_short and collection_path.name == "test_schemathesis.py" else None
