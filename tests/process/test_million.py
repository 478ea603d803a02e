"""A session of a million events is replayed, opened and shown with memory that does not grow with it.

Each task runs in a child process and reports the growth of its peak memory, so the bounds below are whole costs:
pages, caches and folded state.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytestmark = pytest.mark.full("a million events")

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("million_child.py")
EVENTS, TURNS, CHILD_S = 1_000_000, 10_000, 60

Run = Callable[[str], dict[str, int]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Generator[Run]:
    """Run a task of the child over one log, which is built first and removed afterwards: it needs 240 MB."""
    path = tmp_path_factory.mktemp("million") / "log.db"

    def run_task(task: str) -> dict[str, int]:
        done = subprocess.run(
            [sys.executable, str(CHILD), task, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=CHILD_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    try:
        assert run_task("build")["head"] == EVENTS
        yield run_task
    finally:
        for each in path.parent.iterdir():
            each.unlink()


@pytest.mark.guarantee("G1", "G10")
def test_a_replay_from_the_start_gives_all_of_it_within_a_hundred_megabytes(run: Run) -> None:
    told = run("replay")
    assert told["seen"] == EVENTS
    assert told["bytes"] > 150_000_000
    assert told["grown_kb"] < 100_000


def test_opening_with_a_snapshot_reads_only_what_came_after_it(run: Run) -> None:
    told = run("open")
    assert (told["head"], told["last"]) == (EVENTS, TURNS - 1)
    assert told["reads"] <= 12, "ten thousand events, a thousand to a page"
    assert told["grown_kb"] < 20_000


def test_the_view_takes_the_memory_of_its_transcript_and_not_of_the_log(run: Run) -> None:
    """20,000 messages are bounded by 128 MB; their log holds 188 MB in a million events."""
    first, again = run("view"), run("view again")
    for told in (first, again):
        assert (told["head"], told["items"]) == (EVENTS, 2 * TURNS)
        assert told["grown_kb"] < 128_000
