"""A program that tries to outlive its guard: `fleeing_program.py NOTE HOW THEN`.

It leaves a process in a session of its own, deaf to every polite signal and under no parent; undoes what the kernel
would do to it when its parent ends; writes the numbers of its guard, itself and that process to NOTE; and then ends
(`kill`) or stops (`stop`) its guard. THEN it ends itself (`exit`) or goes on (`stay`). As an agent (a fourth
argument `agent`) it does so when it is prompted.
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
    os.kill(guard, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
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
