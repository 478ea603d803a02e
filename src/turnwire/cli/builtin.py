"""The agent of a daemon that was given none: `turnwire agent`, as a process of its own.

Takes the settings and the environment of the daemon; gives a source, and the agent in words for people. The agent
gets what every agent gets, and beside that the keys of the models' providers and its own variables, and no other of
ours. Never imports the agent: it is a program like any other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.source import ProcessSource
from turnwire.server.settings.declared import Settings
from turnwire.server.settings.sources import BUILT_IN

PREFIX = "TURNWIRE_AGENT_"
"""What the agent's own variables begin with; see `BUILT_IN`."""
PROVIDERS = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_API_KEY", "OLLAMA_BASE_URL"),
    *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    *("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
)
"""The variables that reach a model."""
IN_MEMORY = ":memory:"
FOLDER = "agent"
"""Below the daemon's data, where the agent keeps its sessions."""
COMMAND = (sys.executable, "-m", "turnwire", "agent")


def builtin_source(settings: Settings, limits: Limits) -> ProcessSource:
    """Starts the built-in agent, which keeps its sessions beside those of the daemon.

    Raises:
        ConfigError: Its models cannot be had as they are configured; better now than in the first session.
    """
    _check_models()
    kept = IN_MEMORY if settings.data is None else str(settings.data.absolute() / FOLDER)
    own = {name: value for name, value in os.environ.items() if name in BUILT_IN and value}
    env = agent_environment(os.environ, pass_through=PROVIDERS)
    return ProcessSource(COMMAND, env={**env, PREFIX + "DATA": kept, **own}, limits=limits)


def agent_name(given: Sequence[str]) -> str:
    """The agent in words, without its arguments: they may hold secrets."""
    if given:
        return given[0]
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
