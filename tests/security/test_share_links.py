"""A share link: others watch one session by it, and do nothing else, until it expires or is revoked."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from tests.patience import SOON_S
from tests.security.intruding import attacked, bearer, issue, link_of, log_in, open_session, statuses, table
from tests.support.daemons import Running

from turnwire.limits import Limits
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

SHORT_S = 1.0
"""Lifetime of a link that expires in a test."""
FEW = Limits(failed_logins=3, request_rate=100_000)


class Shared(NamedTuple):
    """A session with a share link, and a browser that has opened it."""

    daemon: Running
    owner: httpx.AsyncClient
    browser: httpx.AsyncClient
    session_id: str
    token_id: str
    code: str
    expires_at: int

    async def open(self, browser: httpx.AsyncClient) -> httpx.Response:
        return await browser.post("/login", json={"code": self.code}, headers={"Origin": self.daemon.url})

    async def status(self) -> int:
        return (await self.browser.get(f"/session/{self.session_id}")).status_code

    async def revoke(self) -> int:
        path = f"/session/{self.session_id}/shares/{self.token_id}"
        return (await self.owner.delete(path)).status_code


@asynccontextmanager
async def shared(tmp_path: Path, **wanted: Any) -> AsyncGenerator[Shared]:
    async with attacked(tmp_path) as daemon, daemon.client() as owner, daemon.stranger() as browser:
        session_id = await open_session(owner, tmp_path)
        made = await owner.post(f"/session/{session_id}/share", json=wanted)
        assert made.status_code == 201, made.text
        body = made.json()
        link = link_of(made)
        assert (f"{link.scheme}://{link.netloc}", link.path, link.query) == (daemon.url, "/login", "")
        found = Shared(daemon, owner, browser, session_id, body["tokenId"], link.fragment, body["expiresAt"])
        assert (await found.open(browser)).status_code == 204
        assert await found.status() == 200
        yield found


async def expired(link: Shared) -> None:
    with anyio.fail_after(SOON_S):
        while await link.daemon.daemon.tokens.find(link.token_id) is not None:  # noqa: ASYNC110 time passes by itself
            await anyio.sleep(0.01)


async def test_a_share_link_changes_nothing(tmp_path: Path) -> None:
    async with shared(tmp_path) as link:
        above = [row for row in table(link.session_id) if row[0].role not in (None, Role.OBSERVER)]
        found = await statuses(link.browser, iter(above), headers={"Origin": link.daemon.url})
        assert {name: status for name, status in found.items() if status != 403} == {}
        assert {"POST /session/{session_id}/prompt", "POST /session/{session_id}/share", "POST /tokens"} <= set(
            found
        )


async def test_a_share_link_shows_one_session_and_nothing_of_others(tmp_path: Path) -> None:
    async with shared(tmp_path) as link:
        other = await open_session(link.owner, tmp_path)
        listed = (await link.browser.get("/session")).json()["sessions"]
        assert [each["sessionId"] for each in listed] == [link.session_id]
        foreign = [row for row in table(other) if "{session_id}" in row[0].path]
        found = await statuses(link.browser, iter(foreign), headers={"Origin": link.daemon.url})
        assert {name: status for name, status in found.items() if status != 403} == {}
        # One that does not exist is rejected with the same message.
        answers = [await link.browser.get(f"/session/{each}") for each in (other, "s_none")]
        assert answers[0].json() == answers[1].json()
        assert (await link.browser.get("/events", params={"session": other})).status_code == 403
        caller = (await link.browser.get("/capabilities")).json()["caller"]
        assert caller == {"name": "share", "role": "observer", "sessionId": link.session_id}


async def test_a_revoked_share_link_ends_what_runs_by_it_and_opens_no_more(tmp_path: Path) -> None:
    async with shared(tmp_path) as link, link.daemon.stranger() as second:
        assert (await link.open(second)).status_code == 204
        async with link.browser.stream("GET", f"/session/{link.session_id}/events") as stream:
            assert stream.status_code == 200
            assert await link.revoke() == 204
            with anyio.fail_after(SOON_S):
                async for _ in stream.aiter_raw():
                    pass
        assert await link.status() == 401
        assert (await second.get(f"/session/{link.session_id}")).status_code == 401
        again = await link.open(second)
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)
        assert await link.revoke() == 404
        assert (await link.owner.get(f"/session/{link.session_id}/shares")).json() == {"shares": []}


async def test_an_expired_share_link_opens_no_more_and_its_cookie_is_nothing(tmp_path: Path) -> None:
    async with shared(tmp_path, expiresInS=SHORT_S) as link:
        kept = {"Cookie": "; ".join(f"{name}={value}" for name, value in link.browser.cookies.items())}
        await expired(link)
        async with link.daemon.stranger() as stranger:
            assert (await stranger.get(f"/session/{link.session_id}", headers=kept)).status_code == 401
            assert (await link.open(stranger)).status_code == 401
            assert dict(stranger.cookies) == {}


async def test_guessed_codes_open_nothing_and_are_slowed_down(tmp_path: Path) -> None:
    async with attacked(tmp_path, limits=FEW) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        made = await owner.post(f"/session/{session_id}/share")
        code = link_of(made).fragment
        token_id, own = made.json()["tokenId"], code.split("_", 2)[2]
        guesses = [f"tw_{token_id}_{own[:-1]}", f"tw_{token_id}_", own, token_id, f"tw_{token_id}_{own.swapcase()}"]
        async with daemon.stranger() as stranger:
            answers = [await stranger.post("/login", json={"code": each}) for each in guesses]
            assert [each.status_code for each in answers] == [401, 401, 401, 429, 429]
            assert dict(stranger.cookies) == {}
            # A user with the link is not locked out by others without it.
            assert (await stranger.post("/login", json={"code": code})).status_code == 204


async def test_a_share_link_passes_for_no_other_credential(tmp_path: Path) -> None:
    async with shared(tmp_path) as link, link.daemon.stranger() as stranger:
        path = f"/session/{link.session_id}"
        assert (await stranger.get(path, headers=bearer(link.code))).status_code == 401
        assert (await stranger.get(path, params={"code": link.code})).status_code == 400


async def test_the_code_of_a_share_link_rests_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with shared(tmp_path) as link:
        own = link.code.split("_", 2)[2]
        listed = await link.owner.get(f"/session/{link.session_id}/shares")
        [shown] = listed.json()["shares"]
        assert shown.keys() == {"tokenId", "createdAt", "expiresAt"}
        tokens = (await link.owner.get("/tokens")).text
        events = (await link.owner.get(f"/session/{link.session_id}/export")).text
        kept = (tmp_path / "data" / "tokens.json").read_text()
        assert link.token_id in tokens
        for each in (listed.text, tokens, events, kept, caplog.text):
            assert own not in each


async def test_what_a_token_granted_ends_with_it_however_far_away(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        token_id, secret = await issue(daemon, Role.OWNER)
        async with daemon.stranger() as first, daemon.stranger() as second, daemon.stranger() as watcher:
            own = {"Origin": daemon.url}
            assert (await log_in(first, secret)).status_code == 204
            further = link_of(await first.post("/login-link", headers=own))
            assert (await second.post("/login", json={"code": further.fragment}, headers=own)).status_code == 204
            share = link_of(await second.post(f"/session/{session_id}/share", headers=own))
            assert (await watcher.post("/login", json={"code": share.fragment}, headers=own)).status_code == 204
            browsers = [first, second, watcher]
            assert [(await each.get(f"/session/{session_id}")).status_code for each in browsers] == [200] * 3
            await daemon.daemon.tokens.revoke(token_id)
            assert [(await each.get(f"/session/{session_id}")).status_code for each in browsers] == [401] * 3


async def test_a_share_link_outlives_the_login_that_made_it_and_its_own_logout(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id, own = await open_session(owner, tmp_path), {"Origin": daemon.url}
        async with daemon.stranger() as page, daemon.stranger() as one, daemon.stranger() as two:
            await log_in(page, daemon.token)
            code = link_of(await page.post(f"/session/{session_id}/share", headers=own)).fragment
            # A user who opens their own link retains their identity.
            assert "set-cookie" not in (await page.post("/login", json={"code": code}, headers=own)).headers
            assert (await page.get("/tokens")).status_code == 200
            assert (await page.post("/logout", headers=own)).status_code == 204
            for each in (one, two):
                assert (await each.post("/login", json={"code": code}, headers=own)).status_code == 204
            assert (await one.post("/logout", headers=own)).status_code == 204
            assert (await one.get(f"/session/{session_id}")).status_code == 401
            assert (await two.get(f"/session/{session_id}")).status_code == 200


async def test_a_share_link_expires_by_itself_and_with_the_token_of_its_maker(tmp_path: Path) -> None:
    async with shared(tmp_path) as link:
        now = link.daemon.daemon.clock.now_ms()
        assert 0 < link.expires_at - now <= 86_400_000
        [cookie] = (await link.open(link.browser)).headers.get_list("set-cookie")
        age = int(cookie.partition("Max-Age=")[2].partition(";")[0])
        assert 86_000 < age <= 86_400
        _, secret = await issue(link.daemon, Role.OWNER, expires_in_s=60)
        path = f"/session/{link.session_id}/share"
        made = await link.owner.post(path, json={"expiresInS": 3600}, headers=bearer(secret))
        assert made.json()["expiresAt"] <= now + 61_000


@pytest.mark.parametrize("wanted", [{"expiresInS": 0}, {"expiresInS": 31 * 86_400}, {"expiresInS": "1d"}])
async def test_a_share_link_that_makes_no_sense_is_refused(tmp_path: Path, wanted: dict[str, Any]) -> None:
    async with shared(tmp_path) as link:
        assert (await link.owner.post(f"/session/{link.session_id}/share", json=wanted)).status_code == 400
        assert (await link.owner.post("/session/s_none/share")).status_code == 404
        assert (await link.owner.get("/session/s_none/shares")).status_code == 404
        assert (await link.owner.delete(f"/session/s_none/shares/{link.token_id}")).status_code == 404
        assert await link.status() == 200


async def test_a_daemon_without_credentials_shares_nothing(tmp_path: Path) -> None:
    async with attacked(tmp_path, no_auth=True, token=None) as daemon, daemon.stranger() as client:
        session_id = await open_session(client, tmp_path)
        assert (await client.post(f"/session/{session_id}/share")).status_code == 403


async def test_the_share_links_of_a_session_end_when_its_log_is_removed(tmp_path: Path) -> None:
    async with shared(tmp_path) as link:
        gone = await link.owner.delete(f"/session/{link.session_id}", params={"purge": "true"})
        assert gone.status_code == 204
        assert await link.status() == 401
