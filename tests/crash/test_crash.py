"""A node is killed at any instant, repeatedly, and all acknowledgements to clients still hold.

Generation after generation runs on the same log file, each one killed: at a named point of the loop, or at a moment
that nothing in the process chose. Recovery is killed as often as work. After each death a witness that shares no
code with turnwire reads the file. `TURNWIRE_CRASH_SEED` repeats a run, as far as the timing of threads allows.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.crash.lane import DEATHS, DEATHS_ON_A_DATABASE, Report, run_lane
from tests.crash.orders import AT_A_TIME, POINTS
from tests.support.postgres import PostgresServer

LANES, FILES = 2, 20 if os.environ.get("TURNWIRE_SOAK") == "1" else 2
KILLS = LANES * FILES * len(DEATHS)

HAPPENED = {
    *("session_created", "agent_started", "agent_exited", "session_update", "client_attached", "client_detached"),
    *("prompt_accepted", "pending_prompt_added", "pending_prompt_started", "pending_prompt_completed"),
    *("user_message", "turn_started", "prompt_cancelled", "turn_complete", "turn_error"),
    *("permission_request", "permission_resolved", "turn_blocked", "turn_unblocked"),
}
"""Kinds of events that every run has; without one of them the clients do not do their work."""


@pytest.mark.soaked
@pytest.mark.guarantee("G1", "G2", "G3", "G7")
def test_whatever_clients_were_told_survives_a_kill_at_any_instant(tmp_path: Path) -> None:
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    folders = [tmp_path / f"lane-{number}" for number in range(LANES)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(LANES) as threads:
        lanes = [threads.submit(run_lane, folder, f"{seed}/{folder.name}", FILES) for folder in folders]
        reports = [lane.result() for lane in lanes]
    complaints = [problem for report in reports for problem in report.complaints]
    assert not complaints, f"TURNWIRE_CRASH_SEED={seed}, files in {tmp_path}:\n" + "\n".join(complaints)
    _check_the_run_was_worth_it(reports)


@pytest.mark.guarantee("G1", "G2", "G3", "G7")
def test_whatever_clients_were_told_survives_a_kill_of_a_node_whose_log_is_in_postgresql(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Statements that such a node had sent may still be stored after its death."""
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    report = run_lane(tmp_path, f"{seed}/postgresql", 1, postgres)
    assert not report.complaints, f"TURNWIRE_CRASH_SEED={seed}:\n" + "\n".join(report.complaints)
    assert report.deaths == Counter(DEATHS_ON_A_DATABASE)
    assert min(report.claims["Accepted"], report.claims["Asked"], report.claims["Seen"]) > 0


def _check_the_run_was_worth_it(reports: list[Report]) -> None:
    """Check that the clients were active: a crash test without any activity would pass as well."""
    deaths = sum((report.deaths for report in reports), Counter[str]())
    kinds = sum((report.kinds for report in reports), Counter[str]())
    claims = sum((report.claims for report in reports), Counter[str]())
    assert deaths.total() == KILLS >= 80
    assert deaths.keys() == {*POINTS, AT_A_TIME}
    assert not HAPPENED - kinds.keys()
    assert min(claims["Accepted"], claims["Asked"], claims["Seen"]) >= KILLS // 2
    assert sum(report.repeats for report in reports) > 0
    assert sum(report.unrecovered for report in reports) > 0
