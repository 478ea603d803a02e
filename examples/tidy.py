"""An agent with a tool that asks first. Try it: turnwire serve -- python examples/tidy.py"""

from turnwire.agent import Agent, Turn

agent = Agent("tidy", version="1.0")


@agent.prompt
async def answer(turn: Turn) -> None:
    async with turn.tool("Delete build/", kind="delete") as call:
        if await turn.ask(call):
            await turn.run("rm", "-rf", "build", call=call)
    turn.say("Done.")


if __name__ == "__main__":
    agent.run()
