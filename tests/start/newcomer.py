"""A new user's machine: a fresh clone of the repository and a PATH with few programs on it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from turnwire_testing.plugin import find_tool

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("bash", "sh", "git", "make", "curl", "sed", "grep")
"""Programs that README.md says it needs, besides Python and coreutils."""
COREUTILS = (
    *("[", "basename", "cat", "chmod", "cp", "cut", "date", "dirname", "echo", "env", "expand", "false", "head"),
    *("id", "install", "ln", "ls", "mkdir", "mktemp", "mv", "printf", "pwd", "readlink", "realpath", "rm", "rmdir"),
    *("sleep", "sort", "stat", "tail", "tee", "test", "touch", "tr", "true", "uname", "uniq", "wc"),
)
PIP = ("PIP_", "SSL_", "REQUESTS_", "http", "HTTP", "no_proxy", "NO_PROXY")
"""Variables by which this machine's pip finds its packages."""


def make_path(folder: Path) -> str:
    """Fill a folder with the few programs and return it as a PATH."""
    folder.mkdir()
    for name in NEEDED:
        (folder / name).symlink_to(find_tool(name))
    for name in COREUTILS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    # A symlink to the Python of a virtual environment would lose that environment's packages or find too many.
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return str(folder)


def environment(home: Path, path: str, **more: str) -> dict[str, str]:
    """Return the environment of a user who has set nothing but what pip needs here."""
    given = {name: value for name, value in os.environ.items() if name.startswith(PIP)}
    # The repository may belong to another user, as in a container.
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    return {**given, **trust, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", **more}


def megabytes(folder: Path) -> float:
    """Return the disk space that the files of a folder take."""
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*")) / 1e6
