"""A home folder in which an agent finds a fake model and none of the user's data.

A recipe and an empty folder become the agent's environment while the model runs. The user's keys and settings are
not visible: an agent that read them could spend tokens or change the user's files.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from turnwire_testing.models.recipes import Recipe, Texts
from turnwire_testing.models.server import FakeServer
from turnwire_testing.models.told_model import told_model

QUIET = {"DO_NOT_TRACK": "1", "NO_UPDATE_NOTIFIER": "1", "CI": "1"}


class Home(NamedTuple):
    """The home of an agent while its model runs."""

    environment: dict[str, str]
    """All of it."""
    model: FakeServer


@asynccontextmanager
async def home_of(recipe: Recipe, root: Path, path: str) -> AsyncGenerator[Home]:
    """`root` gets the home and a folder for temporary files. `path`: where programs are looked for."""
    home, temporary = root / "home", root / "tmp"
    for each in (home, temporary):
        each.mkdir(parents=True)
    async with recipe.server(told_model(recipe)) as model:
        furnish(home, recipe.files(model.url))
        places = {"HOME": str(home), "TMPDIR": str(temporary)}
        yield Home({**environment(path), **places, **recipe.env(model.url)}, model)


def environment(path: str) -> dict[str, str]:
    """Return the minimal environment that an agent needs, without our variables."""
    return {"PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **QUIET}


def furnish(home: Path, files: Texts) -> None:
    """Write the agent's settings files where it looks for them."""
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
