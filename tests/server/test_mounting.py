"""The application inside somebody else's: the same routes and the same door, below a path of theirs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.support.daemons import running_daemon

from turnwire.server.app import create_app

pytestmark = pytest.mark.anyio


async def test_the_application_works_below_a_path_of_another_one(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        theirs = Starlette(routes=[Mount("/agents", app=create_app(running.daemon))])
        transport = httpx.ASGITransport(theirs)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/agents") as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert (await client.get("/session")).status_code == 401
            client.headers["Authorization"] = f"Bearer {running.token}"
            created = await client.post("/session", json={})
            assert created.status_code == 200
            session_id = created.json()["sessionId"]
            answer = await client.post(
                f"/session/{session_id}/prompt?wait=true", json={"prompt": [{"type": "text", "text": "hello"}]}
            )
            assert answer.json()["stopReason"] == "end_turn"
            assert (await client.get("/nothing")).status_code == 404
