"""Paths as a model writes them, and as it reads them.

Takes a path relative to the session's cwd or absolute; gives an absolute one without `..` that leads into the
session's directories, or refuses. What is checked here is what is used later; that nobody swaps a link in
between is held where the file is opened, see `turnwire.runtime.services.roots`.
"""

from __future__ import annotations

import os

from anyio import to_thread

from turnwire.builtin.tools.arguments import wrong
from turnwire.builtin.tools.tool import Workplace
from turnwire.errors import RequestRefused


async def file_path(where: Workplace, path: str) -> str:
    """The absolute path of a file that may or may not be there. Raises `RequestRefused` if it leads outside."""
    absolute = absolute_path(where, path)
    await to_thread.run_sync(_check_file, where, absolute)
    return absolute


def absolute_path(where: Workplace, path: str) -> str:
    """By its text alone: `..` is taken away before any link is looked at, and is gone for whoever uses the path."""
    if not path.strip() or "\0" in path:
        raise wrong("the path is empty or holds a zero byte; give one relative to the working directory")
    return os.path.normpath(os.path.join(where.cwd, path))


async def is_there(where: Workplace, absolute: str) -> bool:
    """Whether this machine has something at the path."""
    return await to_thread.run_sync(_is_there, where, absolute)


def shown_path(where: Workplace, absolute: str) -> str:
    """As the model should name it: relative to the cwd if it is below that."""
    cwd = os.fspath(where.cwd)
    return os.path.relpath(absolute, cwd) if os.path.commonpath([cwd, absolute]) == cwd else absolute


def _is_there(where: Workplace, absolute: str) -> bool:
    try:
        with where.roots.locate(absolute) as place:
            os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except RequestRefused as error:
        return error.reason != "not_found"
    return True


def _check_file(where: Workplace, absolute: str) -> None:
    try:
        with where.roots.locate(absolute):
            pass
    except RequestRefused as error:
        # What is missing inside may be made. There is no `..` any more by which it could lead outside.
        if error.reason != "not_found":
            raise
