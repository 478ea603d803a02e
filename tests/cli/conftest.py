"""Fixtures of the command line's tests: daemons for all tests that only read them."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.rig import Served, served


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Run a daemon with the scripted agent. Each test has separate sessions on it."""
    home: Path = tmp_path_factory.mktemp("home")
    with served(home) as running:
        yield running


@pytest.fixture(scope="module", params=["1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    """The ACP version of the agent of `scenes`."""
    return request.param


@pytest.fixture(scope="module")
def scenes(version: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Run a daemon whose agent executes a prompt's steps one by one, in frames of this version."""
    agent = str(Path(__file__).parent / "scene_agent.py")
    with served(tmp_path_factory.mktemp("home"), "--", sys.executable, agent, version) as running:
        yield running
