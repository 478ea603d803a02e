"""The way a command finds its daemon, and the daemons that get its token."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.rig import Served, run

from turnwire.cli.reach import find_daemon
from turnwire.errors import ConfigError

SECRET = "tw_0123456789ab_secret"
OTHER = "tw_0123456789ab_other"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a user's data folder, with no other settings."""
    for name in ("TURNWIRE_URL", "TURNWIRE_TOKEN", "TURNWIRE_DATA", "TURNWIRE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cli-token").write_text(SECRET + "\n")
    (tmp_path / "cli-token").chmod(0o600)
    return str(tmp_path)


def test_without_a_word_it_is_the_usual_address_and_the_token_of_the_folder(data: str) -> None:
    assert find_daemon(None, None, data) == ("http://127.0.0.1:4170", SECRET, Path(data), "sqlite")


def test_the_settings_of_a_daemon_say_where_it_is(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_HOST", "::")
    monkeypatch.setenv("TURNWIRE_PORT", "5555")
    assert find_daemon(None, None, data).url == "http://127.0.0.1:5555"
    monkeypatch.setenv("TURNWIRE_HOST", "::1")
    assert find_daemon(None, None, data).url == "http://[::1]:5555"
    monkeypatch.setenv("TURNWIRE_PORT", "0")
    with pytest.raises(ConfigError, match="--url"):
        find_daemon(None, None, data)


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://127.0.0.1:9", SECRET),
        ("http://localhost:9", SECRET),
        ("http://[::1]:9", SECRET),
        ("http://example.org", None),
        ("http://127.0.0.1.example.org", None),
        ("http://127.0.0.1@example.org", None),
    ],
)
def test_the_token_of_the_folder_goes_to_this_machine_only(url: str, token: str | None, data: str) -> None:
    assert find_daemon(url, None, data).token == token


def test_a_token_that_is_given_goes_where_it_is_told(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_TOKEN", OTHER)
    assert find_daemon("http://example.org", None, None).token == OTHER
    file = tmp_path / "given"
    file.write_text(SECRET)
    file.chmod(0o600)
    assert find_daemon("http://example.org", str(file), None).token == SECRET


@pytest.mark.guarantee("G13")
def test_a_token_file_that_others_may_read_or_that_is_none_is_refused(data: str, tmp_path: Path) -> None:
    file = tmp_path / "given"
    with pytest.raises(ConfigError, match="no file"):
        find_daemon(None, str(file), data)
    file.write_text("two words")
    with pytest.raises(ConfigError, match="chmod 600"):
        find_daemon(None, str(file), data)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no token"):
        find_daemon(None, str(file), data)


def test_a_credential_that_is_not_valid_says_how_to_get_one(daemon: Served) -> None:
    shown = daemon.run("sessions", TURNWIRE_TOKEN="tw_0123456789ab_nothing")

    assert shown.code == 77
    assert "turnwire token create" in shown.err


@pytest.mark.parametrize("command", [("sessions",), ("prompt", "hi"), ("stdio", "--daemon")])
def test_a_daemon_elsewhere_that_wants_a_token_says_where_to_get_one(
    command: tuple[str, ...], daemon: Served, tmp_path: Path
) -> None:
    """The daemon belongs to another user, so its address leads to no token."""
    url = [] if command[-1] != "--daemon" else [daemon.url]
    without = run(*command, *url, home=tmp_path, TURNWIRE_URL=daemon.url)
    wrong = run(*command, *url, home=tmp_path, TURNWIRE_URL=daemon.url, TURNWIRE_TOKEN=SECRET)

    assert (without.code, wrong.code) == (77, 77)
    assert "needs a token, and none was given" in without.err
    assert "rejected the token" in wrong.err
    for said in (without.err, wrong.err):
        assert "turnwire token create NAME" in said
        assert "TURNWIRE_TOKEN" in said
        assert "--token-file FILE" in said
        assert SECRET not in said
