"""Credentials: shown once, stored as hashes, for one user only, and gone when they are revoked."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import anyio
import pytest
from tests.security.full_disk import FullDisk

from turnwire.clock import SystemClock
from turnwire.errors import BadRequest, ConfigError, CredentialsNotStored, LimitExceeded, NotFound
from turnwire.ids import SessionId
from turnwire.server.access import token_file
from turnwire.server.access import tokens as module
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import ANYBODY, OPERATOR_TOKEN_ID, Identity, Kind, Role, Tokens
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

GIVEN = "an-operators-own-token"
A = SessionId("s_a")


def in_memory(given: str | None = GIVEN) -> Tokens:
    clock = ManualClock()
    return Tokens(TokenFile(None, clock), clock, given)


async def test_the_first_start_makes_an_owner_and_later_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, secret = await Tokens.open(TokenFile(path, ManualClock()), ManualClock())
    assert secret is not None
    assert len(secret.split("_", 2)[2]) >= 43
    again, no_secret = await Tokens.open(TokenFile(path, ManualClock()), ManualClock())
    assert no_secret is None
    for each in (tokens, again):
        identity = await each.check(secret)
        assert identity is not None
        assert (identity.name, identity.role) == ("owner", Role.OWNER)


async def test_a_directory_whose_last_owner_was_revoked_gets_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, _ = await Tokens.open(TokenFile(path, ManualClock()), ManualClock())
    await tokens.revoke((await tokens.list())[0].id)
    assert (await Tokens.open(TokenFile(path, ManualClock()), ManualClock()))[1] is not None


async def test_the_file_and_its_directory_are_for_their_owner_alone_and_hold_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "data" / "tokens.json"
    before = os.umask(0)
    try:
        _, secret = await Tokens.open(TokenFile(path, ManualClock()), ManualClock())
    finally:
        os.umask(before)
    assert secret is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert secret.split("_", 2)[2] not in path.read_text()
    assert [each.name for each in path.parent.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
async def test_a_file_that_others_may_read_refuses_to_start_and_says_what_to_do(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    await Tokens.open(TokenFile(path, ManualClock()), ManualClock())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        await Tokens.open(TokenFile(path, ManualClock()), ManualClock())


def test_a_directory_that_others_may_write_refuses_to_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigError, match="chmod 700"):
        TokenFile(tmp_path / "tokens.json", ManualClock())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"tokens":[{}]}'])
async def test_a_damaged_file_refuses_to_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        await Tokens.open(TokenFile(path, ManualClock()), ManualClock())


async def test_token_file_of_another_version_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"version": 2, "tokens": []}))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="another version"):
        await Tokens.open(TokenFile(path, ManualClock()), ManualClock())


async def test_a_directory_that_cannot_be_made_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot"):
        await Tokens.open(TokenFile(tmp_path / "file" / "tokens.json", ManualClock()), ManualClock())


@pytest.mark.parametrize("given", ["", "short", "fifteen-letters", "with a space in it", "with-a-ünusual-letter"])
async def test_a_weak_token_of_the_operator_refuses_to_start(given: str) -> None:
    with pytest.raises(ConfigError):
        await Tokens.open(TokenFile(None, ManualClock()), ManualClock(), given)


async def test_the_operators_token_is_an_owner_and_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, secret = await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN)
    assert secret is None
    assert not path.exists()
    assert await tokens.check(GIVEN) == Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)
    assert await tokens.list() == ()


async def test_a_token_is_who_it_was_made_for() -> None:
    tokens = in_memory()
    record, secret = await tokens.issue("ci", Role.OBSERVER, A)
    assert secret.startswith(f"tw_{record.id}_")
    assert await tokens.check(secret) == Identity("ci", Role.OBSERVER, A, record.id)
    assert await tokens.list() == (record,)


async def test_nothing_but_the_whole_secret_is_valid() -> None:
    tokens = in_memory()
    record, secret = await tokens.issue("ci", Role.OBSERVER)
    _, other = await tokens.issue("other", Role.OBSERVER)
    wrong = [
        "",
        "tw_",
        f"tw_{record.id}_",
        record.digest,
        f"tw_{record.id}_{record.digest}",
        secret[:-1],
        secret + "x",
        secret.upper(),
        f"tw_{record.id}_{other.split('_', 2)[2]}",
        secret.split("_", 2)[2],
        GIVEN[:-1],
        "\udcff",
        "tw_000000000000_" + secret.split("_", 2)[2],
    ]
    assert [each for each in wrong if await tokens.check(each) is not None] == []


async def test_a_login_is_no_token_and_a_token_is_no_login() -> None:
    tokens = in_memory()
    _, login = await tokens.issue("page", Role.OWNER, kind="login")
    _, token = await tokens.issue("ci", Role.OWNER)
    assert await tokens.check(login) is None
    assert await tokens.check(token, "login") is None
    assert await tokens.check(GIVEN, "login") is None
    assert await tokens.check(login, "login") is not None


async def test_a_token_is_valid_until_it_expires_and_is_then_forgotten() -> None:
    clock = ManualClock()
    tokens, _ = await Tokens.open(TokenFile(None, clock), clock, GIVEN)
    _, secret = await tokens.issue("ci", Role.OBSERVER, expires_in_s=10)
    clock.advance(9.9)
    assert await tokens.check(secret) is not None
    clock.advance(0.1)
    assert await tokens.check(secret) is None
    assert await tokens.list() == ()


async def test_a_revoked_token_is_not_valid_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, _ = await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN)
    record, secret = await tokens.issue("ci", Role.CONTROLLER)
    await tokens.revoke(record.id)
    assert await tokens.check(secret) is None
    assert await (await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN))[0].check(secret) is None
    with pytest.raises(NotFound):
        await tokens.revoke(record.id)


async def test_a_revoked_token_takes_its_logins_along() -> None:
    tokens = in_memory()
    record, _ = await tokens.issue("owner", Role.OWNER)
    _, login = await tokens.issue("page", Role.OWNER, kind="login", granted_by=record.id)
    other, other_login = await tokens.issue("page", Role.OWNER, kind="login")
    await tokens.revoke(record.id)
    assert await tokens.check(login, "login") is None
    assert await tokens.check(other_login, "login") is not None
    assert await tokens.list() == (other,)


async def test_a_full_disk_makes_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, _ = await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN)
    record, _ = await tokens.issue("ci", Role.OBSERVER)
    FullDisk(monkeypatch, overwrites=True)
    with pytest.raises(CredentialsNotStored) as refused:
        await tokens.issue("other", Role.OBSERVER)
    assert (refused.value.http_status, refused.value.context) == (507, {"why": "ENOSPC"})
    assert await tokens.list() == (record,)


@pytest.mark.parametrize("kind", ["token", "login"])
async def test_a_full_disk_still_forgets_who_was_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, _ = await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN)
    record, secret = await tokens.issue("ci", Role.OBSERVER, kind=kind)
    kept, other = await tokens.issue("other", Role.OBSERVER)
    size = path.stat().st_size
    FullDisk(monkeypatch, overwrites=True)
    await tokens.revoke(record.id)
    assert path.stat().st_size == size
    again, _ = await Tokens.open(TokenFile(path, ManualClock()), ManualClock(), GIVEN)
    assert await again.check(secret, kind) is None
    assert await again.check(other) is not None
    assert await again.list() == (kept,)


async def test_a_disk_that_takes_nothing_brings_nobody_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "data" / "tokens.json", ManualClock()
    tokens, _ = await Tokens.open(TokenFile(path, clock), clock, GIVEN)
    record, secret = await tokens.issue("ci", Role.OBSERVER)
    _, other = await tokens.issue("other", Role.OBSERVER)
    disk = FullDisk(monkeypatch, overwrites=False)
    with pytest.raises(CredentialsNotStored, match="has ended"):
        await tokens.revoke(record.id)
    assert await tokens.check(secret) is None
    # A repeated call raises the same error, until it is written.
    with pytest.raises(CredentialsNotStored):
        await tokens.revoke(record.id)
    assert await (await Tokens.open(TokenFile(path, clock), clock, GIVEN))[0].check(secret) is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tokens.run)
        for _ in range(3):
            await clock.wait_for_sleepers(2)
            clock.advance(token_file.RETRY_S)
        await clock.wait_for_sleepers(2)
        disk.make_room()
        clock.advance(token_file.RETRY_S)
        with anyio.fail_after(WAIT_S):
            while not path.exists():
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    again, _ = await Tokens.open(TokenFile(path, clock), clock, GIVEN)
    assert await again.check(secret) is None
    assert await again.check(other) is not None
    with pytest.raises(NotFound):
        await tokens.revoke(record.id)
    told = [each for each in caplog.records if getattr(each, "event", "") == "credentials_not_stored"]
    assert len(told) == 1


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines", "nul\0", "tab\t"])
async def test_a_name_that_would_spoil_a_log_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="name"):
        await in_memory().issue(name, Role.OBSERVER)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e10])
async def test_a_lifetime_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(BadRequest, match="lifetime"):
        await in_memory().issue("ci", Role.OBSERVER, expires_in_s=seconds)


async def test_an_owner_is_not_bound_to_a_session() -> None:
    with pytest.raises(BadRequest, match="owner"):
        await in_memory().issue("ci", Role.OWNER, A)


async def test_the_number_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 2)
    tokens = in_memory()
    await tokens.issue("one", Role.OBSERVER)
    await tokens.issue("two", Role.OBSERVER)
    with pytest.raises(LimitExceeded, match="revoke"):
        await tokens.issue("three", Role.OBSERVER)


async def identity_of(tokens: Tokens, secret: str) -> Identity:
    identity = await tokens.check(secret)
    assert identity is not None
    return identity


async def test_revoking_cuts_every_stream_of_the_token_and_no_other() -> None:
    tokens = in_memory()
    record, secret = await tokens.issue("ci", Role.OBSERVER)
    _, other = await tokens.issue("other", Role.OBSERVER)
    cut: list[str] = []
    all_run = anyio.Event()
    running = 0

    async def stream(name: str, identity: Identity) -> None:
        nonlocal running
        with tokens.closing(identity) as scope:
            running += 1
            if running == 3:
                all_run.set()
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        cut.append(name)
        if len(cut) == 2:
            tasks.cancel_scope.cancel()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, "one", await identity_of(tokens, secret))
            tasks.start_soon(stream, "two", await identity_of(tokens, secret))
            tasks.start_soon(stream, "other", await identity_of(tokens, other))
            await all_run.wait()
            await tokens.revoke(record.id)
    assert sorted(cut) == ["one", "two"]


async def test_a_stream_is_cut_when_its_token_expires() -> None:
    tokens, _ = await Tokens.open(TokenFile(None, SystemClock()), SystemClock(), GIVEN)
    _, secret = await tokens.issue("ci", Role.OBSERVER, expires_in_s=0.05)
    with anyio.fail_after(WAIT_S), tokens.closing(await identity_of(tokens, secret)) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_stream_of_a_token_that_has_just_gone_does_not_run() -> None:
    tokens = in_memory()
    record, secret = await tokens.issue("ci", Role.OBSERVER)
    identity = await identity_of(tokens, secret)
    await tokens.revoke(record.id)
    with anyio.fail_after(WAIT_S), tokens.closing(identity) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("identity", [ANYBODY, Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)])
async def test_a_stream_without_a_stored_token_runs_to_its_own_end(identity: Identity) -> None:
    with in_memory().closing(identity) as scope:
        await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


async def test_a_failure_inside_a_stream_is_told_as_it_is() -> None:
    tokens = in_memory()
    _, secret = await tokens.issue("ci", Role.OBSERVER)
    with pytest.raises(KeyError), tokens.closing(await identity_of(tokens, secret)):
        raise KeyError
