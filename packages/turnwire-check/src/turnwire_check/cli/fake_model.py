"""`--fake-model NAME`: start an agent in a separate home, with a fake model.

NAME is a known agent's name, or that of an API for any other agent. No data of the user is read or changed, no
token is spent, and the home is deleted when the agent is done.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import click

from turnwire.cli.known_agents import NoStart, how_to_start, known
from turnwire_testing.models.home import Home, home_of
from turnwire_testing.models.recipes import APIS, RECIPES, Recipe


def recipe_for(name: str) -> Recipe:
    """Raises `UsageError`."""
    found = RECIPES.get(name) or APIS.get(name)
    if found is None:
        raise click.UsageError(
            f"--fake-model: there is no recipe for {name!r}; there are recipes for {', '.join(RECIPES)}; "
            f"for any other agent name the API of its model: {', '.join(APIS)}"
        )
    return found


def command_for(name: str) -> tuple[str, ...]:
    """The command of a known agent that is installed. Raises `UsageError`."""
    agent = known(name)
    if agent is None:
        raise click.UsageError(f"--fake-model {name} is an API; put the agent's command behind `--`")
    start = how_to_start(agent)
    if isinstance(start, NoStart) or start.is_fetched:
        # npx and uvx cache downloads in the home, which is new in each run: each run would download them again.
        package = f"{agent.npm} (npm)" if agent.npm else f"{agent.pypi} (PyPI)"
        raise click.UsageError(
            f"--fake-model {name}: `{agent.program}` is not on PATH; install {package}, "
            "or put the command behind `--`"
        )
    return start.command


@asynccontextmanager
async def home_with_model(recipe: Recipe, given: Mapping[str, str]) -> AsyncGenerator[Home]:
    """Provide a temporary home with the model. `given`: the agent's other variables; the recipe's take
    precedence.
    """
    # An agent may still write files while its home is being deleted.
    with tempfile.TemporaryDirectory(prefix="turnwire-home-", ignore_cleanup_errors=True) as folder:
        async with home_of(recipe, Path(folder), os.environ.get("PATH", os.defpath)) as home:
            yield home._replace(environment={**given, **home.environment})


def unasked(home: Home) -> str:
    """Return the error if the model has answered nothing; empty if it has."""
    if any(each.refused is None for each in home.model.exchanges):
        return ""
    if not home.model.exchanges:
        return "the agent has asked the fake model nothing: it does not look for its model where the recipe says"
    return f"the fake model has refused all that the agent asked: {home.model.exchanges[0].refused}"
