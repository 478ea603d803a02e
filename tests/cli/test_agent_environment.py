"""The part of the user's environment that a hosted agent sees, and that no other process sees it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.editor import editor
from tests.cli.rig import Served, run, served

AGENT = (sys.executable, str(Path(__file__).with_name("env_agent.py")))
KEY = "sk-a-key-that-nobody-else-sees"
OTHER = "another-secret-of-the-user"
USER = {"MODEL_API_KEY": KEY, "OTHER_SECRET": OTHER}
CONFIG = 78
"""The exit code of settings that cannot be used."""
NAMES = "MODEL_API_KEY OTHER_SECRET"


def command_lines() -> str:
    """The command lines of all processes, as `ps` shows them."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def said(daemon: Served, text: str) -> str:
    return daemon.run("prompt", "--new", text).out


def test_an_agent_that_a_user_prompts_with_sees_all_that_the_user_gave(tmp_path: Path) -> None:
    shown = run(
        "prompt", f"{NAMES} TURNWIRE_URL", "--", *AGENT, home=tmp_path, TURNWIRE_URL="http://[::1]:1", **USER
    )
    assert shown.out.splitlines() == [f"MODEL_API_KEY={KEY}", f"OTHER_SECRET={OTHER}", "TURNWIRE_URL=(none)"]
    assert KEY not in shown.err


def test_an_agent_in_an_editor_sees_what_it_would_without_us(tmp_path: Path) -> None:
    with editor(tmp_path, "--", *AGENT, env=USER) as started:
        started.ended(started.prompt(started.open(tmp_path), NAMES))
        assert started.text() == f"MODEL_API_KEY={KEY}\nOTHER_SECRET={OTHER}"
        assert KEY not in started.errors


def configured(home: Path, lines: str) -> tuple[str, str]:
    """Return the flags for a daemon whose agent has these lines in its table."""
    file = home / "turnwire.toml"
    file.write_text(f"[agents.mine]\ncommand = {json.dumps(AGENT)}\n{lines}\n")
    file.chmod(0o600)
    return "--config", str(file)


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        ("", ("(none)", "(none)")),
        ('env = ["MODEL_API_KEY"]', (KEY, "(none)")),
        ("env_all = true", (KEY, OTHER)),
        (f'env = ["OTHER_SECRET"]\nenv_set = {{ MODEL_API_KEY = "set-{KEY}" }}', (f"set-{KEY}", OTHER)),
    ],
)
def test_agent_of_a_daemon_sees_only_the_variables_it_is_given(
    tmp_path: Path, lines: str, seen: tuple[str, str]
) -> None:
    flags = configured(tmp_path, lines)
    with served(tmp_path, *flags, MODEL_API_KEY=KEY, OTHER_SECRET=OTHER) as daemon:
        assert said(daemon, NAMES) == "MODEL_API_KEY={}\nOTHER_SECRET={}\n".format(*seen)
        assert KEY not in daemon.run("config", *flags).out


def test_file_with_values_of_variables_must_be_private(tmp_path: Path) -> None:
    flags = configured(tmp_path, f'env_set = {{ MODEL_API_KEY = "{KEY}" }}')
    Path(flags[1]).chmod(0o644)
    refused = run("serve", *flags, home=tmp_path)
    assert refused.code == CONFIG
    assert "chmod 600" in refused.err


@pytest.mark.guarantee("G13")
def test_a_key_of_the_agent_is_in_no_command_line_log_event_or_explanation(tmp_path: Path) -> None:
    flags = (*configured(tmp_path, 'env = ["MODEL_API_KEY"]'), "--log-level", "debug")
    with served(tmp_path, *flags, MODEL_API_KEY=KEY, OTHER_SECRET=OTHER) as daemon:
        session = daemon.session()
        daemon.prompt(session, "PATH")
        daemon.until(session, "turn_complete")
        assert KEY not in command_lines()
        daemon.prompt(session, f"die {NAMES}")
        daemon.until(session, "turn_error")
        kept = [daemon.ask("GET", f"/session/{session}/{what}") for what in ("explain", "transcript")]
        exported = daemon.run("export", session).out
        assert "OTHER_SECRET=(none)" in exported, "what the agent printed is there"
        assert KEY not in str(kept) + exported + daemon.err.read_text()
        assert daemon.stop() == 0
    assert all(KEY.encode() not in each.read_bytes() for each in daemon.data.rglob("*") if each.is_file())


@pytest.mark.parametrize("program", ["no-such-agent", "/nowhere/agent"])
def test_an_agent_that_is_not_there_is_said_at_once(tmp_path: Path, program: str) -> None:
    shown = run("serve", "--port", "0", "--", program, home=tmp_path)
    assert shown.code == CONFIG
    assert program in shown.err
    assert "install it" in shown.err


def test_a_variable_that_is_not_there_is_said(tmp_path: Path) -> None:
    with served(tmp_path, *configured(tmp_path, 'env = ["NOT_EXPORTED"]')) as daemon:
        assert "NOT_EXPORTED" in daemon.err.read_text()


@pytest.mark.parametrize("name", ["TURNWIRE_TOKEN", "A-B", ""])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    shown = run("serve", *configured(tmp_path, f'env = ["{name}"]'), home=tmp_path)
    assert shown.code == CONFIG
    assert "names of variables" in shown.err


def test_what_a_failing_agent_printed_is_in_the_log_and_told_to_who_prompted(tmp_path: Path) -> None:
    with served(tmp_path, "--", *AGENT) as daemon:
        shown = daemon.run("prompt", "--new", "die NOT_THERE")
        assert shown.code != 0
        assert "exit code 3" in shown.err
        assert "NOT_THERE=(none)" in shown.err
        logged = daemon.err.read_text()
        assert "warning turnwire.agent.stderr: stderr: NOT_THERE=(none)" in logged
    alone = run("prompt", "die NOT_THERE", "--", *AGENT, home=tmp_path)
    assert alone.code != 0
    assert alone.err.count("NOT_THERE=(none)") == 1, "once, with how the turn failed"
