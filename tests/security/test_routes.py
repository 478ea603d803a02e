"""A daemon is closed by default: every route rejects strangers, other pages, weak tokens and foreign sessions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.security.intruding import EVIL, attacked, bearer, events_of, issue, open_session, raw, statuses, table

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


def not_in(found: dict[str, int], *expected: int) -> dict[str, int]:
    return {route: status for route, status in found.items() if status not in expected}


async def test_a_rebound_name_gets_nothing_from_any_route(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        assert (await client.get("/capabilities")).status_code == 200
        found = await statuses(client, table(), headers={"Host": "rebound.example"})
        assert not_in(found, 403) == {}


async def test_a_page_of_another_origin_gets_nothing_from_any_route(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        for origin in (EVIL, "null", "http://127.0.0.1:1"):
            found = await statuses(client, table(), headers={"Origin": origin})
            assert not_in(found, 403) == {}, origin
        found = await statuses(client, table(), headers={"Sec-Fetch-Site": "cross-site"})
        assert not_in(found, 403) == {}


async def test_every_route_but_the_public_ones_asks_for_a_credential(tmp_path: Path) -> None:
    public = {f"{row.method} {row.path}" for row, _ in table() if row.role is None}
    assert {"GET /health", "GET /login", "POST /login"} <= public
    async with attacked(tmp_path) as daemon, daemon.stranger() as client:
        for credential in ({}, bearer("wrong"), bearer("tw_0123456789ab_" + "x" * 43)):
            closed = [row for row in table() if row[0].role is not None]
            found = await statuses(client, iter(closed), headers=credential)
            assert not_in(found, 401) == {}, credential
            answer = await client.get("/nowhere", headers=credential)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_required_query_parameter_that_is_missing_gives_400(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        needy = [
            row
            for row in table(session_id)
            if row[0].query is not None and any(each.required for each in msgspec.structs.fields(row[0].query))
        ]
        assert any(row.path.endswith("/services") for row, _ in needy)
        assert not_in(await statuses(owner, iter(needy)), 400) == {}


async def test_an_observer_changes_nothing(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as client:
            above = [row for row in table(session_id) if row[0].role not in (None, Role.OBSERVER)]
            found = await statuses(client, iter(above))
            assert not_in(found, 403) == {}
            changing = {f"{row.method} {row.path}" for row, _ in above if row.method != "GET"}
            assert {"POST /session", "POST /session/{session_id}/prompt", "POST /tokens"} <= changing
            assert (await client.get(f"/session/{session_id}/status")).status_code == 200


async def test_a_controller_makes_no_credentials(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        _, secret = await issue(daemon, Role.CONTROLLER)
        async with daemon.client(headers=bearer(secret)) as client:
            owners = [row for row in table() if row[0].role is Role.OWNER]
            assert not_in(await statuses(client, iter(owners)), 403) == {}
            assert {"/tokens", "/login-link"} <= {row.path for row, _ in owners}


async def test_a_token_of_one_session_reaches_no_other(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        own, other = await open_session(owner, tmp_path), await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.CONTROLLER, session_id=SessionId(own))
        async with daemon.client(headers=bearer(secret)) as client:
            foreign = [row for row in table(other) if "{session_id}" in row[0].path]
            assert len(foreign) > 10
            assert not_in(await statuses(client, iter(foreign)), 403) == {}
            assert (await client.get(f"/session/{own}/status")).status_code == 200
            assert (await client.post("/session", json={"cwd": str(tmp_path / "work")})).status_code == 403
            listed = await client.get("/session")
            assert other not in listed.text


async def test_a_stream_of_many_sessions_shows_a_bound_token_its_own_only(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        own, other = await open_session(owner, tmp_path), await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.CONTROLLER, session_id=SessionId(own))
        async with daemon.client(headers=bearer(secret)) as client:
            named = await client.get("/events", params={"sessions": other})
            assert named.status_code == 403


async def test_what_a_page_sends_without_asking_starts_nothing(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        session_id = await open_session(client, tmp_path)
        body = json.dumps({"prompt": [{"type": "text", "text": "hello"}]})
        path = f"/session/{session_id}/prompt"
        for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            simple = await client.post(path, content=body, headers={"Content-Type": media})
            assert simple.status_code == 415, media
            crossed = await client.post(path, content=body, headers={"Content-Type": media, "Origin": EVIL})
            assert crossed.status_code == 403, media
        turns = await client.get(f"/session/{session_id}/status")
        assert turns.json()["hasActivePrompt"] is False


SPELLINGS = (
    *("/session/../tokens", "/session/%2e%2e/tokens", "/session/..%2ftokens"),
    *("/health/../tokens", "/health/%2e%2e/tokens", "/health%2f..%2ftokens", "/login/..;/tokens"),
    *("//tokens", "/health/", "/HEALTH", "/tokens%00", "/tokens/../../../../etc/passwd"),
)


async def test_no_spelling_of_a_path_leads_past_access(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        _, secret = await issue(daemon, Role.OBSERVER)
        for target in SPELLINGS:
            assert await raw(daemon, target, {}) in (400, 401), target
            assert await raw(daemon, target, bearer(secret)) in (400, 403, 404), target


async def test_a_session_id_is_a_name_and_no_path(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        for session_id in ("../../escape", "a/b", "..", "", "x" * 4096, "nul\u0000"):
            wanted = {"cwd": str(tmp_path / "work"), "sessionId": session_id}
            assert (await client.post("/session", json=wanted)).status_code == 400, session_id


async def test_a_session_works_inside_the_allowed_directories_only(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        (tmp_path / "work" / "escape").symlink_to("/etc")
        (tmp_path / "work" / "up").symlink_to("../..")
        outside = ["/", "/etc", f"{tmp_path}/../..", f"{tmp_path}/work/escape", f"{tmp_path}/work/up"]
        for cwd in outside:
            answer = await client.post("/session", json={"cwd": cwd})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), cwd
        for cwd in ("work", "./work", f"{tmp_path}/missing"):
            assert (await client.post("/session", json={"cwd": cwd})).status_code == 400, cwd
        session_id = await open_session(client, tmp_path)
        forked = await client.post(f"/session/{session_id}/fork", json={"cwd": "/etc"})
        assert forked.status_code == 403


async def test_a_cursor_of_one_session_shows_nothing_of_it_in_another(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        first, second = await open_session(client, tmp_path), await open_session(client, tmp_path)
        prompt = {"prompt": [{"type": "text", "text": "a secret of the first session"}]}
        accepted = await client.post(f"/session/{first}/prompt", json=prompt, headers={"Prefer": "wait=20"})
        assert accepted.status_code in (200, 202)
        async with client.stream("GET", f"/session/{first}/events") as stream:
            epoch = stream.headers["turnwire-epoch"]
        cursor = {"Last-Event-ID": "1", "Turnwire-Epoch": epoch}
        seen: list[str] = []
        async with client.stream("GET", f"/session/{second}/events", headers=cursor) as stream:
            async for line in events_of(stream.aiter_lines()):
                seen.append(line)
                if '"replay_complete"' in line or '"state_resync_required"' in line:
                    break
        assert "secret of the first" not in "".join(seen)
        assert first not in "".join(seen)
        assert any('"state_resync_required"' in line for line in seen)
