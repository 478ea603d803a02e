"""`turnwire token`, `turnwire login` and `turnwire share`, with a daemon and without one."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest
from tests.cli.rig import WAIT_S, Served, run, served


def statuses(daemon: Served, token: str, session: str) -> list[int]:
    """Reading one's own session, prompting it, making tokens."""
    headers = {"Authorization": f"Bearer {token}"}
    body = {"prompt": [{"type": "text", "text": "hi"}]}
    with httpx.Client(base_url=daemon.url, headers=headers, timeout=WAIT_S) as client:
        return [
            client.get(f"/session/{session}").status_code,
            client.post(f"/session/{session}/prompt", json=body).status_code,
            client.get("/tokens").status_code,
        ]


@pytest.mark.guarantee("G13")
def test_a_token_has_the_role_it_was_made_for_until_it_is_revoked(daemon: Served) -> None:
    session = daemon.session()
    observer = daemon.run("token", "create", "ann", "--role", "observer", "--session", session, "--expires", "2h")
    assert observer.code == 0
    controller = daemon.run("token", "create", "ci", "--role", "controller", "--json").lines[0]
    assert statuses(daemon, observer.out.strip(), session) == [200, 403, 403]
    assert statuses(daemon, controller["token"], session) == [200, 202, 403]

    listed = {each["name"]: each for each in daemon.run("token", "list", "--json").lines[0]}
    assert listed["ann"]["sessionId"] == session
    assert listed["ann"]["expiresAt"] > listed["ann"]["createdAt"]
    shown = daemon.run("token", "list").out
    assert "controller" in shown
    assert controller["token"] not in shown

    assert daemon.run("token", "revoke", controller["id"]).code == 0
    assert statuses(daemon, controller["token"], session) == [401, 401, 401]
    assert daemon.run("token", "revoke", controller["id"]).code == 66


def test_a_token_is_revoked_by_its_name_if_only_one_has_it(daemon: Served) -> None:
    for name in ("watcher", "twin", "twin"):
        daemon.run("token", "create", name, "--role", "observer")
    assert daemon.run("token", "revoke", "watcher").code == 0
    assert daemon.run("token", "revoke", "watcher").code == 66
    twice = daemon.run("token", "revoke", "twin")
    assert twice.code == 66
    assert "2 tokens are named 'twin'; revoke one by its id: " in twice.err


@pytest.mark.parametrize("words", [["x", "--expires", "soon"], ["x", "--role", "king"], []])
def test_a_token_that_makes_no_sense_is_refused_as_usage(words: list[str], daemon: Served) -> None:
    assert daemon.run("token", "create", *words).code == 2


@pytest.mark.guarantee("G13")
def test_without_a_daemon_the_file_is_changed_and_the_daemon_knows_it_later(tmp_path: Path) -> None:
    shown = run("token", "create", "x", home=tmp_path)
    assert shown.code == 69

    with served(tmp_path) as daemon:
        owner = daemon.announced["token"].split("_")[1]
        daemon.stop()
    made = run("token", "create", "later", "--role", "observer", home=tmp_path)
    assert made.code == 0
    assert "no daemon answers" in made.err
    assert run("token", "revoke", owner, home=tmp_path).code == 0
    assert {each["name"] for each in run("token", "list", "--json", home=tmp_path).lines[0]} == {"cli", "later"}
    file = tmp_path / ".local/state/turnwire/tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.out.strip() not in file.read_text()

    with served(tmp_path) as daemon:
        session = daemon.session()
        assert statuses(daemon, made.out.strip(), session) == [200, 403, 403]
        assert statuses(daemon, daemon.announced["token"] or "none", session) == [401, 401, 401]
        # It runs, but not where it is looked for: two writers would undo each other's work.
        shown = run("token", "create", "x", "--url", "http://127.0.0.1:9", home=tmp_path)
        assert shown.code == 75
        assert "--url" in shown.err


@pytest.mark.guarantee("G13")
def test_a_login_link_has_its_code_where_no_server_sees_it(daemon: Served) -> None:
    shown = daemon.run("login")

    assert shown.code == 0
    base, code = shown.out.strip().split("#")
    assert base == f"{daemon.url}/login"
    assert code not in daemon.err.read_text()


def test_without_the_token_of_commands_the_advice_is_one_that_works(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        own = (daemon.data / "cli-token").read_text().split("_")[1]
        assert daemon.run("token", "revoke", own).code == 0
        shown = daemon.run("token", "create", "another")
        assert shown.code == 77
        assert "A restart of the daemon recreates it" in shown.err
        assert daemon.stop() == 0

    with served(tmp_path) as daemon:
        assert daemon.run("token", "create", "another").code == 0


def opened(daemon: Served, link: str, session: str) -> list[int]:
    """Return the responses to a browser that opens a share link: the login, reading the session, prompting it."""
    _, _, code = link.partition("#")
    with httpx.Client(base_url=daemon.url, headers={"Origin": daemon.url}, timeout=WAIT_S) as browser:
        login = browser.post("/login", json={"code": code})
        browser.headers["Turnwire-Page-Key"] = login.headers.get("Turnwire-Page-Key", "")
        return [
            login.status_code,
            browser.get(f"/session/{session}").status_code,
            browser.post(f"/session/{session}/prompt", json={"prompt": []}).status_code,
        ]


@pytest.mark.guarantee("G13")
def test_a_share_link_is_printed_listed_and_revoked(daemon: Served) -> None:
    session = daemon.session()
    shown = daemon.run("share", session, "--for", "2h")
    assert shown.code == 0
    link = shown.out.strip()
    assert link.startswith(f"{daemon.url}/login#")
    assert link.partition("#")[2] not in shown.err
    assert opened(daemon, link, session) == opened(daemon, link, session) == [204, 200, 403]

    [[listed]] = daemon.run("share", session, "--list", "--json").lines
    assert listed["expiresAt"] - listed["createdAt"] == 7_200_000
    table = daemon.run("share", session, "--list").out
    assert listed["tokenId"] in table
    assert link.partition("#")[2] not in table

    assert daemon.run("share", session, "--revoke", listed["tokenId"]).code == 0
    assert opened(daemon, link, session) == [401, 401, 401]
    assert daemon.run("share", session, "--revoke", listed["tokenId"]).code == 66
    assert "no share links" in daemon.run("share", session, "--list").err
    made = daemon.run("share", session, "--json").lines[0]
    assert made.keys() == {"url", "tokenId", "createdAt", "expiresAt"}


@pytest.mark.parametrize("words", [["--for", "soon"], ["--list", "--revoke", "x"], ["--list", "--for", "1d"]])
def test_a_share_link_that_makes_no_sense_is_refused_as_usage(words: list[str], daemon: Served) -> None:
    assert daemon.run("share", daemon.session(), *words).code == 2
