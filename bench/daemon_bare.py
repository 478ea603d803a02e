"""What no daemon can avoid, measured alone: a sync of the disk, and a pipe from the agent.

Each function gives the rows with which it is to be compared. The third of these, a server that only writes, is a
program of its own (`bench/peers/bare_sse.py`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec

from bench.daemon_http import WAIT_S
from bench.daemon_table import Found
from bench.daemon_targets import AGENT
from bench.daemon_turns import STAMPS, Stamps, spread

SYNCS = 400
PAGE_BYTES = 4096


def bare_sync(row: str) -> Found:
    """A prompt that was accepted is on the disk: a page at the end of a file, and the disk's word for it."""
    spent: list[float] = []
    with tempfile.NamedTemporaryFile(prefix="bench-") as file:
        for _ in range(SYNCS):
            begun = time.perf_counter()
            os.write(file.fileno(), bytes(PAGE_BYTES))
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - begun)
    return spread(row, spent)


class _Pipe(asyncio.SubprocessProtocol):
    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._stamps.heard(data, 0.0)


async def bare_delay() -> Found:
    """The same chunks, with nothing but a pipe between the agent and the reader."""
    stamps = Stamps()
    transport, _ = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Pipe(stamps), sys.executable, str(AGENT), stderr=subprocess.DEVNULL
    )
    params = {"sessionId": "bench-1", "prompt": [{"type": "text", "text": f"stamp {STAMPS}"}]}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params}
    stdin: Any = transport.get_pipe_transport(0)
    stdin.write(msgspec.json.encode(asked) + b"\n")
    await asyncio.wait_for(stamps.all_here.wait(), WAIT_S)
    transport.close()
    return stamps.found()
