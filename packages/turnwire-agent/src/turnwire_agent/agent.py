"""The agent with a language model: an `Agent` of the SDK, composed of models, tools and commands.

Its data about a session is in that session's state. Of the slash commands only `/compact` calls the model, so the
others work while the model is unavailable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from anyio import to_thread

from turnwire import __version__
from turnwire.agent import Agent, AgentOptions, FolderStore, MemoryStore, Option, Session, Turn
from turnwire.agent.agent import serve_stdio
from turnwire.clock import Clock, SystemClock
from turnwire.demo.demonstrations import play
from turnwire.errors import AgentFailure, ModelFailed
from turnwire.hosting.base import FrameLink
from turnwire_agent.context import KEPT, compact, forget_context, is_nearly_full, usage_words
from turnwire_agent.conversation import Conversation, title_of, user_message
from turnwire_agent.loop import StopReason, failure_of, run_turn
from turnwire_agent.mcp_servers import McpServers
from turnwire_agent.model import Model
from turnwire_agent.permits import ASK, MODE_IDS, MODES
from turnwire_agent.system_prompt import read_notes
from turnwire_agent.tools import Tool
from turnwire_agent.tools.files import Edit, Read, Write
from turnwire_agent.tools.folders import List, Search
from turnwire_agent.tools.plan import UpdatePlan
from turnwire_agent.tools.run import Run
from turnwire_agent.tools.workplace import TurnWorkplace
from turnwire_agent.work import ALLOWED, Bounds, Work

Function: TypeAlias = Callable[[Turn, str], Awaitable[None]]
MODEL = "model"
"""The option that chooses among several models."""


# -- slash commands ------------------------------------------------------------------------------------------


class SlashCommand(NamedTuple):
    """One slash command."""

    name: str
    about: str
    hint: str | None
    run: Callable[[Work, str, tuple[str, ...]], Awaitable[None]]
    """The command's function: its arguments are the turn's work, the text after the command, and the names of all
    models.
    """


async def _help(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    lines = [f"- `/{each.name}`: {each.about}" for each in COMMANDS]
    lines.append("- `/demo`: Show what an agent can do")
    tools = ", ".join(f"`{name}`" for name in work.tools)
    parts = [
        "Commands:\n\n" + "\n".join(lines),
        f"Tools: {tools}",
        f"Mode: `{work.mode}`",
        f"Model: `{work.model.name}`",
    ]
    await work.turn.say("\n\n".join(parts))


async def _model(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    if not arguments:
        names = "\n".join(f"- `{each}`{' (in use)' if each == work.model.name else ''}" for each in models)
        more = "\n\n`/model NAME` changes it." if len(models) > 1 else ""
        await work.turn.say(f"Models:\n\n{names}{more}")
        return
    if arguments not in models:
        raise AgentFailure(f"there is no model {arguments!r}; there are: {', '.join(models)}", jsonrpc=-32602)
    if len(models) > 1:
        work.turn.session.choose(MODEL, arguments)
    await work.turn.say(f"The model is `{arguments}` now.")


async def _mode(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    if not arguments:
        lines = [f"- `{each.id}`: {each.description}" for each in MODES]
        await work.turn.say(f"The mode is `{work.mode}`. There are:\n\n" + "\n".join(lines))
        return
    if arguments not in MODE_IDS:
        raise AgentFailure(f"there is no mode {arguments!r}; there are: {', '.join(MODE_IDS)}", jsonrpc=-32602)
    work.turn.session.mode = arguments
    await work.turn.say(f"The mode is `{arguments}` now.")


async def _clear(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    count = work.conversation.place()
    work.conversation.replace(())
    work.turn.session.state.pop(ALLOWED, None)
    forget_context(work.turn.session.state)
    await work.turn.say(
        f"I have forgotten the conversation ({count} messages) and what you allowed for good. "
        "What you see above is still in the session's log."
    )


async def _compact(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    before = work.conversation.place()
    try:
        is_done = await compact(work)
    except ModelFailed as failed:
        raise failure_of(work.model.name, failed) from None
    now = f"The conversation had {before} messages; now it has {work.conversation.place()}."
    await work.turn.say(now if is_done else KEPT)


async def _usage(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    await work.turn.say(usage_words(work.turn.session.state, work.model.context_size))


COMMANDS = (
    SlashCommand("help", "Say what this agent can do", None, _help),
    SlashCommand("model", "Show the models, or choose one", "a model's name, or nothing", _model),
    SlashCommand("mode", "Show the modes, or choose one", "ask, accept_edits, plan, or nothing", _mode),
    SlashCommand("clear", "Forget the conversation", None, _clear),
    SlashCommand("compact", "Make the conversation shorter", None, _compact),
    SlashCommand("usage", "Show the tokens that were used", None, _usage),
)
"""All but `/demo`, which is the agent's."""


NAME = "turnwire-agent"
LOST = "lost_servers"
"""Key in a session's state: the lost MCP servers that were reported to its user."""
BEGUN = "begun"
"""In a session's state once it was opened for the first time."""


# -- the agent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The agent's user settings."""

    data: Path | None = None
    """Folder of the stored sessions; None stores them in memory."""
    rules: str | None = None
    """A text that replaces the agent's default rules."""
    allows_fetch: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    mode: str = ASK.id
    """The mode of new sessions."""


class ModelAgent:
    """The functions that implement the agent. `agent` is the object to serve."""

    def __init__(
        self, models: Sequence[Model], settings: AgentSettings | None = None, clock: Clock | None = None
    ) -> None:
        self._models = {each.name: each for each in models}
        self._settings = settings or AgentSettings()
        self._tools = offered_tools(fetch=self._settings.allows_fetch)
        self._servers: dict[str, McpServers] = {}
        self._running: dict[str, Work] = {}
        """The turns that ask a model now, by their sessions."""
        self.agent = agent = Agent(
            NAME,
            title="turnwire's own agent",
            version=__version__,
            store=MemoryStore() if self._settings.data is None else FolderStore(self._settings.data),
            options=AgentOptions(
                image=any(each.takes_images for each in self._models.values()),
                embedded_context=True,
                mcp_http=True,
                mcp_sse=True,
            ),
        )
        self._clock = clock or SystemClock()
        agent.opened(self._opened)
        agent.closed(self._closed)
        agent.prompt(self._prompt)
        agent.steer(self._steer)
        agent.command("demo", "Show what an agent can do", hint="a demonstration, or nothing for the list")(
            self._demo
        )
        for each in COMMANDS:
            agent.command(each.name, each.about, hint=each.hint)(self._command(each))

    def run(self) -> None:
        """Serve the client that started this process, until it disconnects."""
        serve_stdio(self.serve)

    async def serve(self, link: FrameLink) -> None:
        """Serve one client until its link ends, then let go of the models' connections."""
        try:
            await self.agent.serve(link)
        finally:
            for each in self._models.values():
                await each.aclose()

    # -- sessions ------------------------------------------------------------------------------------------------

    async def _opened(self, session: Session) -> None:
        session.modes = MODES
        if len(self._models) > 1:
            names = tuple(self._models)
            session.options = [Option(MODEL, "Model", names[0], names, category=MODEL)]
        if not session.state.get(BEGUN):
            session.state[BEGUN] = True
            session.mode = self._settings.mode
        session.state.pop(LOST, None)
        await self._serve(session)

    def _closed(self, session: Session) -> None:
        self._servers.pop(session.id, None)

    async def _serve(self, session: Session) -> None:
        """Have the MCP servers that the session names now, and no others. Those that are there already stay."""
        held = self._servers.get(session.id)
        if held is not None:
            if held.serves(session.mcp_servers, session.cwd):
                return
            del self._servers[session.id]
            await held.stop()
        # A client that opened the session meanwhile has started the servers that it names now.
        if session.mcp_servers and session.id not in self._servers:
            self._servers[session.id] = servers = McpServers(session.mcp_servers, session.cwd, clock=self._clock)
            session.background(servers.run)

    # -- turns ---------------------------------------------------------------------------------------------------

    async def _prompt(self, turn: Turn) -> StopReason:
        work = await self._work(turn)
        if turn.session.title is None:
            turn.session.title = title_of(turn.text) or None
        if is_nearly_full(turn.session.state, work.model.context_size):
            await _compact_by_itself(work)
        self._running[turn.session.id] = work
        try:
            return await run_turn(work, user_message(turn.content, takes_images=work.model.takes_images))
        finally:
            del self._running[turn.session.id]

    def _steer(self, turn: Turn, blocks: list[dict[str, Any]]) -> bool:
        """Add a prompt to the running turn: the model receives it with its next request."""
        work = self._running.get(turn.session.id)
        if work is None:
            return False
        work.steered.append(user_message(blocks, takes_images=work.model.takes_images))
        return True

    async def _demo(self, turn: Turn, arguments: str) -> str | None:
        return await play(self.agent, self._clock, turn, arguments)

    def _command(self, row: SlashCommand) -> Function:
        async def run(turn: Turn, arguments: str) -> None:
            await row.run(await self._work(turn), arguments.strip(), tuple(self._models))

        return run

    async def _work(self, turn: Turn) -> Work:
        session = turn.session
        servers = await self._connected(turn)
        return Work(
            turn=turn,
            conversation=Conversation(session.state),
            model=self._model(session),
            tools=self._tools if servers is None else self._tools | servers.tools(),
            workplace=TurnWorkplace(turn, allows_fetch=self._settings.allows_fetch),
            bounds=self._settings.bounds,
            notes=tuple(await to_thread.run_sync(read_notes, session.cwd)),
            own_rules=self._settings.rules,
        )

    async def _connected(self, turn: Turn) -> McpServers | None:
        """Return the session's MCP servers once all have answered. The user is notified once of each that
        did not.
        """
        servers = self._servers.get(turn.session.id)
        if servers is not None and servers.is_over:
            # They belonged to a client that has disconnected; the session continues without it.
            await self._serve(turn.session)
            servers = self._servers.get(turn.session.id)
        if servers is None:
            return None
        await servers.connected()
        told = turn.session.state.get(LOST, ())
        failures = servers.failures()
        for name, why in failures:
            if name not in told:
                turn.think(f"The MCP server {name} is not there: {why}\n")
        # Servers that came back are removed, so that their next loss is reported again.
        turn.session.state[LOST] = [name for name, _ in failures]
        return servers

    def _model(self, session: Session) -> Model:
        if len(self._models) == 1:
            return next(iter(self._models.values()))
        return self._models[str(session.option(MODEL))]


async def _compact_by_itself(work: Work) -> None:
    try:
        is_done = await compact(work)
    except ModelFailed:
        is_done = False
    if not is_done:
        # The prompt itself may still fit.
        await work.turn.think(KEPT)


def offered_tools(*, fetch: bool = False, private_hosts: tuple[str, ...] = ()) -> dict[str, Tool]:
    """Return the offered tools by name, in the order in which a model receives them.

    `fetch` is included only if it is allowed; see `turnwire_agent.tools.fetch` for `private_hosts`.
    """
    tools: list[Tool] = [Read(), List(), Search(), Write(), Edit(), Run(), UpdatePlan()]
    if fetch:
        # It brings an HTTP client with it, which most sessions do without.
        from turnwire_agent.tools.fetch import Fetch

        tools.append(Fetch(private_hosts))
    return {tool.spec.name: tool for tool in tools}
