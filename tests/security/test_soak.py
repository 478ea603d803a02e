"""A user next to hostile guests, agents and strangers: served in time, nothing lost, and memory bounded."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.support.daemons import SCRIPTED, TOKEN

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

RUN_S = float(os.environ.get("SOAK_S", "600"))
MEMORY_BYTES = 2**30
"""Memory limit of the daemon's process: its bounds are 256 MiB of queued prompts, 256 MiB of bodies per credential,
and less for everything else; prompts are in memory about twice.
"""
HEALTH_P99_S, PROMPT_P99_S = 2.0, 5.0
"""Latency limits on a machine whose two cores the hostile peers share."""


@pytest.mark.timeout(RUN_S + 4 * WAIT_S)
@pytest.mark.soak("hostile peers for as long as SOAK_S says")
async def test_user_is_served_next_to_hostile_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("serve", "--json", "--port", "0", "--data", str(tmp_path / "data"), "--cwd", str(tmp_path))
    hostile_agent = f"hostile={sys.executable} {Path(__file__).with_name('hostile_agent.py')}"
    agents = ("--agent", hostile_agent, "--", *SCRIPTED)
    command = [sys.executable, "-m", "turnwire", *words, "--token", TOKEN, *agents]
    environment = {name: value for name, value in os.environ.items() if name != "TURNWIRE_SOAK"}
    errors = (tmp_path / "err").open("wb")
    daemon = await anyio.open_process(command, stdin=None, stderr=errors, cwd=tmp_path, env=environment)
    errors.close()
    try:
        assert daemon.stdout is not None
        with anyio.fail_after(WAIT_S):
            line = await BufferedByteReceiveStream(daemon.stdout).receive_until(b"\n", 65_536)
        url = json.loads(line)["url"]
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
        ) as user:
            session_id = (await user.post("/session", json={})).json()["sessionId"]
            link = (await user.post(f"/session/{session_id}/share")).json()["url"]
            hostile = [sys.executable, "-m", "tests.security.hostile_peers", url, TOKEN, link, str(RUN_S + WAIT_S)]
            peers = await anyio.open_process(
                hostile, env={**os.environ, "SHARED_SESSION": session_id}, stdout=None, stderr=None
            )
            try:
                measured = await _used(user, session_id, daemon.pid)
                assert peers.returncode is None, "the hostile peers worked until the end"
            finally:
                with suppress(ProcessLookupError):
                    peers.terminate()
                await peers.wait()
            told = await user.get(f"/session/{session_id}/transcript", params={"limit": 1})
            assert told.status_code == 200
    finally:
        daemon.terminate()
        await daemon.wait()
    with capsys.disabled():
        sys.stdout.write(f"\n{measured}\n")
    assert measured["prompts_lost"] == 0
    assert measured["memory_mib"] * 2**20 <= MEMORY_BYTES
    assert measured["health_p99_s"] <= HEALTH_P99_S
    assert measured["prompt_p99_s"] <= PROMPT_P99_S
    assert (tmp_path / "err").stat().st_size < 64 * 2**20, "strangers do not fill the log"


async def _used(user: httpx.AsyncClient, session_id: str, pid: int) -> dict[str, float]:
    """Use the daemon as a person's page does until the time is over, and measure."""
    health: list[float] = []
    prompts: list[float] = []
    memory, lost, end = 0, 0, time.monotonic() + RUN_S
    body = {"prompt": [{"type": "text", "text": "say 1 hi"}]}
    while time.monotonic() < end:
        health.append(await _timed(user, "GET", "/health"))
        began = time.monotonic()
        answer = await user.post(f"/session/{session_id}/prompt", params={"wait": "true"}, json=body)
        prompts.append(time.monotonic() - began)
        lost += answer.status_code != 200 or answer.json()["stopReason"] != "end_turn"
        memory = max(memory, _resident(pid))
        await anyio.sleep(0.1)
    return {
        "turns": len(prompts),
        "prompts_lost": lost,
        "memory_mib": memory // 2**20,
        "health_p99_s": _p99(health),
        "prompt_p99_s": _p99(prompts),
    }


async def _timed(user: httpx.AsyncClient, method: str, path: str) -> float:
    began = time.monotonic()
    assert (await user.request(method, path)).status_code == 200
    return time.monotonic() - began


def _p99(values: list[float]) -> float:
    return round(sorted(values)[int(len(values) * 0.99)], 4)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
