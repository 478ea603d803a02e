"""The application mounted in another one: the same routes and the same access, below a path of that one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.support.daemons import running_daemon

from turnwire.server.access.login import PAGE_KEY
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


async def test_a_login_link_of_a_mounted_application_leads_to_its_own_page(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        theirs = Starlette(routes=[Mount("/team/agents", app=create_app(running.daemon))])
        owner = {"Authorization": f"Bearer {running.token}"}
        own_page = {"Origin": "http://127.0.0.1"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(theirs), base_url="http://127.0.0.1") as browser:
            made = await browser.post("/team/agents/login-link", headers=owner)
            page, _, code = made.json()["url"].partition("#")
            assert page == "http://127.0.0.1/team/agents/login"
            assert "Logging in" in (await browser.get(page)).text

            login = await browser.post(page, json={"code": code}, headers=own_page)
            assert login.status_code == 204, login.text
            assert "Path=/team/agents;" in login.headers["set-cookie"]
            assert (await browser.get("/team/agents/capabilities")).status_code == 401
            browser.headers[PAGE_KEY] = login.headers[PAGE_KEY]
            assert (await browser.get("/team/agents/capabilities")).status_code == 200
            assert [each.path for each in browser.cookies.jar] == ["/team/agents"]

            assert (await browser.post("/team/agents/logout", headers=own_page)).status_code == 204
            assert not list(browser.cookies.jar)
            assert (await browser.get("/team/agents/capabilities")).status_code == 401


async def test_the_path_of_a_mount_is_written_as_a_browser_writes_it(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        theirs = Starlette(routes=[Mount("/our agents; here", app=create_app(running.daemon))])
        base = "http://127.0.0.1/our%20agents%3B%20here"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(theirs), base_url=base) as client:
            made = await client.post("/login-link", headers={"Authorization": f"Bearer {running.token}"})
            page, _, code = made.json()["url"].partition("#")
            assert page == f"{base}/login"
            login = await client.post("/login", json={"code": code})
            assert "; Path=/our%20agents%3B%20here; " in login.headers["set-cookie"]
