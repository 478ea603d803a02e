"""An agent written with the agent SDK: the object under test, which a raw client uses over its pipes.

The prompt decides a turn's actions. The agent receives ready like its author would, and reports it.
"""

from __future__ import annotations

from typing import Any

import anyio

from turnwire.agent import Agent, Command, Session, Turn
from turnwire.errors import AgentFailure

agent = Agent("literal", version="1.0")
declared: Any = agent


@agent.opened
async def opened(session: Session) -> None:
    session.commands = [Command("plan", "Make a plan")]

    async def tell() -> None:
        session.notify({"sessionUpdate": "session_info_update", "title": "early news"})

    session.background(tell)


@declared.ready
async def ready(session: Session, how: str) -> None:
    session.notify({"sessionUpdate": "session_info_update", "title": f"the author heard: {how}"})


@agent.prompt
async def answer(turn: Turn) -> None:
    match turn.text:
        case "ask":
            async with turn.tool("Delete it", kind="delete") as call:
                turn.say("yes" if await turn.ask(call) else "no")
        case "wait":
            async with turn.tool("Wait", kind="other"):
                turn.say("waiting")
                await anyio.sleep_forever()
        case "fail":
            turn.say("so far")
            raise AgentFailure("the model is gone")
        case "aside":
            turn.say("in the turn")

            async def tell() -> None:
                content = {"type": "text", "text": "aside"}
                turn.session.notify({"sessionUpdate": "agent_message_chunk", "content": content})

            turn.session.background(tell)
        case _:
            turn.say("Done.")
            turn.usage(input_tokens=7, output_tokens=5)


if __name__ == "__main__":
    agent.run()
