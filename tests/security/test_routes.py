"""A daemon is closed by default: every route refuses strangers, other pages, weak tokens and foreign sessions."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from tests.patience import SOON_S
from tests.security.intruding import EVIL, attacked, bearer, events_of, issue, open_session, raw, statuses, table

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.identity import Role

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G13")]

VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


def not_in(found: dict[str, int], *expected: int) -> dict[str, int]:
    return {route: status for route, status in found.items() if status not in expected}


@VERSIONS
@pytest.mark.attack("13.0", "a name of the attacker's is made to resolve to the daemon (rebinding)")
async def test_a_rebound_name_gets_nothing_from_any_route(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
        assert (await client.get("/capabilities")).status_code == 200
        found = await statuses(client, table(), headers={"Host": "rebound.example"})
        assert not_in(found, 403) == {}


@VERSIONS
@pytest.mark.attack("13.0", "a page of another origin calls the routes")
async def test_a_page_of_another_origin_gets_nothing_from_any_route(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
        for origin in (EVIL, "null", "http://127.0.0.1:1"):
            found = await statuses(client, table(), headers={"Origin": origin})
            assert not_in(found, 403) == {}, origin
        found = await statuses(client, table(), headers={"Sec-Fetch-Site": "cross-site"})
        assert not_in(found, 403) == {}


@VERSIONS
@pytest.mark.attack("13.0", "a page of another origin asks to be let in (CORS)")
async def test_no_answer_lets_another_page_read_it(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
        asking = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
        for method, path in (("OPTIONS", "/session"), ("GET", "/capabilities"), ("GET", "/health")):
            answer = await client.request(method, path, headers=asking)
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]


@VERSIONS
@pytest.mark.parametrize("credential", [{}, bearer("wrong"), bearer("tw_0123456789ab_" + "x" * 43)])
@pytest.mark.attack("13.0", "each route is called without a credential, and with a wrong one")
async def test_every_route_but_the_public_ones_asks_for_a_credential(
    tmp_path: Path, http2: bool, credential: dict[str, str]
) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.stranger(headers=credential) as client:
        closed = [row for row in table() if row[0].role is not None]
        found = await statuses(client, iter(closed))
        assert not_in(found, 401) == {}
        public = {f"{row.method} {row.path}" for row, _ in table() if row.role is None}
        assert {"GET /health", "GET /login", "POST /login"} <= public
        answer = await client.get("/nowhere")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@VERSIONS
@pytest.mark.attack("13.0", "an observer calls the routes that change something")
async def test_an_observer_changes_nothing(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client(headers=bearer(secret)) as client:
            above = [row for row in table(session_id) if row[0].role not in (None, Role.OBSERVER)]
            found = await statuses(client, iter(above))
            assert not_in(found, 403) == {}
            changing = {f"{row.method} {row.path}" for row, _ in above if row.method != "GET"}
            assert {"POST /session", "POST /session/{session_id}/prompt", "POST /tokens"} <= changing
            assert (await client.get(f"/session/{session_id}/status")).status_code == 200


@VERSIONS
@pytest.mark.attack("13.0", "a controller makes itself an owner's token")
async def test_a_controller_makes_no_credentials(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon:
        _, secret = await issue(daemon, Role.CONTROLLER)
        async with daemon.client(headers=bearer(secret)) as client:
            owners = [row for row in table() if row[0].role is Role.OWNER]
            assert not_in(await statuses(client, iter(owners)), 403) == {}
            assert {"/tokens", "/login-link"} <= {row.path for row, _ in owners}


@VERSIONS
@pytest.mark.attack("13.0", "a token for one session calls the routes of another")
async def test_a_token_of_one_session_reaches_no_other(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as owner:
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


@VERSIONS
@pytest.mark.attack("13.0", "a token for one session follows another on a stream of many")
async def test_a_stream_of_many_sessions_shows_a_bound_token_its_own_only(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as owner:
        own, other = await open_session(owner, tmp_path), await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.CONTROLLER, session_id=SessionId(own))
        async with daemon.client(headers=bearer(secret)) as client:
            named = await client.get("/events", params={"sessions": other})
            assert named.status_code == 403


@VERSIONS
@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.attack("13.0", "a page sends a form or plain text, which browsers let it do (CSRF)")
async def test_what_a_page_sends_without_asking_starts_nothing(tmp_path: Path, http2: bool, media: str) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
        session_id = await open_session(client, tmp_path)
        body = json.dumps({"prompt": [{"type": "text", "text": "hello"}]})
        path = f"/session/{session_id}/prompt"
        simple = await client.post(path, content=body, headers={"Content-Type": media})
        assert simple.status_code == 415
        crossed = await client.post(path, content=body, headers={"Content-Type": media, "Origin": EVIL})
        assert crossed.status_code == 403
        turns = await client.get(f"/session/{session_id}/status")
        assert turns.json()["hasActivePrompt"] is False


@VERSIONS
@pytest.mark.parametrize(
    "target",
    [
        "/session/../tokens",
        "/session/%2e%2e/tokens",
        "/session/..%2ftokens",
        "/health/../tokens",
        "/health/%2e%2e/tokens",
        "/health%2f..%2ftokens",
        "/login/..;/tokens",
        "//tokens",
        "/health/",
        "/HEALTH",
        "/tokens%00",
        "/tokens/../../../../etc/passwd",
    ],
)
@pytest.mark.attack("13.0", "a path is spelt so that another route is met than was checked")
async def test_no_spelling_of_a_path_leads_past_access(tmp_path: Path, http2: bool, target: str) -> None:
    async with attacked(tmp_path, http2=http2) as daemon:
        assert await raw(daemon, target, {}) in (400, 401)
        _, secret = await issue(daemon, Role.OBSERVER)
        assert await raw(daemon, target, bearer(secret)) in (400, 403, 404)


@pytest.mark.attack("13.0", "a request has no host, or two")
async def test_a_request_without_a_host_or_with_two_is_malformed(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        assert await raw(daemon, "/health", {"Host": ""}) == 400
        assert await raw(daemon, "/health", {"host": "localhost"}) == 400


@VERSIONS
@pytest.mark.parametrize("session_id", ["../../escape", "a/b", "..", "", "x" * 4096, "nul\u0000"])
@pytest.mark.attack("13.0", "a session id is a path")
async def test_a_session_id_is_a_name_and_no_path(tmp_path: Path, http2: bool, session_id: str) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
        wanted = {"cwd": str(tmp_path / "work"), "sessionId": session_id}
        assert (await client.post("/session", json=wanted)).status_code == 400


@VERSIONS
@pytest.mark.attack("13.0", "a session is made outside the roots, by a path or a link")
async def test_a_session_works_inside_the_allowed_directories_only(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
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


@VERSIONS
@pytest.mark.attack("13.0", "a cursor of one session is used at another")
async def test_a_cursor_of_one_session_shows_nothing_of_it_in_another(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as client:
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


@VERSIONS
@pytest.mark.parametrize("name", ["token", "access_token"])
@pytest.mark.attack("13.0", "a token in a URL is found in a log")
async def test_a_token_in_the_url_is_refused_with_what_to_do(tmp_path: Path, http2: bool, name: str) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.stranger() as client:
        answer = await client.get("/capabilities", params={name: daemon.token})
        assert answer.status_code == 400
        assert "Authorization" in answer.json()["detail"]
        assert daemon.token not in answer.text


@VERSIONS
@pytest.mark.attack("13.1", "an event stream is read beyond the end of its token")
async def test_revoking_a_token_cuts_its_open_stream_within_a_second(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        token_id, secret = await issue(daemon, Role.OBSERVER)
        async with (
            daemon.client(headers=bearer(secret)) as client,
            client.stream("GET", f"/session/{session_id}/events") as stream,
        ):
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            await anext(lines)
            assert (await owner.delete(f"/tokens/{token_id}")).status_code == 204
            with anyio.fail_after(SOON_S):
                assert [line async for line in events_of(lines)] == []
            assert (await client.get(f"/session/{session_id}/status")).status_code == 401


@VERSIONS
@pytest.mark.attack("13.1", "an event stream is read beyond the end of its token")
async def test_a_token_that_expires_cuts_its_open_stream_within_a_second(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        lifetime_s = 1.0
        wanted = {"name": "short", "role": "observer", "expiresInS": lifetime_s}
        secret = (await owner.post("/tokens", json=wanted)).json()["token"]
        async with (
            daemon.client(headers=bearer(secret)) as client,
            client.stream("GET", f"/session/{session_id}/events") as stream,
        ):
            assert stream.status_code == 200
            with anyio.fail_after(lifetime_s + 1):
                assert [line async for line in events_of(stream.aiter_lines())] == []


@VERSIONS
@pytest.mark.attack("13.0", "tokens are guessed")
async def test_wrong_credentials_are_slowed_down(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2, limits=Limits(failed_logins=2)) as daemon:
        async with daemon.stranger(headers=bearer("wrong")) as client:
            answers = [await client.get("/capabilities") for _ in range(3)]
        assert [each.status_code for each in answers] == [401, 401, 429]
        assert int(answers[-1].headers["retry-after"]) > 0
