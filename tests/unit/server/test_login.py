"""Logging in: a link works once and soon, a login lasts over a restart and ends with its token."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from turnwire.errors import Unauthenticated
from turnwire.ids import SessionId
from turnwire.server.access.login import PAGE, PAGE_HEADERS, LinksInMemory, Login, cookie
from turnwire.server.access.origins import Host
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import ANYBODY, OPERATOR_TOKEN_ID, Identity, Role, Tokens
from turnwire_testing import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

GIVEN = "an-operators-own-token"
BASE = "http://127.0.0.1:4170"


class Rig:
    """A login over tokens in memory or in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.clock = ManualClock()
        self.tokens = Tokens(TokenFile(path, self.clock), self.clock, GIVEN)
        self.login = Login(self.tokens, LinksInMemory(self.clock))

    async def code(self, who: Identity | None = None) -> str:
        link = await self.login.login_link(BASE, who)
        base, _, code = link.partition("#")
        assert base == f"{BASE}/login"
        return code


async def test_a_link_logs_in_once() -> None:
    rig = Rig()
    code = await rig.code()
    identity = await rig.tokens.check(await rig.login.redeem(code), "login")
    assert identity is not None
    assert identity.role is Role.OWNER
    with pytest.raises(Unauthenticated, match="new link"):
        await rig.login.redeem(code)


@pytest.mark.parametrize(
    ("role", "session_id"), [(Role.OWNER, None), (Role.CONTROLLER, None), (Role.OBSERVER, SessionId("s1"))]
)
async def test_token_is_exchanged_for_a_login_with_the_same_rights(
    role: Role, session_id: SessionId | None
) -> None:
    rig = Rig()
    record, token = await rig.tokens.issue("ann", role, session_id, 3600)
    secret = await rig.login.redeem(token)
    identity = await rig.tokens.check(secret, "login")
    assert identity is not None
    assert (identity.name, identity.role, identity.session_id) == ("ann", role, session_id)
    login = await rig.tokens.find(identity.token_id or "")
    assert login is not None
    assert login.expires_at == record.expires_at
    # A login is no token, so it cannot be exchanged again.
    with pytest.raises(Unauthenticated):
        await rig.login.redeem(secret)
    await rig.tokens.revoke(record.id)
    assert await rig.tokens.check(secret, "login") is None


@pytest.mark.parametrize("code", ["", "guess", "\udcff"])
async def test_a_guess_does_not_log_in_and_leaves_the_link_alone(code: str) -> None:
    rig = Rig()
    good = await rig.code()
    with pytest.raises(Unauthenticated):
        await rig.login.redeem(code)
    assert await rig.login.redeem(good)


async def test_a_link_is_good_for_ten_minutes() -> None:
    rig = Rig()
    soon, late = await rig.code(), await rig.code()
    rig.clock.advance(599)
    assert await rig.login.redeem(soon)
    rig.clock.advance(2)
    with pytest.raises(Unauthenticated):
        await rig.login.redeem(late)


async def test_the_oldest_link_is_forgotten_when_too_many_wait() -> None:
    rig = Rig()
    codes = [await rig.code() for _ in range(65)]
    with pytest.raises(Unauthenticated):
        await rig.login.redeem(codes[0])
    assert await rig.login.redeem(codes[1])


async def test_a_login_lasts_over_a_restart_and_thirty_days(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    rig = Rig(path)
    value = await rig.login.redeem(await rig.code())
    again = Rig(path)
    assert await again.tokens.check(value, "login") is not None
    again.clock.advance(30 * 86_400)
    assert await again.tokens.check(value, "login") is None
    assert value.split("_", 2)[2] not in path.read_text()


async def owner(rig: Rig, expires_in_s: float | None = None) -> Identity:
    _, secret = await rig.tokens.issue("laptop", Role.OWNER, expires_in_s=expires_in_s)
    identity = await rig.tokens.check(secret)
    assert identity is not None
    return identity


async def test_a_login_ends_with_the_token_that_asked_for_it() -> None:
    rig = Rig()
    who = await owner(rig)
    value, waiting = await rig.login.redeem(await rig.code(who)), await rig.code(who)
    assert who.token_id is not None
    await rig.tokens.revoke(who.token_id)
    assert await rig.tokens.check(value, "login") is None
    with pytest.raises(Unauthenticated):
        await rig.login.redeem(waiting)


async def test_a_login_expires_no_later_than_the_token_that_asked_for_it() -> None:
    rig = Rig()
    value = await rig.login.redeem(await rig.code(await owner(rig, expires_in_s=60)))
    rig.clock.advance(59)
    assert await rig.tokens.check(value, "login") is not None
    rig.clock.advance(1)
    assert await rig.tokens.check(value, "login") is None


@pytest.mark.parametrize("who", [None, ANYBODY, Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)])
async def test_the_daemon_and_its_operator_log_in_too(who: Identity | None) -> None:
    rig = Rig()
    assert await rig.tokens.check(await rig.login.redeem(await rig.code(who)), "login") is not None


async def test_logging_out_ends_the_login_and_nothing_else() -> None:
    rig = Rig()
    value, other = await rig.login.redeem(await rig.code()), await rig.login.redeem(await rig.code())
    who = await rig.tokens.check(value, "login")
    assert who is not None
    assert await rig.login.leave(who)
    assert await rig.tokens.check(value, "login") is None
    assert await rig.tokens.check(other, "login") is not None


async def test_a_token_does_not_log_out() -> None:
    rig = Rig()
    who = await owner(rig)
    assert not await rig.login.leave(who)
    assert not await rig.login.leave(ANYBODY)
    assert [each.id for each in await rig.tokens.list()] == [who.token_id]


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    plain = cookie(Host("localhost", 4170), "value", is_secure=False)
    assert plain == "turnwire_4170=value; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"
    assert cookie(Host("tw.example", None), "value", is_secure=True).endswith("; Secure")
    assert "Max-Age=0" in cookie(Host("localhost", 4170), "", is_secure=False)


def test_the_page_runs_its_own_script_and_no_other() -> None:
    [script] = re.findall(rb"<script>(.*?)</script>", PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert PAGE_HEADERS["Referrer-Policy"] == "no-referrer"
    assert b"location.hash" in script
    assert b"replaceState" in script
