"""Messages per second from one agent process over stdio to a client that counts them: ours and the official SDKs.

Takes a number of chunks; prints one table. Every client is a program of its own and gets the same agent, which
writes chunks that were encoded beforehand. The clients take turns, several times; the fastest run of each counts,
because the slower ones shared the machine with somebody. A peer that is not installed is skipped, and its row says
why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".peers"
PROGRAMS = Path(__file__).parent / "peers"
CHUNKS = 20_000
ROUNDS = 3
TIMEOUT_S = 120


class Client(NamedTuple):
    """A client program."""

    name: str
    command: tuple[str, ...]
    needs: Path | None = None

    @property
    def missing(self) -> str | None:
        """Why it cannot run here."""
        if self.needs is not None and not self.needs.exists():
            return f"skipped: {self.needs.relative_to(ROOT)} is not there; run: make peers"
        if shutil.which(self.command[0]) is None:
            return f"skipped: the program {self.command[0]!r} is not on PATH"
        return None


class Numbers(msgspec.Struct):
    """What a client program prints."""

    heard: int
    seconds: float
    cpu: float
    rss_mb: float


CLIENTS = (
    Client("turnwire", (sys.executable, "-m", "bench.peers.ours")),
    Client(
        "Python SDK 0.12.1",
        (str(PEERS / "py-v1" / "bin" / "python"), str(PROGRAMS / "python_sdk.py")),
        PEERS / "py-v1" / ".installed",
    ),
    Client(
        "TypeScript SDK 2.4.0",
        (
            "node",
            "--preserve-symlinks",
            "--preserve-symlinks-main",
            str(PEERS / "node" / "bench" / "typescript_sdk.mjs"),
        ),
        PEERS / "node" / ".installed",
    ),
)


def run(client: Client, chunks: int, env: Mapping[str, str] = {}) -> Numbers:
    """What one client says of itself; `env` is what it gets beside our own environment."""
    agent = [sys.executable, str(PROGRAMS / "agent.py"), str(chunks)]
    done = subprocess.run(
        [*client.command, *agent],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=True,
    )
    numbers = msgspec.json.decode(done.stdout, type=Numbers)
    assert numbers.heard == chunks, f"{client.name} heard {numbers.heard} of {chunks}"
    return numbers


def main(chunks: int = CHUNKS) -> None:
    present = [client for client in CLIENTS if client.missing is None]
    runs: dict[str, list[Numbers]] = {client.name: [] for client in present}
    for _ in range(ROUNDS):
        for client in present:
            runs[client.name].append(run(client, chunks))
    best = {name: min(each, key=lambda numbers: numbers.seconds) for name, each in runs.items()}
    ours = best["turnwire"]
    print(f"{chunks} chunks from one agent process over stdio; fastest of {ROUNDS} runs each")
    print(f"{'':24}{'messages/s':>12}{'ours is':>10}{'CPU s':>9}{'ours is':>10}{'peak MB':>10}")
    for client in CLIENTS:
        if client.missing is not None:
            print(f"{client.name:24}{client.missing}")
            continue
        numbers = best[client.name]
        print(
            f"{client.name:24}{chunks / numbers.seconds:12,.0f}{numbers.seconds / ours.seconds:8.1f} x"
            f"{numbers.cpu:9.2f}{numbers.cpu / ours.cpu:8.1f} x{numbers.rss_mb:10.1f}"
        )


if __name__ == "__main__":
    main()
