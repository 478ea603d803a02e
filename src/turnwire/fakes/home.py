"""A home in which an agent finds a fake model, and nothing of the user who runs it.

Takes a recipe and an empty folder; gives the environment of the agent while the model is there. The user's keys and
settings stay outside: an agent that read them could spend tokens, or change what it finds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from turnwire.fakes.recipes import Recipe, Texts
from turnwire.fakes.server import FakeServer
from turnwire.fakes.told_model import told_model

QUIET = {"DO_NOT_TRACK": "1", "NO_UPDATE_NOTIFIER": "1", "CI": "1"}


class Home(NamedTuple):
    """Where an agent lives as long as its model does."""

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
    """Nothing of ours but what it takes to run."""
    return {"PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **QUIET}


def furnish(home: Path, files: Texts) -> None:
    """Write what the agent reads, where it looks for it."""
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
