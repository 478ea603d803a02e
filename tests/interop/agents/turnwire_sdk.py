"""An agent on turnwire's own SDK, for every version of ACP. Runs as a program.

Its argument is the folder where it stores its sessions. It executes the first word of a prompt; `words.md` in this
folder lists the words, of which it supports `edit` and `wait`.
"""

from __future__ import annotations

import sys

import anyio

from turnwire.agent import Agent, FolderStore, Turn

agent = Agent("turnwire-sdk", version="1", store=FolderStore(sys.argv[1]))


@agent.prompt
async def answer(turn: Turn) -> None:
    match turn.text.split(" ", 1)[0]:
        case "edit":
            async with turn.tool("Edit a file", kind="edit") as call:
                is_allowed = bool(await turn.ask(call))
            turn.say("edited" if is_allowed else "left alone")
        case "wait":
            turn.say("waiting")
            await anyio.sleep_forever()
        case _:
            for piece in ("You said: ", turn.text, "."):
                turn.say(piece)


if __name__ == "__main__":
    agent.run()
