"""A killed daemon with hundreds of open turns answers at once after a restart, and ends them in parallel."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.crash.daemon_life import TOKEN, WAIT_S, Folder, Manner, open_daemons
from tests.process.starting import needs_linux

pytestmark = [pytest.mark.anyio, needs_linux]

OPEN = 200


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.guarantee("G3", "G7")
async def test_whoever_asks_for_a_session_of_a_killed_daemon_is_told_of_its_end_and_waits_for_no_other(
    tmp_path: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    log = request.getfixturevalue("postgres").new_log() if engine == "postgresql" else None
    with anyio.fail_after(2 * WAIT_S), closing(Folder(tmp_path / "daemon", log)) as folder:
        async with open_daemons() as daemons, _client(folder.url) as client:
            life = await daemons.start(folder.start(Manner(number=1)))
            await life.announced()
            names = [(await _post(client, "/session", cwd=str(folder.path)))["sessionId"] for _ in range(OPEN)]
            for name in names:
                body = [{"type": "text", "text": f"{name} hold on"}]
                await _post(client, f"/session/{name}/prompt", prompt=body)
            life.kill()
            await daemons.bury(life)
            life = await daemons.start(folder.start(Manner(number=2)))
            await life.announced()
            first = await _get(client, "/health")
            # In the reverse order, so that these are asked for before they are come to.
            for name in reversed(names):
                (turn,) = (await _get(client, f"/session/{name}/turns"))["turns"]
                assert (turn["state"], turn["error"]["code"]) == ("error", "daemon_restarted")
            while (await _get(client, "/health")).get("recovering"):
                pass
            assert (await _get(client, "/ready")) == {"status": "ready"}
            listed = await _get(client, "/session")
            life.stop()
            await daemons.bury(life)
        assert folder.complaints() == []
    assert first["status"] == "ok"
    assert not any(each["hasActivePrompt"] for each in listed["sessions"])


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=WAIT_S)


async def _get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).raise_for_status().json()


async def _post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    return (await client.post(path, json=body)).raise_for_status().json()
