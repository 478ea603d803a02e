"""Where the agents of a daemon come from: a command, an address, a name to import, a known name, or built in.

Nothing is started here, but an import runs the code of the operator's module. The built-in agent is a program
like any other, `turnwire agent` in a process of its own, so it is not imported. It gets what every agent gets,
and beside that the keys of the models' providers and its own variables, and no other of ours.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnwire.cli.known_agents import KNOWN_AGENTS, NoStart, how_to_start, known
from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.agent_pool import UNNAMED, HostedAgent, MissingSource
from turnwire.runtime.source import AgentSource, ProcessSource
from turnwire.server.daemon.daemon import agent_policy
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import BUILT_IN

if TYPE_CHECKING:
    from turnwire.agent.agent import Agent


logger = logging.getLogger(__name__)

PREFIX = "TURNWIRE_AGENT_"
"""What the agent's own variables begin with; see `BUILT_IN`."""
PROVIDERS = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_API_KEY", "OLLAMA_BASE_URL"),
    *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    *("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
)
"""The variables that reach a model."""
IN_MEMORY = ":memory:"
BUILT_IN_NAME = "builtin"
"""The built-in agent among others that have names."""
AGENT_FOLDER = "agent"
"""Below the daemon's data, where the agent keeps its sessions."""
RUNNERS = r"(npx|pnpm|bunx?|deno|node|uvx?|pipx|python[0-9.]*)"
"""Programs that are no agent: the word behind their flags is."""
COMMAND = (sys.executable, "-m", "turnwire", "agent")


@asynccontextmanager
async def hosted_agents(settings: Settings, limits: Limits) -> AsyncGenerator[list[HostedAgent]]:
    """The agents that these settings name, the default one first.

    One that is not the default and cannot be started is hosted all the same, and says why.

    Raises:
        ConfigError: The default agent cannot be started.
    """
    async with AsyncExitStack() as stack:
        hosted: list[HostedAgent] = []
        for entry in settings.hosted():
            missing = None
            try:
                source = await agent_of_entry(stack, entry, settings, limits)
            except ConfigError as error:
                if not hosted:
                    raise
                missing = str(error)
                source = MissingSource(missing)
                extra = {"event": "agent_missing", "agent": entry.name}
                logger.warning("the agent %s cannot be started: %s", entry.name, error, extra=extra)
            hosted.append(
                HostedAgent(
                    name=entry.name,
                    source=source,
                    policy=agent_policy(settings, entry),
                    label=entry.label,
                    icon=entry.icon,
                    missing=missing,
                )
            )
        yield hosted


async def agent_of_entry(
    stack: AsyncExitStack, entry: AgentEntry, settings: Settings, limits: Limits
) -> AgentSource:
    """Where one agent comes from. Raises `ConfigError`."""
    if entry.imported is not None:
        return imported_agent(entry.imported).source()
    if entry.command:
        return command_source(entry, limits)
    if entry.url is None and entry.name in {UNNAMED, BUILT_IN_NAME}:
        return builtin_source(entry, settings, limits)
    if entry.url is None:
        return known_source(entry, limits)
    from turnwire.runtime.remote_agent import RemoteSource

    return await stack.enter_async_context(RemoteSource(entry.url, token=entry.token, limits=limits))


def command_source(entry: AgentEntry, limits: Limits) -> ProcessSource:
    """Starts the agent's command. Raises `ConfigError` if there is no such program: better now than later."""
    env = environment_of(entry)
    check_program(entry.command[0], env)
    if entry.cwd is not None and not entry.cwd.is_dir():
        raise ConfigError(f"the agent {entry.name} is to work in {entry.cwd}, and that is no folder; make it")
    for name in entry.env:
        if name not in os.environ:
            logger.warning(
                "the agent is to get %s, and the daemon has no such variable; export it and start again",
                name,
                extra={"event": "agent_env_missing", "agent": entry.name, "variable": name},
            )
    return ProcessSource(entry.command, cwd=entry.cwd, env=env, limits=limits)


def check_program(program: str, env: Mapping[str, str]) -> None:
    """Raises `ConfigError` if an agent in this environment cannot be started by this name."""
    if shutil.which(program, path=env.get("PATH")) is None:
        where = "there is no such program" if os.sep in program else "no folder of PATH has it"
        raise ConfigError(f"the agent is {program!r}, and {where}; install it, or give its whole path")


def known_source(entry: AgentEntry, limits: Limits) -> ProcessSource:
    """Starts the agent that is known by this name, with the keys that it is known to read.

    Raises:
        ConfigError: Nobody knows it, or this machine cannot start it.
    """
    agent = known(entry.name)
    if agent is None:
        names = ", ".join((BUILT_IN_NAME, *(each.name for each in KNOWN_AGENTS)))
        raise ConfigError(
            f"no agent is known as {entry.name!r}; write --agent {entry.name}=COMMAND, or one of {names}"
        )
    start = how_to_start(agent)
    if isinstance(start, NoStart):
        raise ConfigError(f"the agent {entry.name} cannot be started: {start.why}")
    return ProcessSource(start.command, cwd=entry.cwd, env=environment_of(entry, *agent.keys), limits=limits)


def environment_of(entry: AgentEntry, *more: str) -> dict[str, str]:
    """What an agent is given, and `more` of ours by name."""
    return agent_environment(
        os.environ,
        additions=entry.env_set,
        pass_through=[*entry.env, *more],
        everything=entry.env_all,
    )


def imported_agent(place: str) -> Agent:
    """The agent at `module:name`, or what the function there makes. Modules of the current folder count too.

    Raises:
        ConfigError: It cannot be imported, or is no agent.
    """
    from turnwire.agent.agent import Agent

    module, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
        made: Any = found() if callable(found) and not isinstance(found, Agent) else found
    except Exception as error:
        raise ConfigError(
            f"agent_import is {place}, and that fails with {type(error).__name__}: {error}; it must be a module"
            ' that Python finds from here, with `agent.run()` only below `if __name__ == "__main__":`'
        ) from error
    if not isinstance(made, Agent):
        raise ConfigError(
            f"agent_import is {place}, and that is no agent but {type(made).__name__}; name a turnwire.agent.Agent,"
            " or wrap an agent of the official SDK with turnwire.agent.adapt"
        )
    return made


def builtin_source(entry: AgentEntry, settings: Settings, limits: Limits) -> ProcessSource:
    """Starts the built-in agent, which keeps its sessions beside those of the daemon.

    Raises:
        ConfigError: Its models cannot be had as they are configured; better now than in the first session.
    """
    _check_models()
    kept = IN_MEMORY if settings.data is None else str(settings.data.absolute() / AGENT_FOLDER)
    own = {name: value for name, value in os.environ.items() if name in BUILT_IN and value}
    env = environment_of(entry, *PROVIDERS)
    return ProcessSource(COMMAND, cwd=entry.cwd, env={**env, PREFIX + "DATA": kept, **own}, limits=limits)


def in_words(entry: AgentEntry) -> str:
    """The agent in words, without its arguments: they may hold secrets."""
    if entry.is_described:
        return entry.imported or entry.url or entry.command[0]
    if (agent := known(entry.name)) is not None:
        return agent.label
    models = _models()
    if models:
        return f"built-in, with the model {', '.join(models)}"
    return (
        f"built-in, without a model; set {PREFIX}MODEL=PROVIDER:NAME, or give your own: turnwire serve -- COMMAND"
    )


def agent_folder(entry: AgentEntry) -> str:
    """The name of a folder for what is kept of this agent: the same whatever flags it is started with."""
    if entry.is_described:
        words = [entry.imported or entry.url or ""] if not entry.command else _program_of(entry.command)
    else:
        words = [entry.name if known(entry.name) is not None else BUILT_IN_NAME]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(words[-1].rstrip("/"))).strip("-.")[:40]
    # Two that only differ in what a folder's name cannot hold, or in where they lie, are two.
    return f"{plain or 'agent'}-{hashlib.sha256(repr(words).encode()).hexdigest()[:8]}"


def _program_of(command: Sequence[str]) -> list[str]:
    """The program of a command, and what it runs if it is there to run others: `npx -y PACKAGE`."""
    program = os.path.basename(command[0])
    run = [each for each in command[1:] if not each.startswith("-")]
    return [program, *run[:1]] if re.fullmatch(RUNNERS, program) else [program]


def _models() -> list[str]:
    return os.environ.get(PREFIX + "MODEL", "").split()


def _check_models() -> None:
    if not _models():
        return
    from turnwire.builtin.library_model import choose_model

    for each in _models():
        choose_model(each, url=os.environ.get(PREFIX + "MODEL_URL"))
