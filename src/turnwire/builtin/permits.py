"""Which tool calls run at once, which ask first, and which do not run: a pure decision.

Takes a session's mode, a tool and what the user allowed for good; gives a verdict. Never asks and never runs.

A remembered permission is for a tool. For `run` it is for the beginning of a command if that is one of a few that
only look, such as `git status`; any other command is remembered only as a whole, for there are too many that run
what their arguments say.
"""

from __future__ import annotations

import re
import shlex
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
    """What becomes of a tool call."""

    RUN = "run"
    ASK = "ask"
    REFUSE = "refuse"


def judge(mode: str, *, asks: bool, edits: bool, is_allowed: bool) -> ToolPermit:
    """The verdict over a tool that asks, that edits, or that does neither."""
    if not asks and not edits:
        return ToolPermit.RUN
    if mode == PLAN.id:
        return ToolPermit.REFUSE
    if is_allowed or (edits and mode == ACCEPT_EDITS.id):
        return ToolPermit.RUN
    return ToolPermit.ASK


LOOKERS = frozenset(
    {
        *("basename", "cat", "cmp", "comm", "cut", "df", "diff", "dirname", "du", "echo", "egrep", "false"),
        *("fgrep", "grep", "head", "id", "ls", "md5sum", "nl", "pwd", "readlink", "realpath", "sha256sum"),
        *("stat", "tail", "tr", "true", "uname", "wc", "which", "whoami"),
    }
)
"""Programs that write nothing and start no other program, whatever their arguments. Not among them: `sort`, `uniq`
and `tree`, which can write files, `rg` and `sort`, which can start programs, `date`, which can set the clock."""
LOOKING = {"git": frozenset({"blame", "describe", "diff", "log", "ls-files", "rev-parse", "show", "status"})}
"""Subcommands of which the same is true, but for what `_WRITES` finds."""
_WRITES = re.compile(r"--o($|=|u)|--ext")
"""`--output` of git, and `--ext-diff`; git also takes the beginnings of an option."""
_COMPOUND = re.compile(r"[;&|<>`$(){}\n\r\\*?\[\]!#~]")


def permit_key(tool: str, arguments: dict[str, Any]) -> str:
    """What a remembered permission for this call would cover."""
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
    if words[0] in LOOKERS:
        return words[0]
    # A flag before the subcommand can change what runs: `git -c alias.x=…`.
    is_looking = len(words) > 1 and words[1] in LOOKING.get(words[0], ())
    return f"= {command}" if not is_looking or any(map(_WRITES.match, words)) else " ".join(words[:2])


def always_words(key: str) -> str:
    """What a user agrees to who allows it for good."""
    if not key.startswith(f"{RUN} "):
        return f"Always allow {key} in this session"
    prefix = key.removeprefix(f"{RUN} ")
    if prefix.startswith("= "):
        return "Always allow exactly this command in this session"
    return f"Always allow commands that begin with `{prefix}` in this session"
