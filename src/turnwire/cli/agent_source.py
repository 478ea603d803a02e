"""Where the agent of a daemon comes from: a command, an address, a name to import, or the agent that is built in.

Nothing is started here, but an import runs the code of the operator's module. The built-in agent is a program
like any other, `turnwire agent` in a process of its own, so it is not imported. It gets what every agent gets,
and beside that the keys of the models' providers and its own variables, and no other of ours.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.source import AgentSource, ProcessSource
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
AGENT_FOLDER = "agent"
"""Below the daemon's data, where the agent keeps its sessions."""
COMMAND = (sys.executable, "-m", "turnwire", "agent")


@asynccontextmanager
async def agent_source(settings: Settings, limits: Limits) -> AsyncGenerator[AgentSource]:
    """The source that these settings name. Raises `ConfigError`."""
    if settings.agent_import is not None:
        yield imported_agent(settings.agent_import).source()
        return
    if settings.agent_url is None:
        yield command_source(settings, limits) if settings.agent else builtin_source(settings, limits)
        return
    from turnwire.runtime.remote_agent import RemoteSource

    async with RemoteSource(settings.agent_url, token=settings.agent_token, limits=limits) as remote:
        yield remote


def command_source(settings: Settings, limits: Limits) -> ProcessSource:
    """Starts the agent of the settings. Raises `ConfigError` if there is no such program: better now than later."""
    env = environment_of(settings)
    program = settings.agent[0]
    if shutil.which(program, path=env.get("PATH")) is None:
        where = "there is no such program" if os.sep in program else "no folder of PATH has it"
        raise ConfigError(f"the agent is {program!r}, and {where}; install it, or give its whole path behind `--`")
    for name in settings.agent_env:
        if name not in os.environ:
            logger.warning(
                "the agent is to get %s, and the daemon has no such variable; export it and start again",
                name,
                extra={"event": "agent_env_missing", "variable": name},
            )
    return ProcessSource(settings.agent, env=env, limits=limits)


def environment_of(settings: Settings, *more: str) -> dict[str, str]:
    """What these settings give an agent, and `more` of ours by name."""
    return agent_environment(
        os.environ,
        additions=settings.agent_env_set,
        pass_through=[*settings.agent_env, *more],
        everything=settings.agent_env_all,
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


def builtin_source(settings: Settings, limits: Limits) -> ProcessSource:
    """Starts the built-in agent, which keeps its sessions beside those of the daemon.

    Raises:
        ConfigError: Its models cannot be had as they are configured; better now than in the first session.
    """
    _check_models()
    kept = IN_MEMORY if settings.data is None else str(settings.data.absolute() / AGENT_FOLDER)
    own = {name: value for name, value in os.environ.items() if name in BUILT_IN and value}
    env = environment_of(settings, *PROVIDERS)
    return ProcessSource(COMMAND, env={**env, PREFIX + "DATA": kept, **own}, limits=limits)


def agent_name(command: Sequence[str]) -> str:
    """The agent in words, without its arguments: they may hold secrets."""
    if command:
        return command[0]
    models = _models()
    if models:
        return f"built-in, with the model {', '.join(models)}"
    return (
        f"built-in, without a model; set {PREFIX}MODEL=PROVIDER:NAME, or give your own: turnwire serve -- COMMAND"
    )


def _models() -> list[str]:
    return os.environ.get(PREFIX + "MODEL", "").split()


def _check_models() -> None:
    if not _models():
        return
    from turnwire.builtin.library_model import choose_model

    for each in _models():
        choose_model(each, url=os.environ.get(PREFIX + "MODEL_URL"))
