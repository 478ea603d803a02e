"""`turnwire doctor` checks everything, recommends fixes, and changes nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from tests.cli.rig import Ran, Served, run

NAMES = ["python", "sqlite", "data", "tokens", "port", "agent", "daemon"]


def levels(shown: Ran) -> dict[str, str]:
    return {each["name"]: each["level"] for each in shown.lines}


def of(shown: Ran, name: str) -> dict[str, Any]:
    return next(each for each in shown.lines if each["name"] == name)


def test_with_a_daemon_everything_is_fine(daemon: Served) -> None:
    port = daemon.url.rpartition(":")[2]
    shown = daemon.run("doctor", "--port", port, "--json")

    assert shown.code == 0
    assert levels(shown) == dict.fromkeys(NAMES, "ok")
    in_words = daemon.run("doctor", "--port", port)
    assert in_words.out.count("ok ") == len(NAMES)


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
