"""The folders that settings and commands name: are they there, and can they be named to others?

Takes settings and paths; refuses what could only fail later, at the first session or with a puzzling error. Never
makes a folder.
"""

from __future__ import annotations

import os

from turnwire.cli.examples import check_text
from turnwire.errors import ConfigError
from turnwire.server.settings.declared import Settings


def sendable_folder(path: str) -> str:
    """The whole path of a folder, as a daemon and its agent can be told it. Raises `UsageError`."""
    whole = os.path.abspath(path)
    # What leads there was not on the command line, and may be no text either.
    check_text([whole])
    return whole


def check_folders(settings: Settings) -> None:
    """Refuse folders that are none. The data folder may be missing: it is made. Raises `ConfigError`."""
    for folder in settings.cwd:
        if not folder.is_dir():
            raise ConfigError(f"cwd names {folder}, and that is no folder; make it, or name another with --cwd")
    if settings.data is None:
        return
    nearest = next(each for each in (settings.data, *settings.data.absolute().parents) if os.path.exists(each))
    if not nearest.is_dir():
        raise ConfigError(f"data is {settings.data}, and {nearest} is no folder; give a folder with --data")
