"""The offline agent: an `Agent` of the SDK with fixed answers, slash commands and demonstrations."""

from __future__ import annotations

from pathlib import Path

from turnwire import __version__
from turnwire.agent import Agent, AgentOptions, FolderStore, MemoryStore, Session, Turn
from turnwire.clock import Clock, SystemClock
from turnwire.demo.answers import CAN, CONFIGURE, NO_MODEL, answer
from turnwire.demo.demonstrations import StopReason, play
from turnwire.demo.tools import ASK, MODE_IDS, MODES
from turnwire.errors import AgentFailure

NAME = "turnwire-agent"
TITLE_LENGTH = 60
BEGUN = "begun"
"""Key in the session's state, set when the session is opened for the first time."""
COMMANDS = {
    "help": "Say what this agent can do",
    "model": "Say how to configure a model",
    "mode": "Show the modes, or choose one",
    "demo": "Show what an agent can do",
}


def demo_agent(data: Path | None = None, mode: str = ASK.id, clock: Clock | None = None) -> Agent:
    """Return the offline agent.

    Args:
        data: Folder in which sessions are stored; without one they are kept in memory.
        mode: Mode of new sessions.
        clock: Clock for demonstrations that wait.
    """
    store = MemoryStore() if data is None else FolderStore(data)
    options = AgentOptions(image=True, embedded_context=True)
    agent = Agent(NAME, title="turnwire's own agent", version=__version__, store=store, options=options)

    @agent.opened
    def opened(session: Session) -> None:
        session.modes = MODES
        if not session.state.get(BEGUN):
            session.state[BEGUN] = True
            session.mode = mode

    @agent.prompt
    async def prompt(turn: Turn) -> None:
        if turn.session.title is None:
            turn.session.title = _title(turn.text)
        await answer(turn)

    @agent.command("help", COMMANDS["help"])
    async def show_help(turn: Turn, arguments: str) -> None:
        lines = [f"- `/{name}`: {about}" for name, about in COMMANDS.items()]
        await turn.say("\n\n".join(["Commands:\n\n" + "\n".join(lines), NO_MODEL, CAN, CONFIGURE]))

    @agent.command("model", COMMANDS["model"])
    async def show_model(turn: Turn, arguments: str) -> None:
        await turn.say(f"{NO_MODEL}\n\n{CONFIGURE}")

    @agent.command("mode", COMMANDS["mode"], hint="ask, accept_edits, plan, or nothing")
    async def choose_mode(turn: Turn, arguments: str) -> None:
        await _choose_mode(turn, arguments.strip())

    @agent.command("demo", COMMANDS["demo"], hint="a demonstration, or nothing for the list")
    async def demo(turn: Turn, arguments: str) -> StopReason | None:
        return await play(agent, clock or SystemClock(), turn, arguments)

    return agent


async def _choose_mode(turn: Turn, wanted: str) -> None:
    if not wanted:
        lines = [f"- `{each.id}`: {each.description}" for each in MODES]
        await turn.say(f"The mode is `{turn.session.mode}`. There are:\n\n" + "\n".join(lines))
        return
    if wanted not in MODE_IDS:
        raise AgentFailure(f"there is no mode {wanted!r}; there are: {', '.join(MODE_IDS)}", jsonrpc=-32602)
    turn.session.mode = wanted
    await turn.say(f"The mode is `{wanted}` now.")


def _title(text: str) -> str | None:
    """Return the first line of a prompt, cut at a word."""
    line = " ".join(next((each for each in text.splitlines() if each.strip()), "").split())
    if len(line) > TITLE_LENGTH:
        line = line[: TITLE_LENGTH - 1].rsplit(" ", 1)[0] + "…"
    return line or None
