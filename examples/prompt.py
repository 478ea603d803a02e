"""Prompt an agent, stream its answer, and print how the turn ended.

Usage: `python examples/prompt.py my-agent --flag`; without a command it uses the scripted agent.
"""

from __future__ import annotations

import sys

import anyio

import turnwire

AGENT = sys.argv[1:] or [sys.executable, "-m", "turnwire_testing.agent"]


async def main() -> None:
    async with turnwire.connect(AGENT) as client:
        session = await client.new_session(".")
        turn = session.prompt("hello")
        async for update in turn:
            sys.stdout.write(update.text)
        result = await turn
        sys.stdout.write(f"\n{result.stop_reason}\n")
        assert result.text == "".join([update.text async for update in turn]), "a second loop sees the same"
        assert result.stop_reason == "end_turn"


anyio.run(main)
