"""The agent of a daemon that was given none: the scripted agent, so that a first try needs nothing else.

Gives a command and its name for people. Never imports the agent: it is a program like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def agent_command(given: Sequence[str]) -> tuple[str, ...]:
    """The command to start: what was given, else the built-in agent."""
    return tuple(given) or (sys.executable, "-m", "turnwire.testing.agent")


def agent_name(given: Sequence[str]) -> str:
    """The agent in words, without its arguments: they may hold secrets."""
    return given[0] if given else "built-in, repeats what it is told; give your own: turnwire serve -- COMMAND"
