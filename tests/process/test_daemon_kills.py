"""A daemon process is killed a dozen times; `tests/crash` does so hundreds of times."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from tests.crash.daemon_lane import KILLS, Report, run_lane
from tests.process.starting import needs_linux

pytestmark = [pytest.mark.anyio, needs_linux]


@pytest.mark.guarantee("G1", "G2", "G3", "G7")
async def test_events_and_answers_survive_a_dozen_kills_of_the_daemon(tmp_path: Path) -> None:
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    report = Report()
    await run_lane(tmp_path, seed, 1, report)
    assert not report.complaints, f"TURNWIRE_CRASH_SEED={seed}:\n" + "\n".join(report.complaints[:20])
    assert report.deaths.total() == KILLS >= 10
    assert min(report.receipts, report.read) > 0
