"""A daemon in a separate process, for tests that measure it: its memory and its time include nothing else.

As a program: serves the log in a folder until its input ends, prints one line of JSON once it listens, and submits
a prompt for each line it reads. For tests: `serving` runs that program.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.server.reading import WAIT_S, open_session, prompt
from tests.support.daemons import TOKEN, running_daemon

from turnwire.limits import Limits
from turnwire.server.listener import run

ROOT = Path(__file__).resolve().parents[2]


class Serving(NamedTuple):
    """A daemon with one session in another process."""

    url: str
    session_id: str
    pid: int
    process: Process

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    @property
    def path(self) -> str:
        return f"/session/{self.session_id}/events"

    async def prompt(self, text: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(msgspec.json.encode(text) + b"\n")

    def memory_mb(self) -> float:
        """Return the current memory of the daemon's process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize() / 2**20


def more_files() -> None:
    """Raise the limit of open files: a socket is a file, and the usual limit is 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@asynccontextmanager
async def serving(data: Path) -> AsyncGenerator[Serving]:
    """Run this file as a program."""
    command = [sys.executable, "-m", "tests.server.serving", str(data)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    async with await anyio.open_process(command, stderr=None, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        with anyio.fail_after(WAIT_S):
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65_536)
        told: dict[str, Any] = json.loads(line)
        try:
            yield Serving(told["url"], told["session"], told["pid"], process)
        finally:
            assert process.stdin is not None
            await process.stdin.aclose()
            with anyio.move_on_after(WAIT_S, shield=True):
                await process.wait()


async def main() -> None:
    more_files()
    async with running_daemon(Path(sys.argv[1]), limits=Limits()) as running:
        session_id = await open_session(running)
        told = {"url": running.url, "session": session_id, "pid": os.getpid()}
        os.write(1, msgspec.json.encode(told) + b"\n")
        number = 0
        async for line in anyio.wrap_file(sys.stdin):
            number += 1
            await prompt(running, session_id, msgspec.json.decode(line), f"p{number}")


if __name__ == "__main__":
    run(main)
