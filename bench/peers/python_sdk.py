"""The stdio measurement with the official Python SDK. Runs in `.peers/py-v1`; takes the agent's command."""
# The SDK lives in an environment of its own, so the types of what is imported are not known here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import sys

import acp
from measure import Measure


class Counter(acp.Client):
    """Counts what it hears."""

    heard = 0

    async def session_update(self, session_id, update, **kwargs) -> None:
        self.heard += 1


async def main() -> None:
    counter = Counter()
    async with acp.spawn_agent_process(counter, *sys.argv[1:]) as (agent, _):
        await agent.initialize(protocol_version=1)
        session = await agent.new_session(cwd="/", mcp_servers=[])
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("ready?")])
        measure = Measure()
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("go")])
        measure.report(counter.heard)


asyncio.run(main())
