"""Strangers lock no user out: wrong credentials slow down their source address, and never a valid one."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from tests.security.intruding import attacked, bearer, issue, link_of
from tests.security.slow_request import connect, until_closed
from tests.server.acp.socket_client import open_socket
from tests.support.nginx import nginx_before

from turnwire.limits import Limits
from turnwire.server.access.middleware import LINES_A_MINUTE, LogLimit
from turnwire.server.access.tokens import Role
from turnwire_testing import ManualClock
from turnwire_testing.plugin import find_tool

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

FEW = Limits(failed_logins=2, request_rate=100_000)
PASSED_ON = "proxy_set_header Host $proxy_host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"


async def wrong(client: httpx.AsyncClient, **headers: str) -> int:
    return (await client.get("/capabilities", headers=bearer("wrong") | headers)).status_code


async def test_wrong_tokens_keep_no_right_one_out(tmp_path: Path) -> None:
    async with attacked(tmp_path, limits=FEW) as daemon, daemon.client() as client:
        _, made = await issue(daemon, Role.OBSERVER)
        assert [await wrong(client) for _ in range(4)] == [401, 401, 429, 429]
        for credential in (daemon.token, made):
            assert (await client.get("/capabilities", headers=bearer(credential))).status_code == 200
        code = link_of(await client.post("/login-link")).fragment
        assert (await client.post("/login", json={"code": "wrong"})).status_code == 429
        assert (await client.post("/login", json={"code": code})).status_code == 204


async def test_strangers_write_a_bounded_number_of_audit_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwire.audit")
    async with attacked(tmp_path) as daemon, daemon.stranger() as stranger:
        for _ in range(250):
            await stranger.post("/login", json={"code": "wrong"})
        async with daemon.client() as owner:
            code = link_of(await owner.post("/login-link")).fragment
        assert (await stranger.post("/login", json={"code": code})).status_code == 204
    logins = [each for each in caplog.records if getattr(each, "route", "") == "/login"]
    assert len(logins) <= 2 * LINES_A_MINUTE
    assert logins[-1].__dict__["status"] == 204, "a login is recorded all the same"


def test_lines_that_were_left_out_are_counted() -> None:
    clock = ManualClock()
    limit = LogLimit(clock)
    admitted = [limit.admit() for _ in range(int(LINES_A_MINUTE) + 5)]
    assert admitted == [0] * int(LINES_A_MINUTE) + [None] * 5
    clock.advance(1)
    assert limit.admit() == 5


async def test_requests_that_are_not_http_write_no_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with attacked(tmp_path) as daemon:
        caplog.clear()
        async with await connect(daemon) as peer:
            await peer.send(b"\x16\x03\x01 not http\r\n\r\n")
            assert (await until_closed(peer)).startswith(b"HTTP/1.1 400 ")
        async with open_socket(daemon) as socket:
            await socket.wire.ping()
            socket.wire.transport.write(b"\xff" * 100)
            assert await socket.closed() == 1002
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []


async def test_a_flood_of_public_requests_keeps_no_valid_code_out(tmp_path: Path) -> None:
    limits = Limits(request_rate=1.0)
    async with attacked(tmp_path, limits=limits) as daemon, daemon.stranger() as stranger:
        flood = [(await stranger.get("/health")).status_code for _ in range(5)]
        assert flood[-1] == 429
        async with daemon.client() as owner:
            code = link_of(await owner.post("/login-link")).fragment
        assert (await stranger.post("/login", json={"code": code})).status_code == 204


def client_at(address: str, url: str) -> httpx.AsyncClient:
    """Return a client whose connections come from this address of the loopback network."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(base_url=url, transport=transport)


@pytest.mark.full("needs nginx")
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
        # It cannot forge its address: its own claim is to the left of the one that nginx adds.
        assert await wrong(stranger, **{"X-Forwarded-For": "198.51.100.1"}) == 429
        assert await wrong(other) == 401
        assert (await stranger.get("/capabilities", headers=bearer(daemon.token))).status_code == 200
    refused = [vars(each) for each in caplog.records if vars(each).get("event") == "credential_refused"]
    assert [each["address"] for each in refused] == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]


@pytest.mark.full("needs nginx")
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


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
async def test_nobody_but_a_trusted_proxy_names_another_address(tmp_path: Path, header: str) -> None:
    value = "198.51.100.{}" if header == "X-Forwarded-For" else "for=198.51.100.{}"
    async with attacked(tmp_path, limits=FEW, trusted_proxy=("10.0.0.0/8",)) as daemon:
        async with daemon.client() as client:
            found = [await wrong(client, **{header: value.format(number)}) for number in range(3)]
        assert found == [401, 401, 429]
