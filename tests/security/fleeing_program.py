"""A program that tries to outlive its guard: `fleeing_program.py NOTE HOW THEN`.

It leaves a process in a separate session, deaf to every catchable signal and without a parent; undoes the kernel's
action for the end of its parent; writes the process ids of its guard, itself and that process to NOTE; and then
ends (`kill`) or stops (`stop`) its guard, or ends it after reporting in its name that nothing remains (`forge`).
THEN it ends itself (`exit`) or continues (`stay`). As an agent (a fourth argument `agent`) it does so when it is
prompted.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def flee(note: Path, how: str, then: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    reading, writing = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.write(writing, str(os.getpid()).encode())
            for stream in (0, 1, 2):
                os.close(stream)
            wait()
        os._exit(0)
    os.wait()
    left = os.read(reading, 64).decode()
    guard = os.getppid()
    unfinished = note.with_suffix(".part")
    unfinished.write_text(f"{guard} {os.getpid()} {left}")
    unfinished.rename(note)
    if how == "forge":
        status = Path(f"/proc/{guard}/cmdline").read_bytes().split(b"\0")[5].decode()
        Path(f"/proc/{guard}/fd/{status}").write_bytes(b'{"gone": 0, "left": 0}\n')
    os.kill(guard, signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    if then == "exit":
        os._exit(0)


def wait() -> None:
    while True:
        signal.pause()


def serve(note: Path, how: str, then: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "session/prompt":
            flee(note, how, then)
            wait()
        results = {"initialize": {"protocolVersion": 1}, "session/new": {"sessionId": "a1"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": results.get(method, {})}
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    given = (Path(sys.argv[1]), *sys.argv[2:4])
    if sys.argv[4:]:
        serve(*given)
    else:
        flee(*given)
        wait()
