"""The first thing to try: prompt an agent, print what it says as it says it, and how the turn ended.

Give it a command, `python examples/prompt.py my-agent --flag`; without one it takes the scripted agent.
"""

from __future__ import annotations

import sys

import anyio

import turnwire

AGENT = sys.argv[1:] or [sys.executable, "-m", "turnwire.testing.agent"]


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
