"""A daemon process is killed at any instant, over a hundred times, and all promises to clients still hold.

Process after process runs on the same folder, each one killed: at a moment that clients see (a 202 has just come, a
burst is under way, a request is open), at a random one, alone, and twice in a row while it recovers. Clients resume
with their last event id and their idempotency keys; the agent records its prompts itself; a witness that shares no
code with turnwire reads the log. `TURNWIRE_CRASH_SEED` repeats a run, as far as timing allows.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path

import anyio
import pytest
from tests.crash.daemon_clients import POINTS
from tests.crash.daemon_lane import ALONE, AT_A_TIME, KILLS, STARTING, Report, run_lane
from tests.crash.daemon_life import TOKEN, WAIT_S, Folder, Manner, open_daemons
from tests.process.starting import needs_linux
from tests.support.postgres import PostgresServer

from turnwire import connect
from turnwire.client.daemon_client import DaemonClient, Envelope
from turnwire.errors import TurnError

pytestmark = [pytest.mark.anyio, needs_linux]

LANES, FOLDERS = 2, 12 if os.environ.get("TURNWIRE_SOAK") == "1" else 4

HAPPENED = {
    *("session_created", "agent_started", "session_update", "prompt_accepted", "user_message", "turn_started"),
    *("pending_prompt_added", "pending_prompt_started", "permission_request", "permission_resolved"),
    *("prompt_cancelled", "turn_complete", "turn_error"),
}
"""Kinds of events that every run has; without one of them the clients do not do their work."""


@pytest.mark.soaked
@pytest.mark.guarantee("G1", "G2", "G3", "G7", "G8", "G9", "G14")
async def test_whatever_a_client_holds_survives_a_kill_of_the_daemon_at_any_instant(tmp_path: Path) -> None:
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    reports = [Report() for _ in range(LANES)]
    async with anyio.create_task_group() as lanes:
        for number, report in enumerate(reports):
            folder = tmp_path / f"lane-{number}"
            folder.mkdir()
            lanes.start_soon(run_lane, folder, f"{seed}/{number}", FOLDERS, report)
    complaints = [problem for report in reports for problem in report.complaints]
    assert not complaints, f"TURNWIRE_CRASH_SEED={seed}, folders in {tmp_path}:\n" + "\n".join(complaints[:20])
    _check_the_run_was_worth_it(reports)


@pytest.mark.guarantee("G1", "G2", "G3", "G7", "G8", "G9", "G14")
async def test_whatever_a_client_holds_survives_a_kill_of_a_daemon_whose_log_is_in_postgresql(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """One folder's deaths, each daemon on the database of the one before; the witness reads that."""
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    report = Report()
    await run_lane(tmp_path, f"{seed}/postgresql", 1, report, postgres)
    assert not report.complaints, f"TURNWIRE_CRASH_SEED={seed}:\n" + "\n".join(report.complaints[:20])
    assert report.deaths.total() == KILLS
    assert min(report.receipts, report.read, report.interrupted) > 0


def _check_the_run_was_worth_it(reports: list[Report]) -> None:
    """Check that the clients were active: a kill test without any activity would pass as well."""
    deaths = sum((report.deaths for report in reports), Counter[str]())
    kinds = sum((report.kinds for report in reports), Counter[str]())
    assert deaths.total() == LANES * FOLDERS * KILLS >= 100
    assert deaths.keys() == {*POINTS, AT_A_TIME, STARTING, ALONE}
    assert not HAPPENED - kinds.keys()
    assert sum(report.late for report in reports) <= deaths.total() // 5
    assert sum(report.receipts for report in reports) >= deaths.total()
    assert sum(report.read for report in reports) >= 50 * deaths.total()
    for each in ("unannounced", "repeats", "interrupted", "continued", "alone"):
        assert sum(getattr(report, each) for report in reports) > 0, each


@pytest.mark.guarantee("G3", "G7")
async def test_prompts_of_the_sdk_get_their_ends_although_the_daemon_is_killed_while_they_wait(
    tmp_path: Path,
) -> None:
    ends: dict[str, str] = {}
    with anyio.fail_after(WAIT_S), closing(Folder(tmp_path / "daemon")) as folder:
        async with open_daemons() as daemons:
            life = await daemons.start(folder.start(Manner(number=1)))
            await life.announced()
            async with DaemonClient(folder.url, TOKEN) as client, connect(folder.url, token=TOKEN) as other:
                session_id = (await client.create_session(str(folder.path))).session_id

                async def prompt(text: str) -> None:
                    try:
                        ends[text] = (await client.prompt(session_id, text)).stop_reason
                    except TurnError as error:
                        ends[text] = str(error.context["reason"])

                async with anyio.create_task_group() as tasks, aclosing(client.events(session_id, 0)) as events:
                    tasks.start_soon(prompt, "s-1 hold on")
                    await until(events, "prompt_sent")
                    tasks.start_soon(prompt, "s-2 quick")
                    await until(events, "pending_prompt_added")
                    turn = (await other.attach(session_id)).prompt("s-3 quick")
                    await until(events, "pending_prompt_added")
                    life.kill()
                    await daemons.bury(life)
                    life = await daemons.start(folder.start(Manner(number=2)))
                    ends["s-3 quick"] = (await turn).stop_reason
        assert folder.tags() == [("s-1", 1), ("s-2", 2), ("s-3", 2)]
    assert ends == {"s-1 hold on": "daemon_restarted", "s-2 quick": "end_turn", "s-3 quick": "end_turn"}


async def until(events: AsyncGenerator[Envelope], kind: str) -> None:
    """Read on to the next event of a kind."""
    while (await anext(events)).type != kind:
        pass
