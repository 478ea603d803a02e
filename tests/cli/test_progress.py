"""Long-running work: a terminal shows the progress, and nothing else is written anywhere."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from tests.cli.rig import PROGRAM, WAIT_S, Served, environment


def on_terminal_stderr(words: list[str], home: Path, env: dict[str, str]) -> tuple[bytes, str]:
    """Return a command's output, which is a pipe, and its errors, which are a terminal."""
    near, far = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [*PROGRAM, *words],
        cwd=home,
        env=environment(home, **env) | {"TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=far,
    ) as process:
        os.close(far)
        assert process.stdout is not None
        out = process.stdout.read()
        process.wait(WAIT_S)
        while True:
            try:
                shown += os.read(near, 65536)
            except OSError:
                break
    os.close(near)
    return out, shown.decode(errors="replace")


WAYS = [
    (["export", "SESSION"], "exporting"),
    (["export", "SESSION", "-o", "out.ndjson"], "exporting"),
    (["doctor", "--json", "--port", "0", "--", "false"], "trying the agent false"),
]


@pytest.mark.parametrize(("words", "said"), WAYS, ids=["export", "export-o", "doctor"])
def test_a_terminal_sees_what_is_done_and_the_output_stays_clean(
    words: list[str], said: str, daemon: Served
) -> None:
    session = daemon.session()
    daemon.said(session, "say 2000 word")
    words = [session if each == "SESSION" else each for each in words]

    out, shown = on_terminal_stderr(words, daemon.home, daemon.env)

    assert said in shown
    assert said.encode() not in out
    assert b"\x1b" not in out
    without = daemon.run(*words)
    assert said not in without.err
    if "-o" not in words:
        assert len(without.out.splitlines()) == len(out.splitlines())
