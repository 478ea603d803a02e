"""What an agent asks to run: a program with arguments as they are, or a line for a shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnwire.runtime.services.terminals import SHELL, command_line
from turnwire.wire.schema.v1 import CreateTerminalRequest


def line(command: str, *args: str, path: str = "", cwd: str = "/") -> list[str]:
    return command_line(CreateTerminalRequest(session_id="s", command=command, args=list(args)), path, cwd)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for name in ("bash", "two words"):
        (tmp_path / name).touch(0o755)
    return tmp_path


def test_a_program_with_arguments_is_run_as_it_is() -> None:
    assert line("echo", "a b", "$HOME", "") == ["echo", "a b", "$HOME", ""]
    assert line("two words", "x") == ["two words", "x"]


@pytest.mark.parametrize("command", ["ls", "/usr/bin/env", "./run.sh", "python3.11", "a-b_c"])
def test_a_single_word_is_a_program(command: str) -> None:
    assert line(command) == [command]


@pytest.mark.parametrize(
    "command", ["ls -la", "cd x && make", "a|b", "echo $HOME", "A=1 b", "x > y", "a\nb", "~/x"]
)
def test_a_line_without_arguments_is_for_a_shell(tools: Path, command: str) -> None:
    assert line(command, path=str(tools)) == [str(tools / "bash"), "-c", command]
    assert line(command, path="/nowhere") == [SHELL, "-c", command]


def test_a_program_with_a_blank_in_its_name_is_still_a_program(tools: Path) -> None:
    assert line("two words", path=str(tools)) == ["two words"]
    assert line(str(tools / "two words")) == [str(tools / "two words")]
    assert line("./two words", cwd=str(tools)) == ["./two words"]
    assert line("./two words", cwd="/")[0] == SHELL


def test_the_shell_of_last_resort_is_there() -> None:
    assert os.access(SHELL, os.X_OK)
