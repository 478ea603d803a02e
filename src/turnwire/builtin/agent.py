"""The built-in agent: an `Agent` of the SDK, put together from a model, tools and commands.

What it remembers of a session is in that session's state. Without a model it is the offline one, and does all but
think. Each slash command says something, and changes the session if that is its job; none asks the model but
`/compact`, so they work also when the model does not.
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
from turnwire.builtin.context import KEPT, compact, forget_context, is_nearly_full, usage_words
from turnwire.builtin.conversation import Conversation, title_of, user_message
from turnwire.builtin.demo import DemoHost, play
from turnwire.builtin.loop import StopReason, failure_of, run_turn
from turnwire.builtin.mcp_servers import McpServers
from turnwire.builtin.model import Model
from turnwire.builtin.offline_model import CAN, CONFIGURE, NO_MODEL, offline_model
from turnwire.builtin.permits import ASK, MODE_IDS, MODES
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.system_prompt import read_notes
from turnwire.builtin.tools import Tool
from turnwire.builtin.tools.files import Edit, Read, Write
from turnwire.builtin.tools.folders import List, Search
from turnwire.builtin.tools.plan import UpdatePlan
from turnwire.builtin.tools.run import Run
from turnwire.builtin.tools.workplace import TurnWorkplace
from turnwire.builtin.work import ALLOWED, Bounds, Work
from turnwire.errors import AgentFailure, ModelFailed
from turnwire.link.base import FrameLink
from turnwire.runtime.clock import Clock, SystemClock

Function: TypeAlias = Callable[[Turn, str], Awaitable[None]]
MODEL = "model"
"""The option that chooses among several models."""


# -- slash commands ------------------------------------------------------------------------------------------


class SlashCommand(NamedTuple):
    """One command."""

    name: str
    about: str
    hint: str | None
    run: Callable[[Work, str, tuple[str, ...]], Awaitable[None]]
    """Takes the turn's work, the words behind the command, and the names of all models."""


async def _help(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    lines = [f"- `/{each.name}`: {each.about}" for each in COMMANDS]
    lines.append("- `/demo`: Show what an agent can do")
    tools = ", ".join(f"`{name}`" for name in work.tools)
    parts = ["Commands:\n\n" + "\n".join(lines), f"Tools: {tools}", f"Mode: `{work.mode}`"]
    if isinstance(work.model, ScriptModel):
        parts += [NO_MODEL, CAN, CONFIGURE]
    else:
        parts.append(f"Model: `{work.model.name}`")
    await work.turn.say("\n\n".join(parts))


async def _model(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    if isinstance(work.model, ScriptModel):
        await work.turn.say(f"{NO_MODEL}\n\n{CONFIGURE}")
        return
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
"""In a session's state: the MCP servers that its user was told of."""
BEGUN = "begun"
"""In a session's state once it was opened for the first time."""


# -- the agent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BuiltInSettings:
    """What its user may set."""

    data: Path | None = None
    """Where sessions are kept; none keeps them in memory."""
    rules: str | None = None
    """A text in place of the agent's own rules."""
    allows_fetch: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    mode: str = ASK.id
    """Of new sessions."""


class BuiltIn:
    """The functions behind the agent. `agent` is what is served."""

    def __init__(
        self, models: Sequence[Model] = (), settings: BuiltInSettings | None = None, clock: Clock | None = None
    ) -> None:
        self._models = {each.name: each for each in (models or (offline_model(),))}
        self._settings = settings or BuiltInSettings()
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
        self._demo_host = DemoHost(agent, self._clock)
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
        """Serve the client that started this process, until it leaves."""
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
        # Whoever opened it meanwhile has started what it names now.
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
        """Take a prompt into the turn that runs: the model hears it with its next request."""
        work = self._running.get(turn.session.id)
        if work is None:
            return False
        work.steered.append(user_message(blocks, takes_images=work.model.takes_images))
        return True

    async def _demo(self, turn: Turn, arguments: str) -> StopReason | None:
        return await play(self._demo_host, await self._work(turn), arguments)

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
        """The session's MCP servers, once all have answered. Of one that did not, the user is told once."""
        servers = self._servers.get(turn.session.id)
        if servers is not None and servers.is_over:
            # They were held by a client that has left; the session goes on without it.
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
        # Those that came back are forgotten, so that their next loss is told again.
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
    """The tools by name, in the order in which a model is told of them.

    `fetch` is there only if it is allowed; see `turnwire.builtin.tools.fetch` for `private_hosts`.
    """
    tools: list[Tool] = [Read(), List(), Search(), Write(), Edit(), Run(), UpdatePlan()]
    if fetch:
        # It brings an HTTP client with it, which most sessions do without.
        from turnwire.builtin.tools.fetch import Fetch

        tools.append(Fetch(private_hosts))
    return {tool.spec.name: tool for tool in tools}
