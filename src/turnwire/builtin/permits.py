"""Which tool calls run at once, which ask first, and which do not run: a pure decision.

Takes a session's mode, a tool and what the user allowed for good; gives a verdict. Never asks and never runs.

A remembered permission is for a tool, and for `run` for the beginning of a command: `git status`. A command that
could hide another one (a pipe, a list, a redirection, an interpreter) is remembered only as a whole.
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


class Verdict(Enum):
    """What becomes of a tool call."""

    RUN = "run"
    ASK = "ask"
    REFUSE = "refuse"


def judge(mode: str, *, asks: bool, edits: bool, is_allowed: bool) -> Verdict:
    """The verdict over a tool that asks, that edits, or that does neither."""
    if not asks and not edits:
        return Verdict.RUN
    if mode == PLAN.id:
        return Verdict.REFUSE
    if is_allowed or (edits and mode == ACCEPT_EDITS.id):
        return Verdict.RUN
    return Verdict.ASK


SUBCOMMANDS = frozenset(
    {"apt", "brew", "bun", "cargo", "dotnet", "gh", "git", "go", "npm", "pip", "pnpm", "uv", "yarn"}
)
"""Programs whose second word says what they do."""
OPEN_ENDED = frozenset(
    {
        *("awk", "bash", "bun", "csh", "dash", "deno", "docker", "env", "eval", "exec", "find", "fish", "ksh"),
        *("kubectl", "lua", "make", "nice", "node", "nohup", "npx", "parallel", "perl", "php", "podman", "python"),
        *("python3", "ruby", "sed", "sh", "source", "ssh", "sudo", "su", "time", "timeout", "uvx", "watch"),
        *("xargs", "zsh", "."),
    }
)
"""Programs that run whatever their arguments say."""
_COMPOUND = re.compile(r"[;&|<>`$(){}\n\\*?\[\]!#~]")


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
    if not words or _COMPOUND.search(command) or "=" in words[0] or words[0].rpartition("/")[2] in OPEN_ENDED:
        return f"= {command}"
    if words[0] not in SUBCOMMANDS:
        return words[0]
    # A flag before the subcommand can change what runs: `git -c alias.x=…`.
    return f"= {command}" if len(words) < 2 or words[1].startswith("-") else " ".join(words[:2])


def always_words(key: str) -> str:
    """What a user agrees to who allows it for good."""
    if not key.startswith(f"{RUN} "):
        return f"Always allow {key} in this session"
    prefix = key.removeprefix(f"{RUN} ")
    if prefix.startswith("= "):
        return "Always allow exactly this command in this session"
    return f"Always allow commands that begin with `{prefix}` in this session"
