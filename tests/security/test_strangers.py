"""Strangers lock nobody out: what is wrong slows the address that it comes from, and nothing that is right."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from tests.security.intruding import attacked, bearer, issue, link_of
from tests.support.nginx import nginx_before

from turnwire.limits import Limits
from turnwire.server.access.identity import Role
from turnwire.testing.plugin import find_tool

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G13")]

VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
FEW = Limits(failed_logins=2, request_rate=100_000)
PASSED_ON = "proxy_set_header Host $proxy_host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"


async def wrong(client: httpx.AsyncClient, **headers: str) -> int:
    return (await client.get("/capabilities", headers=bearer("wrong") | headers)).status_code


@VERSIONS
@pytest.mark.attack("13.7", "wrong tokens are sent until the owner's address is locked out")
async def test_wrong_tokens_keep_no_right_one_out(tmp_path: Path, http2: bool) -> None:
    async with attacked(tmp_path, http2=http2, limits=FEW) as daemon, daemon.client() as client:
        _, made = await issue(daemon, Role.OBSERVER)
        assert [await wrong(client) for _ in range(4)] == [401, 401, 429, 429]
        for credential in (daemon.token, made):
            assert (await client.get("/capabilities", headers=bearer(credential))).status_code == 200
        code = link_of(await client.post("/login-link")).fragment
        assert (await client.post("/login", json={"code": "wrong"})).status_code == 429
        assert (await client.post("/login", json={"code": code})).status_code == 204


@VERSIONS
@pytest.mark.attack("13.7", "the public routes are flooded until nobody at the address can log in")
async def test_a_flood_of_public_requests_keeps_no_valid_code_out(tmp_path: Path, http2: bool) -> None:
    limits = Limits(request_rate=1.0)
    async with attacked(tmp_path, http2=http2, limits=limits) as daemon, daemon.stranger() as stranger:
        flood = [(await stranger.get("/health")).status_code for _ in range(5)]
        assert flood[-1] == 429
        async with daemon.client() as owner:
            code = link_of(await owner.post("/login-link")).fragment
        assert (await stranger.post("/login", json={"code": code})).status_code == 204


def client_at(address: str, url: str) -> httpx.AsyncClient:
    """A client whose connections come from this address of the loopback network."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(base_url=url, transport=transport)


@pytest.mark.attack("13.7", "behind a proxy, wrong tokens of one client lock out the others")
async def test_behind_nginx_each_client_is_slowed_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    find_tool("nginx")
    caplog.set_level(logging.INFO, "turnwire.audit")
    async with (
        attacked(tmp_path, limits=FEW, trusted_proxy=("127.0.0.1",)) as daemon,
        nginx_before(daemon.url, tmp_path / "nginx", PASSED_ON) as nginx,
        client_at("127.0.0.2", nginx.url) as stranger,
        client_at("127.0.0.3", nginx.url) as other,
    ):
        assert [await wrong(stranger) for _ in range(3)] == [401, 401, 429]
        # It cannot pass itself off as another: what it says of itself is to the left of what nginx saw.
        assert await wrong(stranger, **{"X-Forwarded-For": "198.51.100.1"}) == 429
        assert await wrong(other) == 401
        assert (await stranger.get("/capabilities", headers=bearer(daemon.token))).status_code == 200
    refused = [vars(each) for each in caplog.records if vars(each).get("event") == "credential_refused"]
    assert [each["address"] for each in refused] == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]


@pytest.mark.attack("13.7", "behind a proxy that is not named, wrong tokens of one client lock out the others")
async def test_behind_nginx_that_is_not_trusted_a_right_credential_still_passes(tmp_path: Path) -> None:
    find_tool("nginx")
    async with (
        attacked(tmp_path, limits=FEW) as daemon,
        nginx_before(daemon.url, tmp_path / "nginx", PASSED_ON) as nginx,
        client_at("127.0.0.2", nginx.url) as stranger,
        client_at("127.0.0.3", nginx.url) as owner,
    ):
        assert [await wrong(stranger) for _ in range(3)] == [401, 401, 429]
        assert (await owner.get("/capabilities", headers=bearer(daemon.token))).status_code == 200


@VERSIONS
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.attack("13.7", "a stranger names another address in each request")
async def test_nobody_but_a_trusted_proxy_names_another_address(tmp_path: Path, http2: bool, header: str) -> None:
    value = "198.51.100.{}" if header == "X-Forwarded-For" else "for=198.51.100.{}"
    async with attacked(tmp_path, http2=http2, limits=FEW, trusted_proxy=("10.0.0.0/8",)) as daemon:
        async with daemon.client() as client:
            found = [await wrong(client, **{header: value.format(number)}) for number in range(3)]
        assert found == [401, 401, 429]
