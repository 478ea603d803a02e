"""Permission rules: the tool calls that run at once, those that ask first, and those that do not run.

A verdict follows from the session's mode, the tool and the user's permanent permissions. This module never asks and
never runs anything.

A remembered permission is for a tool. For `run` it is for the beginning of a command if that is one of a few
read-only programs, such as `ls`; any other command is remembered only as a whole, because too many programs execute
their arguments or a project's configuration.

Writing files that other programs execute by themselves is never remembered, and no mode allows it: see
`is_run_by_others`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from turnwire.agent.options import Mode

RUN = "run"


ASK = Mode("ask", "Ask", "Asks before it changes a file or runs a command.")
ACCEPT_EDITS = Mode("accept_edits", "Accept edits", "Changes files without asking; asks before it runs a command.")
PLAN = Mode("plan", "Plan", "Looks and makes a plan; changes nothing and runs nothing.")
MODES = (ASK, ACCEPT_EDITS, PLAN)
MODE_IDS = tuple(each.id for each in MODES)


class ToolPermit(Enum):
    """Verdict on a tool call."""

    RUN = "run"
    ASK = "ask"
    REFUSE = "refuse"


def judge(mode: str, *, asks: bool, edits: bool, is_allowed: bool, always_asks: bool = False) -> ToolPermit:
    """The verdict over a tool that asks, that edits, or that does neither."""
    if not asks and not edits:
        return ToolPermit.RUN
    if mode == PLAN.id:
        return ToolPermit.REFUSE
    if not always_asks and (is_allowed or (edits and mode == ACCEPT_EDITS.id)):
        return ToolPermit.RUN
    return ToolPermit.ASK


LOOKERS = frozenset(
    {
        *("basename", "cat", "cmp", "comm", "cut", "df", "diff", "dirname", "du", "echo", "egrep", "false"),
        *("fgrep", "grep", "head", "id", "ls", "md5sum", "nl", "pwd", "readlink", "realpath", "sha256sum"),
        *("stat", "tail", "tr", "true", "uname", "wc", "which", "whoami"),
    }
)
"""Programs that write nothing and start no other program, with any arguments. Not among them: `sort`, `uniq` and
`tree`, which can write files, `rg` and `sort`, which can start programs, `date`, which can set the clock, and
`git`, which starts the programs of the repository's configuration, even for a mere `git status` (`core.fsmonitor`).
"""
_COMPOUND = re.compile(r"[;&|<>`$(){}\n\r\\*?\[\]!#~]")


def permit_key(tool: str, arguments: dict[str, Any]) -> str:
    """Return the key of a remembered permission for this call."""
    command = arguments.get("command")
    if tool != RUN or not isinstance(command, str):
        return tool
    return f"{RUN} {_beginning(command)}"


def _beginning(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words or _COMPOUND.search(command):
        return f"= {command}"
    return words[0] if words[0] in LOOKERS else f"= {command}"


def always_words(key: str) -> str:
    """Return a description of the permanent permission that a user would grant."""
    if not key.startswith(f"{RUN} "):
        return f"Always allow {key} in this session"
    prefix = key.removeprefix(f"{RUN} ")
    if prefix.startswith("= "):
        return "Always allow exactly this command in this session"
    return f"Always allow commands that begin with `{prefix}` in this session"


# -- files that other programs run ---------------------------------------------------------------------------


HARMLESS = frozenset({".editorconfig", ".gitignore", ".gitkeep", ".turnwire-demo"})
"""Hidden names that make no program run anything."""
REPOSITORY = ("HEAD", "objects", "refs")
"""Entries that make a directory a repository for git, whatever its name."""


def is_run_by_others(path: str, roots: Sequence[str], programs: str) -> bool:
    """Return True if a program may execute this path without asking. Reads the disk.

    Hidden names are where programs store what they execute: hooks of `.git`, `.envrc`, `.vscode/tasks.json`,
    `.bashrc`, `.github/workflows`. Also covered: all of a repository's own directory, including a bare one, the
    file by which one begins, and the folders searched for `programs`, as in `PATH`.

    Args:
        path: Absolute. Its resolved path counts, so that no link leads there unseen.
        roots: The session's directories; hidden names above them are the user's choice.
        programs: Folders with colons between.
    """
    true = os.path.realpath(path)
    below = next((os.path.relpath(true, each) for each in map(os.path.realpath, roots) if _is_in(true, each)), true)
    names = [each.casefold() for each in below.split("/")]
    is_hidden = any(each.startswith(".") and each not in HARMLESS for each in names)
    return (
        is_hidden
        or names[-1] == REPOSITORY[0].casefold()
        or ".git" in true.casefold().split("/")
        or os.path.dirname(true) in map(os.path.realpath, programs.split(":"))
        or any(_is_repository(each) for each in _above(true))
    )


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _is_repository(folder: str) -> bool:
    return all(os.path.lexists(os.path.join(folder, each)) for each in REPOSITORY)
