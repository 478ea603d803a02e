"""`turnwire serve`: its output, its stored data, and its errors at the start."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.cli.rig import WAIT_S, Served, lines_of, run, served, start

GIVEN = "an-owner-token-that-is-long-enough"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def status(daemon: Served, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{daemon.url}/capabilities", headers=headers, timeout=WAIT_S).status_code


@pytest.mark.guarantee("G13")
def test_the_first_start_makes_a_token_for_its_user_alone_and_later_ones_do_not(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        token = daemon.announced["token"]
        assert set(daemon.announced) == {"url", "token", "pid", "data"}
        assert daemon.announced["pid"] == daemon.process.pid
        assert daemon.data == tmp_path / ".local/state/turnwire"
        assert mode(daemon.data) == 0o700
        assert mode(daemon.data / "tokens.json") == mode(daemon.data / "cli-token") == 0o600
        assert token not in (daemon.data / "tokens.json").read_text()
        own = (daemon.data / "cli-token").read_text().strip()
        assert [status(daemon, each) for each in (token, own, None, "wrong")] == [200, 200, 401, 401]
        assert daemon.stop() == 0

    with served(tmp_path) as daemon:
        assert daemon.announced["token"] is None
        assert (daemon.data / "cli-token").read_text().strip() == own
        assert [status(daemon, each) for each in (token, own)] == [200, 200]
        shown = daemon.err.read_text()
        assert token not in shown
        assert own not in shown


def test_a_token_file_of_commands_that_is_lost_or_open_to_others_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        path = daemon.data / "cli-token"
        old = path.read_text().strip()
        daemon.stop()
    path.chmod(0o644)

    with served(tmp_path) as daemon:
        new = path.read_text().strip()
        assert new != old
        assert mode(path) == 0o600
        assert status(daemon, new) == 200


def test_a_given_token_is_announced_and_lets_in(tmp_path: Path) -> None:
    with served(tmp_path, "--token", GIVEN) as daemon:
        assert daemon.announced["token"] == GIVEN
        assert status(daemon, GIVEN) == 200
        assert daemon.run("sessions").code == 0


def test_without_credentials_everybody_here_gets_in(tmp_path: Path) -> None:
    with served(tmp_path, "--no-auth") as daemon:
        assert daemon.announced["token"] is None
        assert status(daemon, None) == 200
        assert not (daemon.data / "cli-token").exists()
        assert daemon.run("prompt", "hello").out == "hello\n"


def test_a_log_in_memory_leaves_nothing_on_disk_and_shows_its_token(tmp_path: Path) -> None:
    with served(tmp_path, "--log", "memory") as daemon:
        assert daemon.announced["data"] is None
        shown = run(
            "prompt", "hi", home=tmp_path, TURNWIRE_URL=daemon.url, TURNWIRE_TOKEN=daemon.announced["token"]
        )
        assert shown.out == "hi\n"
    assert [each.name for each in (tmp_path / ".local/state/turnwire").iterdir()] == ["run"]


def test_a_person_is_told_where_it_is_how_to_get_in_and_how_to_begin(tmp_path: Path) -> None:
    process = start("serve", "--port", "0", "--data", str(tmp_path / "data"), home=tmp_path, err=tmp_path / "err")
    try:
        block: list[str] = []
        for line in lines_of(process):
            block.append(line.strip())
            if line.strip().startswith("stop"):
                break
        words = dict(each.split(None, 1) for each in block[2:])
        url = block[0].split()[-1]
        assert words["page"].startswith(f"{url}/login#")
        assert words["data"] == str(tmp_path / "data")
        assert words["token"].startswith("tw_")
        assert words["agent"].startswith("built-in")
        assert words["try"] == f'{sys.executable} -m turnwire prompt "hello"'
        code = words["page"].split("#")[1].split()[0]
        login = httpx.post(f"{url}/login", json={"code": code}, headers={"Sec-Fetch-Site": "same-origin"})
        assert login.status_code == 204
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def test_a_port_that_is_taken_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        shown = run("serve", "--port", port, home=tmp_path)

    assert (shown.code, shown.out) == (78, "")
    assert f"port {port}" in shown.err
    assert "in use" in shown.err
    assert not (tmp_path / ".local").exists()


def test_a_second_daemon_on_the_same_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        shown = run("serve", "--port", "0", home=tmp_path)
        assert (shown.code, shown.out) == (75, "")
        assert "--data" in shown.err
        assert daemon.run("prompt", "still here").out == "still here\n"


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "0.0.0.0", "--no-auth"], "--no-auth"),
        (["--token", "short"], "too short"),
        (["--tls-cert", "x.pem"], "key"),
        (["--limit", "drain_s=-1"], "drain_s"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--log", "memory", "--data", "x"], "memory"),
    ],
)
def test_settings_that_make_no_sense_refuse_to_start_with_the_reason(
    flags: list[str], reason: str, tmp_path: Path
) -> None:
    shown = run("serve", "--port", "0", *flags, home=tmp_path)

    assert (shown.code, shown.out) == (78, "")
    assert reason in shown.err


def test_an_agent_without_the_dashes_is_refused_as_usage(tmp_path: Path) -> None:
    shown = run("serve", "my-agent", home=tmp_path)
    assert shown.code == 2
    shown = run("serve", "--", home=tmp_path)
    assert shown.code == 2
    assert "agent's command" in shown.err


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("serve", ["--cwd", "nowhere"], "cwd names"),
        ("stdio", ["--cwd", "nowhere"], "cwd names"),
        ("serve", ["--data", "file"], "is no folder; give a folder with --data"),
        ("serve", ["--data", "file/below"], "is no folder; give a folder with --data"),
        ("sessions", ["--data", "file"], "is no folder"),
    ],
)
def test_a_folder_that_is_none_is_refused(command: str, flags: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown = run(command, *flags, home=tmp_path)

    assert shown.code == 78
    assert said in shown.err
    assert "permissions" not in shown.err


@pytest.mark.parametrize("version", [2, 1])
def test_an_agent_that_speaks_both_versions_can_be_held_to_the_first(tmp_path: Path, version: int) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text(f"[agents.builtin]\nprotocol = {version}\n")
    with served(tmp_path, "--config", str(file)) as daemon:
        exported = daemon.run("export", daemon.session()).out
        assert f'"protocolVersion":{version}' in exported


def test_a_folder_outside_is_refused_with_those_that_are_allowed_and_how_to_allow_it(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for each in (allowed, other):
        each.mkdir()
    with served(tmp_path, "--cwd", str(allowed)) as daemon:
        ran = daemon.run("prompt", "--cwd", str(other), "hello")
        status, refusal = daemon.refused("POST", "/session", {"cwd": str(other)})

    assert ran.code == 77
    assert f"outside the allowed directories: {allowed}; choose" in ran.err
    assert "--cwd DIR" in ran.err
    assert status == 403
    assert str(allowed) in str(refusal)


def test_a_daemon_starts_without_what_only_others_need() -> None:
    heavy = ("httpx", "rich", "pygments", "websockets.asyncio.client", "turnwire.client", "turnwire_agent", "mcp")
    code = f"import sys, turnwire.cli.daemon; print([each for each in {heavy!r} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "[]"
