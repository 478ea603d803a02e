"""A program with the client SDK that counts the updates of one turn and prints its time and CPU as JSON.

Its arguments are the number of chunks and the agent's command.
"""

from __future__ import annotations

import json
import sys
import time

import anyio

import turnwire
from turnwire.client import Update


async def main(chunks: str, *agent: str) -> None:
    heard = 0

    def count(update: Update) -> None:
        nonlocal heard
        heard += 1

    async with turnwire.connect(agent) as client:
        session = await client.new_session("/")
        session.on_update(count)
        await session.prompt("burst 0")
        begun, cpu = time.perf_counter(), time.process_time()
        await session.prompt(f"burst {chunks}")
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"heard": heard, "seconds": seconds, "cpu": cpu}), flush=True)


anyio.run(main, sys.argv[1], *sys.argv[2:])
