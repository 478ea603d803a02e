"""A daemon's addresses, the folders of sessions, and the audit of changes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from turnwire.errors import ConfigError, Forbidden, InvalidCwd
from turnwire.ids import SessionId
from turnwire.server.access.origins import check_bind, is_loopback
from turnwire.server.access.tokens import Identity, Role, audit
from turnwire.server.daemon.creation import check_cwd

pytestmark = pytest.mark.guarantee("G13")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost."])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, has_token=False, no_auth=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "box.example", "localhost.example"])
def test_what_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="--token"):
        check_bind(host, has_token=False, no_auth=False)
    with pytest.raises(ConfigError, match="--no-auth"):
        check_bind(host, has_token=True, no_auth=True)
    check_bind(host, has_token=True, no_auth=False)


def roots(tmp_path: Path) -> tuple[Path, Path]:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    (allowed / "project").mkdir(parents=True)
    outside.mkdir()
    return allowed, outside


def test_a_directory_inside_a_root_is_given_by_its_true_path(tmp_path: Path) -> None:
    allowed, outside = roots(tmp_path)
    (allowed / "link").symlink_to(allowed / "project")
    true = allowed.resolve()
    given = [allowed, allowed / "project", allowed / "link", f"{allowed}/project/../project/", outside]
    found = [check_cwd(str(each), [allowed, outside]) for each in given]
    project = str(true / "project")
    assert found == [str(true), project, project, project, str(outside.resolve())]


def test_whatever_leads_outside_is_refused_in_the_same_words(tmp_path: Path) -> None:
    allowed, outside = roots(tmp_path)
    (allowed / "escape").symlink_to(outside)
    (allowed / "up").symlink_to("../outside")
    (tmp_path / "allowed-too").mkdir()
    leading_out = [
        outside,
        outside / "missing",
        f"{allowed}/../outside",
        allowed / "escape",
        allowed / "up",
        tmp_path / "allowed-too",
        "/",
        "/etc",
    ]
    said: set[str] = set()
    for each in leading_out:
        with pytest.raises(Forbidden, match="--cwd") as refused:
            check_cwd(str(each), [allowed])
        said.add(str(refused.value))
    assert len(said) == 1


@pytest.mark.parametrize("cwd", ["", "project", "./project", "~", "/nul\0", "{root}/missing", "{root}/file"])
def test_what_is_no_absolute_directory_is_malformed(tmp_path: Path, cwd: str) -> None:
    allowed, _ = roots(tmp_path)
    (allowed / "file").touch()
    with pytest.raises(InvalidCwd, match="absolute path of a directory"):
        check_cwd(cwd.format(root=allowed), [allowed])


def test_without_roots_and_with_a_root_that_is_gone_nothing_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        check_cwd(str(tmp_path), [])
    with pytest.raises(Forbidden, match="gone"):
        check_cwd(str(tmp_path), [tmp_path / "gone"])


def test_a_change_is_one_record_that_says_who_and_where(caplog: pytest.LogCaptureFixture) -> None:
    who = Identity("ci", Role.CONTROLLER, None, "0123456789ab")
    with caplog.at_level(logging.INFO, "turnwire.audit"):
        audit(who, "POST", "/session/{session_id}/prompt", 202, "192.0.2.7", SessionId("s_a"))
        audit(who, "GET", "/session", 200, "192.0.2.7")
    [record] = caplog.records
    told = {name: vars(record)[name] for name in ("event", "who", "token_id", "route", "session_id", "status")}
    assert told == {
        "event": "audit",
        "who": "ci",
        "token_id": "0123456789ab",
        "route": "/session/{session_id}/prompt",
        "session_id": "s_a",
        "status": 202,
    }
