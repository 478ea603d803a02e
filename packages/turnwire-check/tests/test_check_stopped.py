"""`turnwire check` that is stopped by a signal ends, and so does every process that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from turnwire_testing.patience import WAIT_S

LATER_S = 600
"""Processes that no test waits for."""
STUCK_AGENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").close()
time.sleep(600)
"""
STUCK_CLIENT = """
import subprocess, sys, time
agent = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
agent.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\\n')
agent.stdin.flush()
agent.stdout.readline()
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment, and are no zombies."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                is_alive = " Z " not in (each / "stat").read_text().rpartition(")")[2][:3]
                if is_alive and f"CHECK_MARK={mark}".encode() in (each / "environ").read_bytes():
                    found.append(int(each.name))
            except OSError:
                continue
    return found


def until(condition: Callable[[], object], what: str) -> None:
    last = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < last, what
        Event().wait(0.02)


@pytest.mark.full("starts commands and kills them")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("judged", ["agent", "client"])
def test_a_signal_leaves_no_process_behind(judged: str, number: signal.Signals, tmp_path: Path) -> None:
    started, program = tmp_path / "started", tmp_path / "program.py"
    program.write_text(STUCK_AGENT if judged == "agent" else STUCK_CLIENT)
    words = [sys.executable, "-m", "turnwire", "check", "--patience", str(LATER_S)]
    words += ["--case", "v1.turn.ends"] if judged == "agent" else ["--client", "--case", "client.new.cwd"]
    behind = [sys.executable, str(program), str(started), *(["{agent...}"] if judged == "client" else [])]
    mark = f"{judged}-{number}-{os.getpid()}"
    check = subprocess.Popen([*words, "--", *behind], env={**os.environ, "CHECK_MARK": mark})
    try:
        until(started.exists, "the program was not started")
        assert len(marked(mark)) > 2
        check.send_signal(number)
        assert check.wait(WAIT_S) == 128 + number
        until(lambda: not marked(mark), "something was left behind")
    finally:
        check.kill()
        for each in marked(mark):
            os.kill(each, signal.SIGKILL)
