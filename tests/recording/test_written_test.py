"""A recording becomes a test in one command, which passes, and fails once the recording is another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.rig import Ran, run
from tests.interop.node_session import Talk
from tests.interop.peers import scripted
from tests.recording.rig import hosted, recorded, refuse_and_cancel
from tests.recording.test_player import answered, asked, prompted, recording, said

from turnwire.recording.format import Side, entry_line, first_line
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio
Frames = list[tuple[Side, dict[str, Any]]]


async def speak(talk: Talk) -> None:
    await talk.turn("say 3 hello")
    await refuse_and_cancel(talk)
    await talk.turn("say 1 bye\nexit 7")


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "--basetemp=own", "test_bug.py")
"""In a folder of its own: in the common one it would tidy up behind all other runs before it ends."""
PLAIN = ("-c", "import pathlib, test_bug; test_bug.test_a_bug(pathlib.Path.cwd())")
"""The same without the start of pytest, which takes longer than the test."""


def judged(test: Path, words: Sequence[str] = PLAIN) -> tuple[int, str]:
    """What is said of a test, and with which exit code."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=test.parent, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_the_written_test_passes_and_tells_of_every_turn(profile: str, tmp_path: Path) -> None:
    file, test = tmp_path / "a-bug.jsonl", tmp_path / "tests" / "test_bug.py"
    test.parent.mkdir()
    await hosted(recorded(scripted("--profile", profile), file), speak)

    assert run("replay", str(file), "--as-test", str(test), home=tmp_path).code == 0
    text = test.read_text()
    assert "def test_a_bug(tmp_path):" in text
    for each in ("'end_turn'", "'cancelled'", "'agent_exited'", "'hellohellohello'", ".cancel()", "'no'"):
        assert each in text
    code, shown = judged(test, PYTEST if profile == "v1" else PLAIN)
    assert code == 0, shown
    if profile == "v2":
        return

    file.write_text(file.read_text().replace('"text":"hello"', '"text":"hullo"', 1))
    code, shown = judged(test)
    assert code == 1
    assert "assert said == 'hellohellohello'" in shown


def opened(number: int, session: str) -> Frames:
    return [
        ("client", asked(number, "session/new", cwd="/old/place", mcpServers=[])),
        ("agent", answered(number, sessionId=session)),
    ]


GREETED: Frames = [
    ("client", asked(0, "initialize", protocolVersion=1)),
    ("agent", answered(0, protocolVersion=1, agentCapabilities={})),
]
TURN: Frames = [
    ("client", prompted(2, "go")),
    ("agent", said("one")),
    ("agent", said("two")),
    ("agent", answered(2, stopReason="end_turn")),
]
SIDE_BY_SIDE: Frames = [
    *opened(1, "a"),
    *opened(2, "b"),
    ("client", prompted(3, "slow", "a")),
    ("agent", said("be", "a")),
    ("client", prompted(4, "quick", "b")),
    ("agent", said("done", "b")),
    ("agent", answered(4, stopReason="end_turn")),
    ("agent", said("gun", "a")),
    ("agent", answered(3, stopReason="max_tokens")),
]


def written(folder: Path, frames: Frames, *flags: str) -> tuple[Ran, Path, Path]:
    """What is said when a test is made of these frames, the recording and the test."""
    file, test = folder / "a-bug.jsonl", folder / "test_bug.py"
    file.write_bytes(first_line() + b"".join(map(entry_line, recording(*GREETED, *frames))))
    return run("replay", str(file), "--as-test", str(test), *flags, home=folder), file, test


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_turns_that_ran_side_by_side_do_so_in_the_test(tmp_path: Path) -> None:
    ran, file, test = written(tmp_path, SIDE_BY_SIDE)
    assert ran.code == 0, ran.err
    text = test.read_text()
    assert text.index("turn_1 = session_1.prompt('quick')") < text.index("await turn_0")
    assert ("'begun'" in text, "'max_tokens'" in text) == (True, True)
    code, shown = judged(test)
    assert code == 0, shown

    change(file, '"text":"gun"', '"text":"gan"')
    code, shown = judged(test)
    assert (code, "assert said == 'begun'" in shown) == (1, True), shown


@pytest.mark.parametrize("more", [[], [("agent", answered(2, stopReason="end_turn"))], [("agent", said("three"))]])
def test_a_turn_that_never_ends_is_open_in_the_test(more: Frames, tmp_path: Path) -> None:
    ran, file, test = written(tmp_path, [*opened(1, "s"), *TURN[:-1]])
    assert ran.code == 0, ran.err
    frames = recording(*GREETED, *opened(1, "s"), *TURN[:-1], *more)
    file.write_bytes(first_line() + b"".join(map(entry_line, frames)))
    code, shown = judged(test)
    assert (code, "AssertionError" in shown) == ((1, True) if more else (0, False)), shown


def test_a_session_that_was_never_prompted_is_opened_in_the_test(tmp_path: Path) -> None:
    ran, file, test = written(tmp_path, opened(1, "s"))
    assert ran.code == 0, ran.err
    assert judged(test)[0] == 0

    change(file, '"result":{"sessionId":"s"}', '"error":{"code":-32000,"message":"no"}')
    assert judged(test)[0] == 1


def test_a_session_that_was_refused_is_refused_in_the_test(tmp_path: Path) -> None:
    refused: dict[str, Any] = {"id": 1, "error": {"code": -32603, "message": "no"}}
    ran, file, test = written(tmp_path, [opened(1, "s")[0], ("agent", refused)])
    assert ran.code == 0, ran.err
    code, shown = judged(test)
    assert code == 0, shown

    change(file, '"error":{"code":-32603,"message":"no"}', '"result":{"sessionId":"s"}')
    assert judged(test)[0] == 1


def test_a_recording_that_opens_no_session_is_refused(tmp_path: Path) -> None:
    ran, _, test = written(tmp_path, [])
    assert (ran.code, "opens no session" in ran.err, test.exists()) == (65, True, False)


def test_the_test_ends_where_a_program_cannot_do_what_was_recorded(tmp_path: Path) -> None:
    frames: Frames = [*opened(1, "s"), *TURN, ("client", prompted(3, "go on", "loaded"))]
    ran, _, test = written(tmp_path, frames)
    assert ran.code == 0, ran.err
    assert "before frame 9 (client: session/prompt 'go on'): its session was not opened" in ran.err
    assert ran.err.splitlines()[0].removeprefix("turnwire: ") in test.read_text()
    assert judged(test)[0] == 0


def test_the_test_plays_with_the_flags_that_it_was_written_with(tmp_path: Path) -> None:
    flags = ("--chaos", "stall", "--seed", "7", "--match", "order", "--timing", "x1000")
    ran, _, test = written(tmp_path, [*opened(1, "s"), *TURN], *flags)
    assert ran.code == 0, ran.err
    assert '"--match", "order", "--timing", "x1000", "--chaos", "stall", "--seed", "7"]' in test.read_text()
    code, shown = judged(test)
    assert code == 0, shown

    change(test, '"--chaos", "stall", ', "")
    assert judged(test)[0] == 1


def test_what_does_not_fit_the_flags_is_told_and_not_written(tmp_path: Path) -> None:
    frames: Frames = [*opened(1, "s"), ("client", asked(9, "session/set_mode", sessionId="s", modeId="x")), *TURN]
    ran, _, test = written(tmp_path, frames, "--match", "strict")
    assert (ran.code, test.exists()) == (65, False)
    assert "session/set_mode" in ran.err


@pytest.mark.parametrize(("flags", "says"), [((), "is there already"), (("--break-at", "3"), "a test has nobody")])
def test_a_file_that_is_there_is_kept_and_a_break_is_refused(
    flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "test_bug.py").write_text("mine")
    ran, _, test = written(tmp_path, [*opened(1, "s"), *TURN], *flags)
    assert (ran.code, test.read_text()) == (2, "mine")
    assert says in ran.err
