"""Secrets do not leak: a link works once, only the browser has its cookie, and no log contains either."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from tests.security.intruding import EVIL, attacked, bearer, link_of, log_in, open_session

from turnwire.server.access.login import PAGE_KEY
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


CLIENT_LOGGERS = ("httpx", "httpcore")
"""Loggers of the client, which runs in this process too."""


async def test_a_token_is_made_listed_without_its_secret_and_revoked(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        made = await client.post("/tokens", json={"name": "ci", "role": "observer", "expiresInS": 60})
        assert made.status_code == 201
        token_id, secret = made.json()["id"], made.json()["token"]
        listed = await client.get("/tokens")
        [shown] = listed.json()["tokens"]
        assert shown == {name: value for name, value in made.json().items() if name != "token"}
        assert secret.split("_", 2)[2] not in listed.text
        assert (await client.get("/capabilities", headers=bearer(secret))).status_code == 200
        assert (await client.delete(f"/tokens/{token_id}")).status_code == 204
        assert (await client.get("/capabilities", headers=bearer(secret))).status_code == 401
        assert (await client.delete(f"/tokens/{token_id}")).status_code == 404


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": "", "role": "observer"},
        {"name": "ci", "role": "king"},
        {"name": "ci"},
        {"name": "ci", "role": "observer", "expiresInS": 0},
        {"name": "ci", "role": "owner", "sessionId": "s_a"},
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(tmp_path: Path, wanted: dict[str, object]) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        assert (await client.post("/tokens", json=wanted)).status_code == 400
        assert (await client.get("/tokens")).json() == {"tokens": []}


async def test_a_login_acts_from_its_own_page_only_and_ends_with_a_logout(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.stranger() as browser:
        assert (await log_in(browser, daemon.token)).status_code == 204
        assert (await browser.get("/capabilities")).status_code == 200
        wanted = {"cwd": str(tmp_path / "work")}
        own, other = {"Origin": daemon.url}, {"Origin": EVIL}
        assert (await browser.post("/session", json=wanted, headers=own)).status_code == 200
        assert (await browser.post("/session", json=wanted, headers=other)).status_code == 403
        assert (await browser.post("/session", json=wanted)).status_code == 403
        kept = dict(browser.cookies)
        assert (await browser.post("/logout", headers=own)).status_code == 204
        assert dict(browser.cookies) == {}
        replayed = {"Cookie": "; ".join(f"{name}={value}" for name, value in kept.items())}
        assert (await browser.get("/capabilities", headers=replayed)).status_code == 401


async def test_no_log_and_no_answer_tells_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets: list[str] = []
    texts: list[str] = []

    async def note(answer: httpx.Response) -> None:
        await answer.aread()
        texts.append(answer.text + str(answer.headers.get("location")) + str(answer.headers.get("link")))

    async with attacked(tmp_path) as daemon, daemon.client() as client:
        record, secret = await daemon.daemon.tokens.issue("ci", Role.CONTROLLER)
        fragment = link_of(await client.post("/login-link")).fragment
        secrets += [daemon.token, secret, secret.split("_", 2)[2], record.digest, fragment, "wrong-but-secret"]
        client.event_hooks["response"].append(note)
        login = await client.post("/login", json={"code": fragment}, headers={"Origin": daemon.url})
        secrets += [login.headers["set-cookie"].split(";")[0].split("=")[1], login.headers[PAGE_KEY]]
        session_id = await open_session(client, tmp_path)
        prompt = {"prompt": [{"type": "text", "text": "hello"}]}
        for headers in (bearer(secret), bearer("wrong-but-secret"), {"Cookie": f"turnwire={secret}"}):
            await client.post(f"/session/{session_id}/prompt", json=prompt, headers=headers)
            await client.get("/tokens", headers=headers)
            await client.get("/capabilities", params={"token": secret}, headers=headers)
            await client.post("/login", json={"code": "wrong-but-secret"}, headers=headers)
        await client.delete(f"/tokens/{record.id}")
        assert len(texts) > 10
    told = [
        str(vars(each)) + each.getMessage() for each in caplog.records if not each.name.startswith(CLIENT_LOGGERS)
    ]
    assert any("'event': 'audit'" in each for each in told)
    assert [each for each in told + texts if any(secret in each for secret in secrets)] == []


async def test_a_change_is_audited_with_its_author(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnwire.audit")
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        record, secret = await daemon.daemon.tokens.issue("ci", Role.OBSERVER)
        await client.post("/session", json={}, headers=bearer(secret))
        await client.get("/session", headers=bearer(secret))
    told = [vars(each) for each in caplog.records if vars(each).get("token_id") == record.id]
    assert [(each["who"], each["route"], each["status"]) for each in told] == [("ci", "/session", 403)]
