"""Where the daemon's time goes, as flame graphs: one of a burst, one of a thousand turns.

Takes a folder; writes `burst.svg` and `turns.svg` into it, to be opened in a browser. A function is as wide as the
share of the samples in which it was running or waited for what it had called; threads that wait are left out.
py-spy takes the samples from outside, so the daemon runs as it always does. It must be allowed to look into another
process: as root, or where `kernel.yama.ptrace_scope` is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.acp_client import Stream as Counter
from bench.daemon_http import WAIT_S, Connection, Stream
from bench.daemon_targets import TURNWIRE, Running, running
from bench.daemon_turns import END, create, prompt

TURNS = 1_000
CHUNKS = 100_000
BURSTS = 5
RATE = 1_000
"""Samples a second."""


async def burst(daemon: Running) -> None:
    """Long turns to one subscriber."""
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stream = await Counter.open(daemon.port, daemon.events(session_id))
    for _ in range(BURSTS):
        stream.begin()
        await prompt(connection, daemon.prompt(session_id, f"burst {CHUNKS}"))
        await stream.until(lambda: stream.chunks >= CHUNKS)
    stream.close()
    connection.close()


async def turns(daemon: Running) -> None:
    """Turns of one chunk, one after the other."""
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    ended = asyncio.Event()

    def heard(came: bytes, at: float) -> None:
        if END in came:
            ended.set()

    stream = await Stream.open(daemon.port, daemon.events(session_id), heard)
    for _ in range(TURNS):
        ended.clear()
        await prompt(connection, daemon.prompt(session_id, "one"))
        await asyncio.wait_for(ended.wait(), WAIT_S)
    stream.close()
    connection.close()


@contextmanager
def sampled(pid: int, path: Path, title: str) -> Generator[None]:
    """Samples of a process while the block runs, drawn when it ends."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
    options = ["--rate", str(RATE), "--output", str(path), "--pid", str(pid), "--threads", "--nonblocking"]
    sampling = subprocess.Popen([program, "record", *options], stderr=subprocess.PIPE)
    try:
        # It says so on its first lines when it cannot; it says nothing once it samples.
        yield
    finally:
        sampling.send_signal(signal.SIGINT)
        _, said = sampling.communicate(timeout=WAIT_S)
    if sampling.returncode or not path.exists():
        sys.exit(f"py-spy could not look into the daemon: {said.decode(errors='replace').strip()[-500:]}")
    print(f"{title}: {path}")


def draw(measure: Callable[[Running], Coroutine[Any, Any, None]], path: Path) -> None:
    with running(TURNWIRE) as daemon, sampled(daemon.pid, path, measure.__name__):
        uvloop.run(measure(daemon))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make flame", description="Draw where the daemon's time goes.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/flame"))
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for measure in (burst, turns):
        draw(measure, folder / f"{measure.__name__}.svg")


if __name__ == "__main__":
    main()
