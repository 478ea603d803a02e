"""A disk that rejects credentials: no login is granted or restored by it, and every caller gets an error."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.patience import SOON_S
from tests.security.full_disk import FullDisk
from tests.security.intruding import attacked, bearer, issue, link_of

from turnwire.server.access.login import PAGE_KEY
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


async def test_a_token_that_cannot_be_written_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        disk = FullDisk(monkeypatch, overwrites=True)
        refused = await client.post("/tokens", json={"name": "ci", "role": "observer"})
        assert (refused.status_code, refused.json()["code"]) == (507, "credentials_not_stored")
        assert "retry-after" in refused.headers
        assert (await client.get("/tokens")).json() == {"tokens": []}
        disk.make_room()
        assert (await client.post("/tokens", json={"name": "ci", "role": "observer"})).status_code == 201


@pytest.mark.parametrize("overwrites", [True, False], ids=["overwritten", "removed"])
async def test_a_revoked_token_does_not_come_back_with_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrites: bool
) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        token_id, secret = await issue(daemon, Role.OWNER)
        FullDisk(monkeypatch, overwrites=overwrites)
        told = await client.delete(f"/tokens/{token_id}")
        assert told.status_code == (204 if overwrites else 507)
        assert (await client.get("/capabilities", headers=bearer(secret))).status_code == 401
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        assert (await client.get("/capabilities", headers=bearer(secret))).status_code == 401


async def test_what_the_disk_did_not_take_is_written_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / "tokens.json"
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        token_id, secret = await issue(daemon, Role.OBSERVER)
        _, other = await issue(daemon, Role.OBSERVER)
        disk = FullDisk(monkeypatch, overwrites=False)
        told = await client.delete(f"/tokens/{token_id}")
        assert (told.status_code, told.json()["code"]) == (507, "credentials_not_stored")
        again = await client.delete(f"/tokens/{token_id}")
        assert again.status_code == 507
        disk.make_room()
        with anyio.fail_after(SOON_S):
            while not path.exists():  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert (await client.delete(f"/tokens/{token_id}")).status_code == 404
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        assert (await client.get("/capabilities", headers=bearer(secret))).status_code == 401
        assert (await client.get("/capabilities", headers=bearer(other))).status_code == 200


async def test_a_login_that_cannot_be_written_leaves_its_link_good_and_one_that_was_left_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = {"Host": "127.0.0.1:4170"}
    own = {"Origin": "http://127.0.0.1:4170"}
    async with attacked(tmp_path) as daemon, daemon.stranger(headers=host) as browser:
        code = link_of(await browser.post("/login-link", headers=bearer(daemon.token))).fragment
        disk = FullDisk(monkeypatch, overwrites=False)
        assert (await browser.post("/login", json={"code": code})).status_code == 507
        disk.make_room()
        opened = await browser.post("/login", json={"code": code})
        assert opened.status_code == 204
        cookie = {"Cookie": opened.headers["set-cookie"].split(";")[0], PAGE_KEY: opened.headers[PAGE_KEY]}
        assert (await browser.get("/capabilities", headers=cookie)).status_code == 200
        FullDisk(monkeypatch, overwrites=False)
        assert (await browser.post("/logout", headers=cookie | own)).status_code == 507
        assert (await browser.get("/capabilities", headers=cookie)).status_code == 401
    async with attacked(tmp_path) as daemon, daemon.stranger(headers=host) as browser:
        assert (await browser.get("/capabilities", headers=cookie)).status_code == 401
