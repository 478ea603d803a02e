"""Health, readiness, metrics and capabilities: routes for strangers, and the effect of a failed log on them."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx
import pytest
from tests.server.seats import answer, seated
from tests.support.daemons import running_daemon

from turnwire.errors import LogFull
from turnwire.limits import Limits
from turnwire.server.daemon.creation import workspace_id
from turnwire.server.routes import health
from turnwire_testing.faults import Fail, FaultyLog
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


async def test_anybody_may_ask_whether_the_daemon_lives_and_takes_work(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat, httpx.AsyncClient(base_url=seat.running.url) as stranger:
        assert answer(await stranger.get("/health"), 200) == {"status": "ok"}
        assert answer(await stranger.get("/ready"), 200) == {"status": "ready"}
        deep = answer(await stranger.get("/health?deep=1"), 200)
        assert deep["status"] == "ok"
        assert 0 <= deep["appendMs"] < 5000
        assert answer(await stranger.get("/openapi.json"), 200)["openapi"] == "3.1.0"
        assert (await stranger.get("/metrics")).status_code == 401
        assert (await stranger.get("/capabilities")).status_code == 401


async def test_a_deep_look_changes_nothing_in_any_session(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        before = await seat.running.daemon.log.sessions()
        for _ in range(3):
            answer(await seat.client.get("/health?deep=1"), 200)
        assert await seat.running.daemon.log.sessions() == before
        assert (await seat.run("say 1 fine")).prompt_id


async def test_a_daemon_that_stops_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        running.daemon.stopping.set()
        assert answer(await client.get("/ready"), 503) == {"status": "stopping", "reason": "shutting_down"}
        assert answer(await client.get("/health"), 200) == {"status": "ok"}
        assert answer(await client.post("/session", json={}), 503)["code"] == "shutting_down"


async def test_a_log_that_takes_nothing_is_told_with_its_reason(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        daemon = seat.running.daemon
        full = [Fail(call="append", at=each, error=LogFull("the disk is full")) for each in (1, 2)]
        daemon.log = FaultyLog(daemon.log, full)
        assert answer(await seat.client.get("/health?deep=1"), 503) == {"status": "degraded", "reason": "log_full"}
        assert answer(await seat.client.get("/ready"), 503) == {"status": "degraded", "reason": "log_full"}
        assert answer(await seat.client.get("/ready"), 200) == {"status": "ready"}


async def test_a_log_that_hangs_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DEEP_S", 0.05)
    async with seated(tmp_path / "d") as seat:

        async def append(*given: object, **more: object) -> int:
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(seat.running.daemon.log, "append", append)
        with anyio.fail_after(WAIT_S):
            told = answer(await seat.client.get("/health?deep=1"), 503)
        assert told == {"status": "degraded", "reason": "log_too_slow"}


async def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.run("say 1 fine")
        response = await seat.client.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "turnwire_turns_total" in response.text


async def test_capabilities_have_the_shape_that_clients_know(tmp_path: Path) -> None:
    limits = Limits(queue_length=7)
    async with running_daemon(tmp_path / "d", limits=limits) as running, running.client() as client:
        told = answer(await client.get("/capabilities"), 200)
    assert told["v"] == 1
    assert {"session_prompt", "non_blocking_prompt", "session_events", "permission_vote"} <= set(told["features"])
    assert told["workspaceCwd"] == str(tmp_path)
    assert told["workspaces"] == [
        {"id": workspace_id(str(tmp_path)), "cwd": str(tmp_path), "primary": True, "trusted": True}
    ]
    assert told["policy"] == {"permission": "first-responder", "whenBusy": "queue"}
    assert told["transports"] == ["rest", "sse"]
    assert told["protocolVersions"] == {"current": "v1", "supported": ["v1"]}
    assert told["modelServices"] == []
    assert told["limits"]["maxPendingPromptsPerSession"] == 7
    assert set(told["limits"]) >= {"maxSessionsPerWorkspace", "maxTotalSessions", "sessionRestoreTimeoutMs"}
