"""Our own link at our own server: the answer to a load follows the whole history, and waits no longer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.acp.http_client import initialize, load, new, prompt, request
from tests.support.daemons import Running, running_daemon

from turnwire.hosting.streamable import StreamableLink
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

CHUNKS = 300


class Far:
    """A client over the link."""

    def __init__(self, link: StreamableLink) -> None:
        self._link = link
        self.heard: list[dict[str, Any]] = []

    async def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return its answer, and all messages before it."""
        await self._link.send(json.dumps(message).encode())
        with anyio.fail_after(WAIT_S):
            while True:
                for frame in await self._link.receive():
                    self.heard.append(json.loads(frame))
                found = [each for each in self.heard if each.get("id") == message["id"] and "method" not in each]
                if found:
                    del self.heard[self.heard.index(found[0]) + 1 :]
                    return found[0]

    def texts(self) -> int:
        return sum("agent_message_chunk" in str(each) for each in self.heard)


@asynccontextmanager
async def linked(running: Running, limits: Limits) -> AsyncGenerator[Far]:
    async with httpx.AsyncClient(headers=running.headers) as http, anyio.create_task_group() as tasks:
        link = StreamableLink(f"{running.url}/acp", http, limits)
        tasks.start_soon(link.run)
        try:
            far = Far(link)
            await far.call(initialize(1, "init"))
            yield far
        finally:
            await link.aclose()


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("quiet_s", [0.0, 60.0])
async def test_a_load_is_answered_when_the_last_event_of_its_history_has_come(
    tmp_path: Path, quiet_s: float
) -> None:
    limits = Limits(replay_quiet_s=quiet_s)
    async with running_daemon(tmp_path / "data") as running:
        async with linked(running, limits) as first:
            session_id = (await first.call(new(tmp_path, 1)))["result"]["sessionId"]
            await first.call(prompt(session_id, f"say {CHUNKS} word", 2))
        async with linked(running, limits) as second:
            answer = await second.call(load(session_id, tmp_path, 3))
            assert "result" in answer
            assert second.texts() == CHUNKS, "all of it, and before the answer"
            again = await second.call(prompt(session_id, "say 1 more", 4))
            assert again["result"]["stopReason"] == "end_turn"
            params: dict[str, Any] = {"sessionId": session_id, "cwd": str(tmp_path), "mcpServers": []}
            assert "result" in await second.call(request("session/resume", params, 5))
