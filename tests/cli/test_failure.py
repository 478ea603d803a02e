"""Every failure is a text with a remedy and an exit code; a traceback only on request."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.cli.rig import run

from turnwire import errors
from turnwire.cli import output

DOC = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def codes_in_force() -> dict[int, set[str]]:
    """Return exit codes and their meanings, for all possible ends of a command."""
    found: dict[int, set[str]] = {0: {"success"}}
    for error in errors.tree():
        found.setdefault(error.exit_status, set()).add(error.__name__)
    for reason, code in output.EXIT_CODES.items():
        found.setdefault(code, set()).add(reason)
    ends = ("USAGE", "BROKE_OFF", "OTHER_STOP_REASON", "BROKEN_PIPE", "TERMINATED", "INTERRUPTED")
    for name in ("DOCTOR_FAILED", *ends):
        found.setdefault(getattr(output, name), set())
    return found


def test_the_table_of_exit_codes_in_the_documentation_is_the_one_in_force() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", DOC.read_text(encoding="utf-8"), flags=re.MULTILINE)
    documented = {int(code): words for code, words in rows}

    assert set(documented) == set(codes_in_force())
    for code, names in codes_in_force().items():
        for name in names & set(output.EXIT_CODES):
            assert f"`{name}`" in documented[code]


def test_an_error_of_ours_is_printed_and_sets_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    raised = errors.SessionBusy("it is broken; fix it")

    assert output.fail(raised, debug=False) == errors.SessionBusy.exit_status
    shown = capsys.readouterr()
    assert shown.err.startswith("turnwire: it is broken; fix it\n")
    assert shown.out == ""


def test_an_error_of_ours_inside_a_group_is_told_before_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("tasks", [ValueError("secret"), ExceptionGroup("more", [errors.LogLocked("locked")])])

    assert output.fail(group, debug=False) == errors.LogLocked.exit_status
    assert "locked" in capsys.readouterr().err


def test_the_text_of_a_foreign_error_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.fail(ValueError("tw_secret"), debug=False) == 70
    shown = capsys.readouterr().err
    assert "tw_secret" not in shown
    assert "ValueError" in shown
    assert "--debug" in shown


def test_debug_shows_where_an_error_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.fail(errors.ConfigError("no"), debug=True) == 78
    assert "ConfigError" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.fail(PermissionError(13, "Permission denied", "/somewhere/x"), debug=False) == 74
    assert "/somewhere/x: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_without_a_word(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert output.fail(error, debug=False) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("end_turn", 0),
        ("max_tokens", 10),
        ("max_turn_requests", 11),
        ("refusal", 12),
        ("cancelled", 130),
        ("odd", 13),
    ],
)
def test_each_stop_reason_has_an_exit_code(reason: str, code: int) -> None:
    assert output.stop_code(reason) == code


def test_a_daemon_that_is_not_there_is_told_at_once_with_what_to_do(tmp_path: Path) -> None:
    shown = run("prompt", "--url", "http://127.0.0.1:9", "hi", home=tmp_path)

    assert shown.code == 69
    assert "turnwire serve" in shown.err


def test_no_command_shows_a_traceback_unless_asked(tmp_path: Path) -> None:
    shown = run("config", "--port", "many", home=tmp_path)

    assert (shown.code, shown.out) == (78, "")
    assert shown.err == "turnwire: --port is 'many'; give a whole number from 0 to 65535\n"
