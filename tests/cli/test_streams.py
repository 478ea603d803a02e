"""Invalid UTF-8, and streams that are closed or not writable: a plain message, with the code for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.rig import PROGRAM, SCRIPTED, WAIT_S, Served, environment, run

ODD = os.fsdecode(b"caf\xe9")
"""An argument from a shell that reads Latin-1 where the locale is UTF-8."""


def test_stdin_that_is_no_text_is_sent_with_marks_and_a_note(daemon: Served) -> None:
    done = subprocess.run(
        [*PROGRAM, "prompt", "--new", "-"],
        cwd=daemon.home,
        env=environment(daemon.home, **daemon.env),
        input=b"caf\xe9 cr\xc3\xa8me",
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )

    assert (done.returncode, done.stdout.decode()) == (0, "caf\ufffd crème\n")
    assert "stdin is not all UTF-8 text" in done.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["prompt", ODD],
        ["prompt", "--cwd", ODD, "hi"],
        ["prompt", "-s", ODD, "hi"],
        ["queue", "s1", "edit", "p1", ODD],
        ["attach", "s1", "--prompt", ODD],
        ["token", "create", ODD],
        ["sessions", "--cwd", ODD],
        ["serve", "--data", ODD],
    ],
)
def test_an_argument_that_is_no_text_is_refused_as_usage(words: list[str], tmp_path: Path) -> None:
    shown = run(*words, home=tmp_path)

    assert shown.code == 2
    assert "is not UTF-8 text" in shown.err


def test_a_current_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ODD
    home.mkdir()
    for words in (["prompt", "hi"], ["sessions", "--cwd", "."]):
        shown = run(*words, home=home, TURNWIRE_URL="http://127.0.0.1:9", TURNWIRE_TOKEN="tw_0123456789ab_x")
        assert shown.code == 2
        assert "is not UTF-8 text" in shown.err


def test_the_words_of_an_agents_command_may_be_any_bytes(tmp_path: Path) -> None:
    agent = ("sh", "-c", 'exec "$@"', ODD, *SCRIPTED)

    assert run("prompt", "hi", "--", *agent, home=tmp_path).out == "hi\n"


@pytest.mark.parametrize("key", ["käse", "", "two\nlines"])
def test_a_key_that_cannot_be_sent_is_refused_before_a_session_is_made(key: str, daemon: Served) -> None:
    # Only the ids: the other fields of a session change when its idle agent is stopped.
    before = {each["sessionId"] for each in daemon.run("sessions", "--json").lines}
    shown = daemon.run("prompt", "--new", "--key", key, "hi")

    assert shown.code == 2
    assert "--key" in shown.err
    assert {each["sessionId"] for each in daemon.run("sessions", "--json").lines} == before


@pytest.mark.parametrize("url", ["http://[::1", "http://a\x7f"])
@pytest.mark.parametrize("command", [["sessions"], ["doctor"], ["prompt", "hi"]])
def test_an_address_that_is_none_is_told_as_a_setting(command: list[str], url: str, tmp_path: Path) -> None:
    for words, env in (([*command, "--url", url], {}), (command, {"TURNWIRE_URL": url})):
        shown = run(*words, home=tmp_path, **env)
        assert shown.code == 78
        assert "is no URL" in shown.err


def redirected(home: Path, words: str) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell in which `$@` is our program."""
    return subprocess.run(
        ["sh", "-c", words, "sh", *PROGRAM],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("words", ["version", "config", "config --json", "--help"])
def test_output_that_cannot_be_written_says_so(words: str, tmp_path: Path) -> None:
    # Open for reading alone, so that every write is refused.
    (tmp_path / "closed").write_text("")
    done = redirected(tmp_path, f'"$@" {words} 1<closed')

    assert done.returncode == 74
    first, second = done.stderr.splitlines()
    assert first.startswith("turnwire: the output cannot be written")
    assert second.startswith("  next: ")


def test_the_code_is_kept_when_nobody_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("")

    assert redirected(tmp_path, '"$@" config --port many 2<closed').returncode == 78
    assert redirected(tmp_path, '"$@" config --port many 2>&-').returncode == 78


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_error(closed: str, tmp_path: Path) -> None:
    agent = " ".join(SCRIPTED)
    done = redirected(tmp_path, f'"$@" prompt "say 1 hi" -- {agent} {closed}')

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if ">&-" in closed.split() else "hi\n")
