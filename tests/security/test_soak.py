"""A user next to hostile guests, agents and strangers: served in time, nothing lost, and memory bounded.

`make test-all` has a short run, `make soak` one of `SOAK_S`. `CHAOS_SEED` repeats the attacks of one run, as far as
timing allows.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.patience import LONG_S
from tests.process.starting import needs_linux
from tests.support.daemons import SCRIPTED, TOKEN

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

SEED = os.environ.get("CHAOS_SEED") or None
IS_SOAK = os.environ.get("TURNWIRE_SOAK") == "1"
RUN_S = float(os.environ.get("SOAK_S", "600")) if IS_SOAK else 30.0
FILES = 1024
"""Descriptors of the daemon: the default of systemd, and fewer than the strangers' connections."""
MEMORY_BYTES = 2**30
"""Memory limit of the daemon's process: its bounds are 256 MiB of queued prompts, 256 MiB of bodies per credential,
and less for everything else; prompts are in memory about twice.
"""
HEALTH_P99_S, PROMPT_P99_S = 2.0, 5.0
"""Latency limits of a long run on a machine whose two cores the hostile peers share."""


@dataclass
class User:
    """A person with a page: asks for the daemon's health, sends prompts, and reads the session's events."""

    client: httpx.AsyncClient
    session_id: str = ""
    health_s: list[float] = field(default_factory=list[float])
    prompts_s: list[float] = field(default_factory=list[float])
    completed: list[str] = field(default_factory=list[str])
    """Prompts whose end the daemon has reported to their sender."""
    streamed: set[str] = field(default_factory=set[str])
    """Prompts whose end was in the event stream."""
    last_event: int = 0
    dropped: int = 0
    """Connections that the daemon closed; the request was repeated."""
    daemon_bytes: int = 0
    """Largest memory of the daemon."""

    async def work(self, end: float, pid: int) -> None:
        """Work until `end`, and watch the memory of the daemon's process."""
        while time.monotonic() < end:
            await self._timed(self.health_s, "GET", "/health")
            body = {"prompt": [{"type": "text", "text": "say 1 hi"}]}
            headers = {"Idempotency-Key": secrets.token_hex(8), "Prefer": f"wait={LONG_S:.0f}"}
            answer = await self._timed(
                self.prompts_s, "POST", f"/session/{self.session_id}/prompt", json=body, headers=headers
            )
            assert answer["stopReason"] == "end_turn", answer
            self.completed.append(answer["promptId"])
            self.daemon_bytes = max(self.daemon_bytes, _resident(pid))
            await anyio.sleep(0.1)

    async def _timed(self, times: list[float], method: str, path: str, **more: Any) -> dict[str, Any]:
        began = time.monotonic()
        while True:
            try:
                answer = await self.client.request(method, path, **more)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                # Under pressure the daemon drops idle connections, possibly when a request is on its way.
                self.dropped += 1
                continue
            times.append(time.monotonic() - began)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def read(self) -> None:
        """Read the session's events without end; resume after each disconnection."""
        while True:
            with suppress(httpx.TransportError):
                headers = {"Last-Event-ID": str(self.last_event)}
                path = f"/session/{self.session_id}/events"
                async with self.client.stream("GET", path, headers=headers) as stream:
                    assert stream.status_code == 200
                    async for line in stream.aiter_lines():
                        self._add(line)
            self.dropped += 1

    def _add(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        event = json.loads(line.removeprefix("data: "))
        if "id" in event:
            assert event["id"] == self.last_event + 1, "the stream has no gap and no repeat"
            self.last_event += 1
        if event["type"] == "turn_complete":
            self.streamed.add(event["data"]["promptId"])

    async def stored(self) -> list[str]:
        """Return the prompts of the session that have ended, from the daemon's list."""
        ended: list[str] = []
        query: dict[str, str] = {"limit": "500"}
        while True:
            page = (await self.client.get(f"/session/{self.session_id}/turns", params=query)).json()
            ended += [each["promptId"] for each in page["turns"] if each.get("stopReason") == "end_turn"]
            if "nextCursor" not in page:
                return ended
            query["after"] = page["nextCursor"]


@needs_linux
@pytest.mark.full("half a minute of attacks")
@pytest.mark.soaked
@pytest.mark.timeout(RUN_S + 2 * LONG_S)
@pytest.mark.guarantee("G1", "G13")
async def test_user_is_served_next_to_hostile_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = SEED or secrets.token_hex(4)
    async with _daemon(tmp_path) as (url, process), _user(url) as user:
        made = (await user.client.post("/session", json={})).json()
        user.session_id = made["sessionId"]
        link = (await user.client.post(f"/session/{user.session_id}/share")).json()["url"]
        words = ("-m", "tests.security.hostile_peers", url, TOKEN, link, user.session_id, seed)
        peers = await anyio.open_process([sys.executable, *words], stderr=None)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(user.read)
                await user.work(time.monotonic() + RUN_S, process.pid)
                with anyio.fail_after(WAIT_S):
                    while not user.streamed.issuperset(user.completed):  # noqa: ASYNC110
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
            attempts = await _stopped(peers)
        finally:
            with suppress(ProcessLookupError):
                peers.kill()
        process.kill()
    async with _daemon(tmp_path) as (url, _), _user(url) as again:
        again.session_id = user.session_id
        assert await again.stored() == user.completed, "nothing was lost, also after the daemon was killed"
    health_p99_s, prompt_p99_s = _p99(user.health_s), _p99(user.prompts_s)
    measured: dict[str, Any] = {
        "seed": seed,
        "turns": len(user.completed),
        "events": user.last_event,
        "connections_dropped": user.dropped,
        "memory_mib": user.daemon_bytes // 2**20,
        "health_p99_s": health_p99_s,
        "prompt_p50_s": sorted(user.prompts_s)[len(user.prompts_s) // 2],
        "prompt_p99_s": prompt_p99_s,
        "attempts": attempts,
    }
    with capsys.disabled():
        sys.stderr.write(f"\n{json.dumps(measured)}\n")
    assert user.daemon_bytes <= MEMORY_BYTES
    assert (tmp_path / "errors").stat().st_size < 64 * 2**20, "strangers do not fill the log"
    if IS_SOAK:
        assert health_p99_s <= HEALTH_P99_S
        assert prompt_p99_s <= PROMPT_P99_S


@asynccontextmanager
async def _daemon(home: Path) -> AsyncGenerator[tuple[str, Process]]:
    """Run a daemon with the scripted agent, the hostile one and few descriptors; yield its URL and its process."""
    data, work = home / "data", home / "work"
    work.mkdir(exist_ok=True)
    words = ["--json", "--port", "0", "--data", str(data), "--cwd", str(work), "--token", TOKEN]
    words += [
        "--agent",
        f"hostile={sys.executable} {Path(__file__).with_name('hostile_agent.py')}",
        "--",
        *SCRIPTED,
    ]
    command = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" -m turnwire serve "$@"', sys.executable, *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    with (home / "errors").open("ab") as errors:
        process = await anyio.open_process(command, stdin=None, stderr=errors, cwd=home, env=environment)
    async with process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(WAIT_S):
                line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65_536)
            yield json.loads(line)["url"], process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


@asynccontextmanager
async def _user(url: str) -> AsyncGenerator[User]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=LONG_S) as client:
        yield User(client)


async def _stopped(peers: Process) -> dict[str, int]:
    """Stop the hostile peers. Return the number of their attempts."""
    assert peers.returncode is None, "the hostile peers worked until the end"
    assert peers.stdin is not None
    assert peers.stdout is not None
    await peers.stdin.aclose()
    with anyio.fail_after(WAIT_S):
        return json.loads(b"".join([each async for each in peers.stdout]))


def _p99(values: list[float]) -> float:
    return round(sorted(values)[int(len(values) * 0.99)], 4)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
