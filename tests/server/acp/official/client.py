"""A conversation as a client on the official Python SDK, ACP v1. Runs in the SDK's own environment.

Its arguments are the address of `/acp`, a token, a working directory, and `http` or `ws`; it prints the received
updates as one line of JSON. The SDK's environment has no compatible HTTP client, so `PYTHONPATH` provides one.
"""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import acp
from acp.http import create_http_stream
from acp.schema import AllowedOutcome, RequestPermissionResponse, TextContentBlock
from acp.ws import create_websocket_stream

URL, TOKEN, CWD, CARRIER = sys.argv[1:]


class Client(acp.Client):
    """A client that allows everything, and stores the text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.came = asyncio.Condition()
        self.agent: Any = None

    async def open(self) -> Client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if CARRIER == "http":
            stream = create_http_stream(URL, headers=headers)
        else:
            stream = await create_websocket_stream(URL.replace("http", "ws", 1), headers=headers)
        self.agent = acp.connect_to_agent(self, stream)
        await self.agent.initialize(protocol_version=1)
        return self

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if update.session_update == "agent_message_chunk":
            async with self.came:
                self.texts.append(update.content.text)
                self.came.notify_all()

    async def request_permission(self, options: Any, session_id: str, tool_call: Any, **_: Any) -> Any:
        chosen = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return RequestPermissionResponse(outcome=chosen)

    async def prompt(self, session_id: str, text: str, last: str) -> list[str]:
        """Return the stop reason and the text. Handlers may run after the answer, so the last word is
        waited for.
        """
        self.texts.clear()
        block = TextContentBlock(type="text", text=text)
        answer = await self.agent.prompt(session_id=session_id, prompt=[block])
        await self.until(last)
        return [answer.stop_reason, *self.texts]

    async def until(self, text: str) -> None:
        async with self.came:
            await self.came.wait_for(lambda: text in self.texts)


async def main() -> None:
    heard: dict[str, Any] = {}
    first = await Client().open()
    session_id = (await first.agent.new_session(cwd=CWD, mcp_servers=[])).session_id
    heard["turn"] = await first.prompt(session_id, "say 2 hi\nask t1 allow_once,reject_once", "selected allow_once")
    running = asyncio.ensure_future(first.prompt(session_id, "say 1 running\nnever", "running"))
    await first.until("running")
    await first.agent.cancel(session_id=session_id)
    heard["cancelled"] = await running
    second = await Client().open()
    await second.agent.load_session(cwd=CWD, session_id=session_id, mcp_servers=[])
    await second.until("running")
    heard["loaded"] = list(second.texts)
    heard["again"] = await second.prompt(session_id, "say 1 a\nsay 1 last", "last")
    sys.stdout.write(json.dumps(heard) + "\n")
    await second.agent.close()
    await first.agent.close()


asyncio.run(asyncio.wait_for(main(), 60))
