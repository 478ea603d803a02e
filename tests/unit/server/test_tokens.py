"""Credentials: shown once, kept as hashes, for one user only, and gone when they are revoked."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import anyio
import pytest
from tests.security.full_disk import FullDisk

from turnwire.errors import BadRequest, ConfigError, CredentialsNotStored, LimitExceeded, NotFound
from turnwire.ids import SessionId
from turnwire.runtime.clock import SystemClock
from turnwire.server.access import tokens as module
from turnwire.server.access.identity import ANYBODY, Identity, Role
from turnwire.server.access.tokens import OPERATOR_TOKEN_ID, Kind, Tokens
from turnwire.testing import ManualClock
from turnwire.testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G13")]

GIVEN = "an-operators-own-token"
A = SessionId("s_a")


def in_memory(given: str | None = GIVEN) -> Tokens:
    return Tokens.open(None, ManualClock(), given)[0]


def test_the_first_start_makes_an_owner_and_later_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, secret = Tokens.open(path, ManualClock())
    assert secret is not None
    assert len(secret.split("_", 2)[2]) >= 43
    again, no_secret = Tokens.open(path, ManualClock())
    assert no_secret is None
    for each in (tokens, again):
        identity = each.check(secret)
        assert identity is not None
        assert (identity.name, identity.role) == ("owner", Role.OWNER)


def test_a_directory_whose_last_owner_was_revoked_gets_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, _ = Tokens.open(path, ManualClock())
    tokens.revoke(tokens.list()[0].id)
    assert Tokens.open(path, ManualClock())[1] is not None


def test_the_file_and_its_directory_are_for_their_owner_alone_and_hold_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "data" / "tokens.json"
    before = os.umask(0)
    try:
        _, secret = Tokens.open(path, ManualClock())
    finally:
        os.umask(before)
    assert secret is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert secret.split("_", 2)[2] not in path.read_text()
    assert [each.name for each in path.parent.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
@pytest.mark.attack("13.0", "another user of the machine reads the tokens")
def test_a_file_that_others_may_read_refuses_to_start_and_says_what_to_do(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    Tokens.open(path, ManualClock())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        Tokens.open(path, ManualClock())


def test_a_directory_that_others_may_write_refuses_to_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigError, match="chmod 700"):
        Tokens.open(tmp_path / "tokens.json", ManualClock())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"tokens":[{}]}'])
@pytest.mark.attack("13.0", "the file of the tokens is damaged")
def test_a_damaged_file_refuses_to_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        Tokens.open(path, ManualClock())


def test_a_file_of_a_newer_version_refuses_to_start(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"version": 2, "tokens": []}))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="newer"):
        Tokens.open(path, ManualClock())


def test_a_directory_that_cannot_be_made_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot"):
        Tokens.open(tmp_path / "file" / "tokens.json", ManualClock())


@pytest.mark.parametrize("given", ["", "short", "fifteen-letters", "with a space in it", "with-a-ünusual-letter"])
def test_a_weak_token_of_the_operator_refuses_to_start(given: str) -> None:
    with pytest.raises(ConfigError):
        Tokens.open(None, ManualClock(), given)


def test_the_operators_token_is_an_owner_and_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, secret = Tokens.open(path, ManualClock(), GIVEN)
    assert secret is None
    assert not path.exists()
    assert tokens.check(GIVEN) == Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)
    assert tokens.list() == ()


def test_a_token_is_who_it_was_made_for() -> None:
    tokens = in_memory()
    record, secret = tokens.issue("ci", Role.OBSERVER, A)
    assert secret.startswith(f"tw_{record.id}_")
    assert tokens.check(secret) == Identity("ci", Role.OBSERVER, A, record.id)
    assert tokens.list() == (record,)


def test_nothing_but_the_whole_secret_is_valid() -> None:
    tokens = in_memory()
    record, secret = tokens.issue("ci", Role.OBSERVER)
    _, other = tokens.issue("other", Role.OBSERVER)
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
    assert [each for each in wrong if tokens.check(each) is not None] == []


def test_a_login_is_no_token_and_a_token_is_no_login() -> None:
    tokens = in_memory()
    _, login = tokens.issue("page", Role.OWNER, kind="login")
    _, token = tokens.issue("ci", Role.OWNER)
    assert tokens.check(login) is None
    assert tokens.check(token, "login") is None
    assert tokens.check(GIVEN, "login") is None
    assert tokens.check(login, "login") is not None


def test_a_token_is_valid_until_it_expires_and_is_then_forgotten() -> None:
    clock = ManualClock()
    tokens, _ = Tokens.open(None, clock, GIVEN)
    _, secret = tokens.issue("ci", Role.OBSERVER, expires_in_s=10)
    clock.advance(9.9)
    assert tokens.check(secret) is not None
    clock.advance(0.1)
    assert tokens.check(secret) is None
    assert tokens.list() == ()


def test_a_revoked_token_is_not_valid_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens, _ = Tokens.open(path, ManualClock(), GIVEN)
    record, secret = tokens.issue("ci", Role.CONTROLLER)
    tokens.revoke(record.id)
    assert tokens.check(secret) is None
    assert Tokens.open(path, ManualClock(), GIVEN)[0].check(secret) is None
    with pytest.raises(NotFound):
        tokens.revoke(record.id)


def test_a_revoked_token_takes_its_logins_along() -> None:
    tokens = in_memory()
    record, _ = tokens.issue("owner", Role.OWNER)
    _, login = tokens.issue("page", Role.OWNER, kind="login", granted_by=record.id)
    other, other_login = tokens.issue("page", Role.OWNER, kind="login")
    tokens.revoke(record.id)
    assert tokens.check(login, "login") is None
    assert tokens.check(other_login, "login") is not None
    assert tokens.list() == (other,)


def test_a_full_disk_makes_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, _ = Tokens.open(path, ManualClock(), GIVEN)
    record, _ = tokens.issue("ci", Role.OBSERVER)
    FullDisk(monkeypatch, overwrites=True)
    with pytest.raises(CredentialsNotStored) as refused:
        tokens.issue("other", Role.OBSERVER)
    assert (refused.value.http_status, refused.value.context) == (507, {"why": "ENOSPC"})
    assert tokens.list() == (record,)


@pytest.mark.parametrize("kind", ["token", "login"])
def test_a_full_disk_still_forgets_who_was_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    path = tmp_path / "data" / "tokens.json"
    tokens, _ = Tokens.open(path, ManualClock(), GIVEN)
    record, secret = tokens.issue("ci", Role.OBSERVER, kind=kind)
    kept, other = tokens.issue("other", Role.OBSERVER)
    size = path.stat().st_size
    FullDisk(monkeypatch, overwrites=True)
    tokens.revoke(record.id)
    assert path.stat().st_size == size
    again, _ = Tokens.open(path, ManualClock(), GIVEN)
    assert again.check(secret, kind) is None
    assert again.check(other) is not None
    assert again.list() == (kept,)


async def test_a_disk_that_takes_nothing_brings_nobody_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "data" / "tokens.json", ManualClock()
    tokens, _ = Tokens.open(path, clock, GIVEN)
    record, secret = tokens.issue("ci", Role.OBSERVER)
    _, other = tokens.issue("other", Role.OBSERVER)
    disk = FullDisk(monkeypatch, overwrites=False)
    with pytest.raises(CredentialsNotStored, match="has ended"):
        tokens.revoke(record.id)
    assert tokens.check(secret) is None
    # Whoever asks again hears the same, until it is written.
    with pytest.raises(CredentialsNotStored):
        tokens.revoke(record.id)
    assert Tokens.open(path, clock, GIVEN)[0].check(secret) is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tokens.keep_stored)
        for _ in range(3):
            await clock.wait_for_sleepers(1)
            clock.advance(module.RETRY_S)
        await clock.wait_for_sleepers(1)
        disk.make_room()
        clock.advance(module.RETRY_S)
        with anyio.fail_after(WAIT_S):
            while not path.exists():
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    again, _ = Tokens.open(path, clock, GIVEN)
    assert again.check(secret) is None
    assert again.check(other) is not None
    with pytest.raises(NotFound):
        tokens.revoke(record.id)
    told = [each for each in caplog.records if getattr(each, "event", "") == "credentials_not_stored"]
    assert len(told) == 1


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines", "nul\0", "tab\t"])
def test_a_name_that_would_spoil_a_log_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="name"):
        in_memory().issue(name, Role.OBSERVER)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_lifetime_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(BadRequest, match="lifetime"):
        in_memory().issue("ci", Role.OBSERVER, expires_in_s=seconds)


def test_an_owner_is_not_bound_to_a_session() -> None:
    with pytest.raises(BadRequest, match="owner"):
        in_memory().issue("ci", Role.OWNER, A)


def test_the_number_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 2)
    tokens = in_memory()
    tokens.issue("one", Role.OBSERVER)
    tokens.issue("two", Role.OBSERVER)
    with pytest.raises(LimitExceeded, match="revoke"):
        tokens.issue("three", Role.OBSERVER)


def identity_of(tokens: Tokens, secret: str) -> Identity:
    identity = tokens.check(secret)
    assert identity is not None
    return identity


async def test_revoking_cuts_every_stream_of_the_token_and_no_other() -> None:
    tokens = in_memory()
    record, secret = tokens.issue("ci", Role.OBSERVER)
    _, other = tokens.issue("other", Role.OBSERVER)
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
            tasks.start_soon(stream, "one", identity_of(tokens, secret))
            tasks.start_soon(stream, "two", identity_of(tokens, secret))
            tasks.start_soon(stream, "other", identity_of(tokens, other))
            await all_run.wait()
            tokens.revoke(record.id)
    assert sorted(cut) == ["one", "two"]


async def test_a_stream_is_cut_when_its_token_expires() -> None:
    tokens, _ = Tokens.open(None, SystemClock(), GIVEN)
    _, secret = tokens.issue("ci", Role.OBSERVER, expires_in_s=0.05)
    with anyio.fail_after(WAIT_S), tokens.closing(identity_of(tokens, secret)) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_stream_of_a_token_that_has_just_gone_does_not_run() -> None:
    tokens = in_memory()
    record, secret = tokens.issue("ci", Role.OBSERVER)
    identity = identity_of(tokens, secret)
    tokens.revoke(record.id)
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
    _, secret = tokens.issue("ci", Role.OBSERVER)
    with pytest.raises(KeyError), tokens.closing(identity_of(tokens, secret)):
        raise KeyError
