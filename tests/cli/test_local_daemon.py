"""A daemon is found by programs of its user on its machine, for any address and data folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.rig import PROGRAM, environment, run, served

from turnwire.errors import ConfigError
from turnwire.hosting.local_daemon import LocalDaemon, folder_of, only_one, recorded, running
from turnwire_testing.patience import WAIT_S

SDK = """
import anyio, turnwire

async def main():
    async with turnwire.connect() as client:
        session = await client.new_session()
        print((await session.prompt("echo found")).text)

anyio.run(main)
"""


def test_commands_find_a_daemon_on_any_port_with_its_data_anywhere(tmp_path: Path) -> None:
    with served(tmp_path, "--data", str(tmp_path / "elsewhere")):
        shown = run("prompt", "echo hello", home=tmp_path)
        assert (shown.code, shown.out) == (0, "hello\n")
        assert run("sessions", "--json", home=tmp_path).code == 0


def test_a_daemon_that_keeps_nothing_is_found_as_well(tmp_path: Path) -> None:
    with served(tmp_path, "--log", "memory"):
        assert run("prompt", "echo hello", home=tmp_path).out == "hello\n"


def program(home: Path) -> subprocess.CompletedProcess[str]:
    """A user's program that connects to any running daemon."""
    return subprocess.run(
        [sys.executable, "-c", SDK],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_program_finds_it_without_arguments(tmp_path: Path) -> None:
    assert "start one with `turnwire serve`" in program(tmp_path).stderr
    with served(tmp_path, "--data", str(tmp_path / "elsewhere")):
        found = program(tmp_path)
        assert (found.stdout, found.stderr) == ("found\n", "")


def test_what_a_killed_daemon_left_behind_is_no_daemon(tmp_path: Path) -> None:
    folder = folder_of(environment(tmp_path))
    assert folder is not None
    with served(tmp_path) as daemon:
        [record] = folder.iterdir()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        assert record.exists()
        assert running(environment(tmp_path)) == []
        assert not record.exists()
    with served(tmp_path) as daemon:
        assert daemon.stop() == 0
        assert list(folder.iterdir()) == []


def test_of_several_the_one_with_our_data_is_meant_and_else_none(tmp_path: Path) -> None:
    with (
        served(tmp_path, "--data", str(tmp_path / "one")) as one,
        served(tmp_path, "--data", str(tmp_path / "two")) as two,
    ):
        refused = run("sessions", home=tmp_path)
        assert refused.code == 78
        assert one.url in refused.err
        assert two.url in refused.err
        assert "TURNWIRE_URL" in refused.err
        chosen = run("prompt", "echo hello", home=tmp_path, TURNWIRE_DATA=str(tmp_path / "two"))
        assert chosen.out == "hello\n"
        assert len(two.ask("GET", "/session")["sessions"]) == 1
        assert one.ask("GET", "/session")["sessions"] == []


def test_the_line_to_try_works_as_it_is_printed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", "0", "--log", "memory"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            line = next(each for each in process.stdout if each.strip().startswith("try "))
            tried = subprocess.run(
                ["/bin/sh", "-c", line.strip().removeprefix("try").strip()],
                cwd=tmp_path,
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        finally:
            process.kill()
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout


def test_a_folder_that_cannot_be_written_keeps_nobody_from_running(tmp_path: Path) -> None:
    (tmp_path / "turnwire").write_text("no folder")
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with recorded(LocalDaemon("http://127.0.0.1:1", os.getpid()), environ):
        assert running(environ) == []
    assert running({}) == []


def test_one_is_found_and_of_two_neither(tmp_path: Path) -> None:
    one, two = LocalDaemon("http://127.0.0.1:1", 1, "/one"), LocalDaemon("http://127.0.0.1:2", 2, "/two")
    assert only_one([]) is None
    assert only_one([one], Path("/other")) is one
    assert only_one([one, two], Path("/two")) is two
    with pytest.raises(ConfigError, match="several daemons"):
        only_one([one, two])
