"""Which commands there are, and where each lives: a module is imported only when its command runs.

Takes a command's name; gives the command. So `turnwire --help` and completion stay fast, whatever a command needs.
"""

from __future__ import annotations

import difflib
import importlib
from typing import NamedTuple, cast

import click


class Row(NamedTuple):
    """One command."""

    module: str
    about: str
    """Its line in the overview."""


COMMANDS: dict[str, Row] = {
    "serve": Row("serve", "Run the daemon: host an agent and serve its sessions."),
    "stdio": Row("stdio", "Be an agent on stdin and stdout, for an editor."),
    "agent": Row("agent", "Be the built-in agent, on stdin and stdout."),
    "prompt": Row("prompt", "Send a prompt and show the turn as it happens."),
    "attach": Row("watching", "Show a session: what happened, then what happens."),
    "sessions": Row("sessions", "List the sessions of the daemon."),
    "tail": Row("watching", "Print the raw events of a session."),
    "answer": Row("control", "Answer a permission request of the agent."),
    "cancel": Row("control", "Stop the running turn, or one that is named."),
    "queue": Row("queue", "List and change the prompts that wait."),
    "export": Row("sessions", "Write the whole log of a session to a file."),
    "explain": Row("explain", "Say why a session is stuck, and what to do next."),
    "settle": Row("control", "End a turn whose agent never said that it ended."),
    "token": Row("tokens", "Make, list and revoke credentials."),
    "login": Row("tokens", "Print a new link that logs a browser in, once."),
    "doctor": Row("doctor", "Check this machine, the settings and the agent."),
    "config": Row("config", "Show every setting that is in force, and why."),
    "dialects": Row("dialects", "List what one version of ACP cannot say to the other."),
    "completion": Row("completion", "Print the completion script of a shell."),
    "version": Row("completion", "Print the version."),
}
"""Every command, in the order of the overview."""


class Lazy(click.Group):
    """A group that finds its commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        module = importlib.import_module(f"turnwire.cli.{row.module}")
        return cast("click.Command", getattr(module, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, 1) if args[0] not in COMMANDS else []
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in COMMANDS.items()])
