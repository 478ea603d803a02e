"""`turnwire doctor` checks everything, recommends fixes, and changes nothing."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.cli.rig import Ran, Served, run, served

from turnwire.cli import doctor
from turnwire.cli.daemon import start_error
from turnwire.errors import LogFull
from turnwire.server.settings.declared import Settings

NAMES = ["python", "sqlite", "data", "tokens", "port", "agent", "daemon"]


def levels(shown: Ran) -> dict[str, str]:
    return {each["name"]: each["level"] for each in shown.lines}


def of(shown: Ran, name: str) -> dict[str, Any]:
    return next(each for each in shown.lines if each["name"] == name)


def test_with_a_daemon_everything_is_fine(daemon: Served) -> None:
    port = daemon.url.rpartition(":")[2]
    shown = daemon.run("doctor", "--port", port, "--json")

    assert shown.code == 0
    assert levels(shown) == dict.fromkeys((each for each in NAMES if each != "port"), "ok")
    in_words = daemon.run("doctor", "--port", port)
    assert in_words.out.count("ok ") == len(NAMES) - 1


def test_on_a_fresh_machine_only_the_daemon_is_missing_and_nothing_is_left_behind(tmp_path: Path) -> None:
    shown = run("doctor", "--json", home=tmp_path, TURNWIRE_URL="http://127.0.0.1:9")

    assert shown.code == 0
    assert levels(shown) == {**dict.fromkeys(NAMES, "ok"), "daemon": "warn"}
    assert of(shown, "daemon")["next"] == "turnwire serve"
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_cannot_be_had_fails(tmp_path: Path) -> None:
    for agent in (["./no-such-agent"], ["false"], ["sleep", "60"]):
        shown = run("doctor", "--json", "--limit", "initialize_s=0.5", "--port", "0", "--", *agent, home=tmp_path)
        assert shown.code == 1
        assert of(shown, "agent")["level"] == "fail"
        assert of(shown, "agent")["next"]
    assert "fail" in run("doctor", "--port", "0", "--", "false", home=tmp_path).out


def test_a_port_of_somebody_else_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        shown = run("doctor", "--json", "--port", port, home=tmp_path, TURNWIRE_URL="http://127.0.0.1:9")

    assert shown.code == 1
    assert "in use" in of(shown, "port")["words"]


def test_a_folder_that_is_open_to_others_or_cannot_be_written_fails(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "tokens.json").write_text('{"version":1,"tokens":[]}')
    (data / "tokens.json").chmod(0o644)
    shown = run("doctor", "--json", "--port", "0", "--data", str(data), home=tmp_path)
    assert shown.code == 1
    assert "chmod 600" in of(shown, "tokens")["words"]

    # No user, not even root, can write there.
    shown = run("doctor", "--json", "--port", "0", "--data", "/proc/turnwire", home=tmp_path)
    assert shown.code == 1
    assert of(shown, "data")["level"] == "fail"


def test_a_credential_that_is_refused_fails(daemon: Served) -> None:
    shown = daemon.run("doctor", "--json", "--port", "0", TURNWIRE_TOKEN="a-token-of-somebody-else")

    assert shown.code == 1
    assert "turnwire token create" in of(shown, "daemon")["next"]


def test_the_running_daemon_is_asked_for_its_agents(tmp_path: Path) -> None:
    with served(tmp_path, "--agent", "one=no-such-program", "--agent", "two=cat", "--default-agent", "two"):
        shown = run("doctor", "--json", home=tmp_path)
    agents = [each for each in shown.lines if each["name"] == "agent"]
    assert [(each["level"], each["words"].split()[0]) for each in agents] == [("ok", "two"), ("fail", "one")]
    assert "was not found on PATH" in agents[1]["words"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor, "_journal_mode", full)
    found = doctor.check_folder(Settings(data=tmp_path))
    assert (found.level, found.words) == ("fail", f"the disk of {tmp_path} is full")


def test_a_second_daemon_is_told_of_the_first(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        port = daemon.url.rpartition(":")[2]
        for words, code in ((("--port", port), 78), (("--port", "0"), 75)):
            shown = run("serve", *words, home=tmp_path)
            assert shown.code == code
            assert f"your daemon already runs at {daemon.url} (process {daemon.process.pid})" in shown.err
            assert "turnwire open" in shown.err


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), LogFull("full")])
def test_a_start_without_room_names_the_folder(error: Exception, tmp_path: Path) -> None:
    told = start_error(error, Settings(data=tmp_path))
    assert isinstance(told, LogFull)
    assert str(told) == f"there is no room left on the disk of {tmp_path}"
    assert told.exit_status == 75
