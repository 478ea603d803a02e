"""An agent's commands: a program with unmodified arguments, or a line for a shell."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.hosting.process import Ends
from turnwire.hosting.services.terminals import READ_BYTES, SHELL, Output, Terminal, command_line
from turnwire_testing.patience import WAIT_S


def line(command: str, *args: str, path: str = "", cwd: str = "/") -> list[str]:
    return command_line(command, args, path, cwd)


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


# -- a terminal tells its end only when everything that was printed has been read --------------------------

pytestmark = pytest.mark.anyio

ROOM = 1024 * 1024


@pytest.fixture
def dead_guard() -> subprocess.Popen[bytes]:
    guard = subprocess.Popen(["true"])
    guard.wait(timeout=WAIT_S)
    return guard


@pytest.mark.skipif(sys.platform != "linux", reason="makes a pipe larger")
async def test_an_exit_that_is_heard_first_waits_for_the_output(dead_guard: subprocess.Popen[bytes]) -> None:
    control, to_control = os.pipe()
    from_status, status = os.pipe()
    from_output, out = os.pipe()
    fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, ROOM)
    printed = 5 * READ_BYTES
    assert os.write(out, b"x" * printed) == printed
    os.write(status, b'{"pid": 0}\n{"exit_code": 3, "signal": 0}\n{"gone": 0, "left": 0}\n')
    os.close(status)
    terminal = Terminal(dead_guard, Ends(-1, from_output, -1, to_control, from_status), ROOM)
    with anyio.fail_after(WAIT_S):
        assert (await terminal.exited()).exit_code == 3
    assert len(terminal.output.text()) == printed
    os.close(out)
    os.close(control)


@pytest.mark.skipif(sys.platform != "linux", reason="makes a pipe larger")
async def test_a_foreign_writer_cannot_keep_an_exit_back(dead_guard: subprocess.Popen[bytes]) -> None:
    """The other end is still open, in our own hands, when the guard is gone."""
    control, to_control = os.pipe()
    from_status, status = os.pipe()
    from_output, out = os.pipe()
    os.close(status)
    terminal = Terminal(dead_guard, Ends(-1, from_output, -1, to_control, from_status), ROOM)
    with anyio.fail_after(WAIT_S):
        exit = await terminal.exited()
    assert (exit.exit_code, exit.signal) == (None, None)
    with pytest.raises(BrokenPipeError):
        os.write(out, b"x")
    os.close(out)
    os.close(control)


# -- the output of a terminal ends where the command ended, and begins at a character ----------------------


def fed(max_bytes: int, *chunks: bytes) -> Output:
    output = Output(max_bytes)
    for chunk in chunks:
        output.feed(chunk)
    return output


def test_what_fits_is_kept_whole() -> None:
    output = fed(10, b"12345", b"67890")
    assert (output.text(), output.is_truncated) == ("1234567890", False)


def test_what_is_too_much_is_dropped_from_the_beginning() -> None:
    output = fed(10, b"12345", b"67890", b"x")
    assert (output.text(), output.is_truncated) == ("234567890x", True)


@pytest.mark.parametrize(
    ("limit", "left"), [(7, "€€"), (6, "€€"), (5, "€"), (4, "€"), (3, "€"), (2, ""), (1, ""), (0, "")]
)
def test_a_character_that_does_not_fit_goes_as_a_whole(limit: int, left: str) -> None:
    assert fed(limit, "€€€".encode()).text() == left


def test_a_character_that_arrives_in_pieces_is_one() -> None:
    output = Output(100)
    for byte in "aß€😀".encode():
        output.feed(bytes([byte]))
    assert output.text() == "aß€😀"


def test_a_character_is_not_shown_before_all_of_it_is_there() -> None:
    output = fed(100, b"a\xe2\x82")
    assert output.text() == "a"
    output.end()
    assert output.text() == "a\ufffd"


def test_bytes_that_are_no_text_are_shown_as_such_and_counted_as_shown() -> None:
    output = fed(6, b"\xff\xfe\xfd")
    assert (output.text(), output.is_truncated) == ("\ufffd\ufffd", True)


@given(st.text(), st.integers(0, 40), st.data())
def test_any_text_in_any_pieces_leaves_its_longest_end_that_fits(
    text: str, limit: int, data: st.DataObject
) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    output = fed(limit, *pieces)
    output.end()
    shown = output.text()
    assert text.endswith(shown)
    assert len(shown.encode()) <= limit
    assert output.is_truncated is (len(whole) > limit)
    longer = text[len(text) - len(shown) - 1 :] if len(shown) < len(text) else ""
    assert not longer or len(longer.encode()) > limit


def test_a_flood_costs_no_more_than_the_bound() -> None:
    output = Output(64 * 1024)
    chunk = b"y\n" * 32 * 1024
    tracemalloc.start()
    try:
        for _ in range(200):
            output.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(output.text()) == 64 * 1024
    assert peak < 16 * len(chunk)
