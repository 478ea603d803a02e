"""Sources of a daemon's agents: a command, an address, an importable name, a known name, or the built-in agent.

Nothing is started here, but an import runs the code of the operator's module. The built-in agent is a program like
any other, `turnwire agent` in a separate process, so it is not imported. It gets the environment of every agent,
plus the keys of model providers and its own variables, and no other variables of turnwire.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from turnwire.cli.known_agents import KNOWN_AGENTS, NoStart, how_to_start, known
from turnwire.errors import ConfigError
from turnwire.hosting.agent_pool import UNNAMED, HostedAgent, MissingSource
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.source import AgentSource, ProcessSource
from turnwire.limits import Limits
from turnwire.server.daemon.daemon import agent_policy
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import BUILT_IN

if TYPE_CHECKING:
    from turnwire.agent.agent import Agent


logger = logging.getLogger(__name__)

PREFIX = "TURNWIRE_AGENT_"
"""Prefix of the agent's own variables; see `BUILT_IN`."""
PROVIDERS = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_API_KEY", "OLLAMA_BASE_URL"),
    *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    *("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
)
"""Variables for access to models."""
IN_MEMORY = ":memory:"
BUILT_IN_NAME = "builtin"
"""Name of the built-in agent in a list of named agents."""
AGENT_FOLDER = "agent"
"""Folder of the agent's sessions, below the daemon's data folder."""
COMMAND = (sys.executable, "-m", "turnwire", "agent")
ENTRY_POINTS = "turnwire.agents"
"""The entry point group in which turnwire-agent names its `ModelAgent`, as `model`."""


@asynccontextmanager
async def hosted_agents(settings: Settings, limits: Limits) -> AsyncGenerator[list[HostedAgent]]:
    """Return the agents that these settings name, the default one first.

    An agent that is not the default and cannot be started is included and reports the reason.

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
                    label=entry.label or label_of(entry),
                    icon=entry.icon,
                    missing=missing,
                )
            )
        yield hosted


async def agent_of_entry(
    stack: AsyncExitStack, entry: AgentEntry, settings: Settings, limits: Limits
) -> AgentSource:
    """Return the source of one agent. Raises `ConfigError`."""
    if entry.imported is not None:
        return imported_agent(entry.imported).source()
    if entry.command:
        return command_source(entry, limits)
    if entry.url is None and entry.name in {UNNAMED, BUILT_IN_NAME}:
        return builtin_source(entry, settings, limits)
    if entry.url is None:
        return known_source(entry, limits)
    from turnwire.hosting.remote_agent import RemoteSource

    return await stack.enter_async_context(RemoteSource(entry.url, token=entry.token, limits=limits))


def command_source(entry: AgentEntry, limits: Limits) -> ProcessSource:
    """Return a source that starts the command. Raises `ConfigError` early if there is no such program."""
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
    """Raise `ConfigError` if an agent in this environment cannot be started by this name."""
    if shutil.which(program, path=env.get("PATH")) is not None:
        return
    words = program.split()
    if os.path.isdir(program):
        why = "is a folder; name a program in it"
    elif os.path.isfile(program) and os.sep in program:
        why = f"is not executable; run `chmod +x {program}`"
        why += f", or start it with `python3 {program}`" if program.endswith(".py") else ""
    elif len(words) > 1 and shutil.which(words[0], path=env.get("PATH")) is not None:
        why = f"is one word; write it without the quotes: -- {program}"
    elif os.sep in program:
        why = "does not exist; install it, or correct the path"
    else:
        why = "was not found on PATH; install it, or give its full path"
    raise ConfigError(f"the agent {program!r} {why}")


def known_source(entry: AgentEntry, limits: Limits) -> ProcessSource:
    """Return a source that starts the known agent of this name, with the variables that may hold its keys.

    Raises:
        ConfigError: The name is unknown, or this machine cannot start the agent.
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
    """Return the environment of an agent, plus the variables of turnwire named in `more`."""
    return agent_environment(
        os.environ,
        additions=entry.env_set,
        pass_through=[*entry.env, *more],
        everything=entry.env_all,
    )


def imported_agent(place: str) -> Agent:
    """Return the agent at `module:name`, or the result of the function there. Modules of the current folder are
    found.

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
            f"the agent cannot be imported from {place}: {type(error).__name__}: {error}; it must be a module"
            ' that Python finds from here, with `agent.run()` only below `if __name__ == "__main__":`'
        ) from error
    if not isinstance(made, Agent):
        raise ConfigError(
            f"{place} is no agent but {type(made).__name__}; name a turnwire.agent.Agent,"
            " or wrap an agent of the official SDK with turnwire_agent.adapt"
        )
    return made


def builtin_source(entry: AgentEntry, settings: Settings, limits: Limits) -> ProcessSource:
    """Return a source that starts the built-in agent, which stores its sessions next to the daemon's.

    Raises:
        ConfigError: Its models cannot be used as configured; checked now rather than in the first session.
    """
    _check_models()
    kept = IN_MEMORY if settings.data is None else str(settings.data.absolute() / AGENT_FOLDER)
    own = {name: value for name, value in os.environ.items() if name in BUILT_IN and value}
    env = environment_of(entry, *PROVIDERS)
    return ProcessSource(COMMAND, cwd=entry.cwd, env={**env, PREFIX + "DATA": kept, **own}, limits=limits)


def label_of(entry: AgentEntry) -> str | None:
    """Return the label of an agent that the user has not labelled, for clients."""
    if entry.is_described:
        return PurePath(entry.command[0]).name if entry.name == UNNAMED and entry.command else None
    if (agent := known(entry.name)) is not None:
        return agent.label
    return f"Built-in agent ({', '.join(models()) or 'no model'})"


def in_words(entry: AgentEntry) -> str:
    """Describe the agent without its arguments, which may contain secrets."""
    if entry.is_described:
        return entry.imported or entry.url or entry.command[0]
    if (agent := known(entry.name)) is not None:
        return agent.label
    if models():
        return f"built-in, with the model {', '.join(models())}"
    return "built-in, without a model"


def missing_key(entry: AgentEntry) -> str:
    """Return a note about a known agent without a key; empty if it has one or needs none."""
    agent = None if entry.is_described else known(entry.name)
    given = {*os.environ, *(each.partition("=")[0] for each in entry.env_set)}
    if agent is None or given.intersection(agent.keys):
        return ""
    return f"no key: set {' or '.join(agent.keys)}, unless it has its own login"


def models() -> list[str]:
    """Return the models that the built-in agent is configured with."""
    return os.environ.get(PREFIX + "MODEL", "").split()


def _check_models() -> None:
    if not models():
        return
    model_agent().check(models(), os.environ.get(PREFIX + "MODEL_URL"))


class ModelAgent(Protocol):
    """The agent with a language model, which a sibling distribution adds."""

    def check(self, models: Sequence[str], url: str | None) -> None:
        """Check that these models can be used. Raises `ConfigError`."""
        ...

    def run(
        self,
        models: Sequence[str],
        *,
        url: str | None,
        data: Path | None,
        mode: str,
        rules: str | None,
        allows_fetch: bool,
        max_requests: int,
        max_tokens: int | None,
    ) -> None:
        """Serve the client that started this process, until it disconnects. Raises `ConfigError`."""
        ...


def model_agent() -> ModelAgent:
    """Return the agent with a language model. Raises `ConfigError` if it is not installed."""
    from importlib.metadata import entry_points

    for each in entry_points(group=ENTRY_POINTS, name="model"):
        return each.load()
    raise ConfigError("an agent with a model is not installed here. Install it: pip install 'turnwire[agent]'")
