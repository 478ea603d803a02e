"""An agent in a separate process, for `test_connection_process.py`."""

from __future__ import annotations

import sys

import anyio

from turnwire.agent import Agent, Turn

agent = Agent("talking", version="1.0")


@agent.prompt
async def answer(turn: Turn) -> None:
    print("this must not be on the wire")  # noqa: T201  an author's careless print
    if turn.text == "stdin":
        turn.say(repr(sys.stdin.read()))
    turn.say("begun ")
    if turn.text == "hang":
        try:
            await anyio.sleep_forever()
        finally:
            turn.say("stopped")
    async with turn.tool("Delete", kind="delete") as call:
        if await turn.ask(call):
            call.say("gone")


if __name__ == "__main__":
    agent.run()
