"""The stdio measurement with turnwire's client. Takes the agent's command."""

from __future__ import annotations

import sys

import anyio

import turnwire
from bench.peers.measure import Measure
from turnwire.client import Update


async def main() -> None:
    heard = 0

    def count(update: Update) -> None:
        nonlocal heard
        heard += 1

    async with turnwire.connect(sys.argv[1:]) as client:
        session = await client.new_session("/")
        session.on_update(count)
        await session.prompt("ready?")
        measure = Measure()
        await session.prompt("go")
        measure.report(heard)


anyio.run(main)
