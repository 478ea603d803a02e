"""An observer changes nothing: neither the log of a session that it views, nor the other attached clients."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.security.intruding import attacked, bearer, issue, open_session
from tests.server.acp.http_client import load
from tests.server.acp.socket_client import open_socket
from tests.support.daemons import Running

from turnwire.ids import SessionId
from turnwire.limits import REMEMBERED_CLIENTS
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


async def head(daemon: Running, session_id: str) -> int:
    return (await daemon.daemon.node.head(SessionId(session_id))).head


async def clients(client: httpx.AsyncClient, session_id: str) -> dict[str, str]:
    return (await client.get(f"/session/{session_id}/explain")).json()["clients"]


async def test_an_observer_adds_nothing_to_a_log_and_takes_nobodys_place(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        before, known = await head(daemon, session_id), await clients(owner, session_id)
        assert len(known) == 1
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as observer:
            entered = await observer.post(f"/session/{session_id}/load", json={})
            for _ in range(REMEMBERED_CLIENTS + 1):
                assert entered.status_code == 200, entered.text
                entered = await observer.post(f"/session/{session_id}/resume", json={})
            # Its id is its own all the same, also when it disconnects.
            own = {"Turnwire-Client-Id": entered.json()["clientId"]}
            beat = await observer.post(f"/session/{session_id}/heartbeat", json={}, headers=own)
            assert (beat.status_code, beat.json()["clientId"]) == (200, own["Turnwire-Client-Id"])
            assert (await observer.post(f"/session/{session_id}/detach", headers=own)).status_code == 204
        assert await head(daemon, session_id) == before
        assert await clients(owner, session_id) == known
        kept = {"Turnwire-Client-Id": next(iter(known))}
        assert (await owner.post(f"/session/{session_id}/heartbeat", json={}, headers=kept)).status_code == 200


@pytest.mark.parametrize("version", [1, 2])
async def test_an_observer_over_acp_adds_nothing_to_a_log(tmp_path: Path, version: int) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        before, known = await head(daemon, session_id), await clients(owner, session_id)
        cwd = tmp_path / "work"
        _, secret = await issue(daemon, Role.OBSERVER)
        for number in range(3):
            async with open_socket(daemon, headers=bearer(secret)) as observer:
                await observer.start(version)
                named: dict[str, object] = {"sessionId": session_id, "cwd": str(cwd), "mcpServers": []}
                if number == 0 and version == 1:
                    await observer.send(load(session_id, cwd, "load"))
                    assert "result" in await observer.answer("load")
                elif number == 1:
                    await observer.call("session/resume", named)
                else:
                    await observer.call("session/attach", {"sessionId": session_id})
                await observer.call("session/detach", {"sessionId": session_id})
        assert await head(daemon, session_id) == before
        assert await clients(owner, session_id) == known


async def test_an_observers_client_id_is_good_for_nobody_else(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id, other_session = await open_session(owner, tmp_path), await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.OBSERVER)
        _, other = await daemon.daemon.tokens.issue("somebody", Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as observer:
            entered = await observer.post(f"/session/{session_id}/resume", json={})
            client_id: str = entered.json()["clientId"]
            for path, name, used in (
                (session_id, other, client_id),
                (other_session, secret, client_id),
                (session_id, secret, client_id[:-1] + ("0" if client_id[-1] != "0" else "1")),
                (session_id, secret, client_id.partition("-")[0]),
            ):
                headers = bearer(name) | {"Turnwire-Client-Id": used}
                refused = await observer.post(f"/session/{path}/heartbeat", json={}, headers=headers)
                assert refused.status_code in (400, 403), used


async def test_a_closed_session_refuses_an_observer_as_it_refuses_others(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        await owner.delete(f"/session/{session_id}")
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as observer:
            refused = [await each.post(f"/session/{session_id}/load", json={}) for each in (owner, observer)]
        assert [each.json()["code"] for each in refused] == ["session_closed"] * 2
