"""Shared code of both Python clients: their transports to turnwire, their records, and their tour.

The command line has JSON: `transport` (stdio, http or websocket), `command` or `url` and `token`, `cwd`, and three
`prompts`: one that asks for a permission, one that sends `waiting` and waits, and one for the second connection.
Prints JSON at the end: for each connection, the frames in both directions and the number of updates that the SDK
passed to the client.
"""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager

from acp.http.client import create_http_stream
from acp.transports import spawn_stdio_transport
from acp.ws.client import create_websocket_stream

GIVEN = json.loads(sys.argv[1])


def allowing(options) -> str:
    """Return the option that a user would select."""
    return next(each.option_id for each in options if each.kind == "allow_once")


class Noted:
    """Sent and received frames of one connection."""

    def __init__(self) -> None:
        self.frames: list[list] = []
        self.texts: list[str] = []
        self.handled = 0
        self.ends = 0
        self.messages: dict[str, int] = {}
        """Number of completed turns at the beginning of each message."""
        self._more = asyncio.Event()

    def observe(self, event) -> None:
        """The SDK shows every message."""
        self.frames.append([event.direction.value == "incoming", event.message])
        self.wake()

    def handle(self, update) -> None:
        """The SDK has understood an update."""
        self.handled += 1
        text = getattr(getattr(update, "content", None), "text", None)
        if text is not None:
            self.texts.append(text)
        if getattr(update, "state", None) == "idle" and getattr(update, "stop_reason", None) is not None:
            self.ends += 1
        message_id = getattr(update, "message_id", None)
        if message_id is not None:
            self.messages.setdefault(message_id, self.ends)
        self.wake()

    def is_over(self, message_id: str) -> bool:
        """Return True if the turn of this message has ended. A replayed end comes before it."""
        return self.ends > self.messages.get(message_id, self.ends)

    def wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def until(self, found) -> None:
        async with asyncio.timeout(60):
            while not found():
                await self._more.wait()

    def is_settled(self) -> bool:
        """Every update that came was handed over, but for the one that the SDK does not know."""
        return self.handled == sum(came and is_known(each) for came, each in self.frames)


def is_known(message) -> bool:
    """Return True for an update of a kind that the SDK knows. It logs and drops any other."""
    if message.get("method") != "session/update":
        return False
    return message["params"]["update"]["sessionUpdate"] != "turn_complete"


@asynccontextmanager
async def transport():
    """Return the ends of a new connection in the SDK's form."""
    if GIVEN["transport"] == "stdio":
        async with spawn_stdio_transport(*GIVEN["command"], stderr=None, shutdown_timeout=30) as (
            reader,
            writer,
            _,
        ):
            yield writer, reader
        return
    headers = {"Authorization": f"Bearer {GIVEN['token']}"}
    if GIVEN["transport"] == "http":
        stream = create_http_stream(GIVEN["url"], headers=headers)
    else:
        stream = await create_websocket_stream(GIVEN["url"], headers=headers)
    try:
        yield (stream,)
    finally:
        await stream.close()


async def tour(connected) -> None:
    """The tour. `connected` opens a client on a transport's ends and shakes hands."""
    noted: list[Noted] = []

    @asynccontextmanager
    async def dial():
        noted.append(Noted())
        async with transport() as ends:
            client = await connected(noted[-1], *ends)
            yield client
            await client.noted.until(client.noted.is_settled)
            await client.connection.close()

    async with dial() as client:
        session = await client.new(GIVEN["cwd"])
        await client.prompt(session, GIVEN["prompts"][0])
        waiting = asyncio.ensure_future(client.prompt(session, GIVEN["prompts"][1]))
        await client.noted.until(lambda: "waiting" in client.noted.texts)
        await client.cancel(session)
        await waiting
    async with dial() as client:
        await client.restore(session, GIVEN["cwd"])
        await client.prompt(session, GIVEN["prompts"][2])
    sys.stdout.write(json.dumps([{"frames": each.frames, "handled": each.handled} for each in noted]))
