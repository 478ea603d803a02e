"""Which commands there are, where each lives, and what they have in common.

A module is imported only when its command runs, so `turnwire --help` and completion stay fast, whatever a command
needs. Each command teaches by example: its help ends with a block of examples, printed as it was written. It may
have an agent's command behind `--`. Words that are no text never get further: nothing behind a command can send
them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

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
    "agents": Row("agents", "List the agents that this machine can start; log in at one."),
    "prompt": Row("prompt", "Send a prompt and show the turn as it happens."),
    "chat": Row("chat", "Talk to an agent at the terminal."),
    "attach": Row("attach", "Show a session: what happened, then what happens."),
    "sessions": Row("sessions", "List the sessions of the daemon."),
    "archive": Row("sessions", "Put a session away: lists leave it out."),
    "tail": Row("attach", "Print the raw events of a session."),
    "answer": Row("answer", "Answer a permission request of the agent."),
    "cancel": Row("turns", "Stop the running turn, or one that is named."),
    "queue": Row("turns", "List and change the prompts that wait."),
    "export": Row("sessions", "Write the whole log of a session to a file."),
    "verify": Row("verify", "Prove that an exported session is whole and as it was."),
    "record": Row("record", "Record what an agent and its client say to each other."),
    "replay": Row("replay", "Be the agent of a recording, on stdin and stdout."),
    "explain": Row("explain", "Say why a session is stuck, and what to do next."),
    "settle": Row("turns", "End a turn whose agent never said that it ended."),
    "token": Row("tokens", "Make, list and revoke credentials."),
    "login": Row("tokens", "Print a new link that logs a browser in, once."),
    "open": Row("tokens", "Open the page in the browser, logged in."),
    "share": Row("tokens", "Print a link by which others watch one session."),
    "doctor": Row("doctor", "Check this machine, the settings and the agent."),
    "check": Row("check", "Judge whether an agent or a client keeps the rules of ACP."),
    "copy": Row("copy", "Copy a log into another one: from a data folder to PostgreSQL."),
    "nodes": Row("nodes", "List the nodes that share a log, end one, or move what one had."),
    "config": Row("config", "Show every setting that is in force, and why."),
    "dialects": Row("about", "List what one version of ACP cannot say to the other."),
    "completion": Row("about", "Print the completion script of a shell."),
    "version": Row("about", "Print the version."),
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


AGENT = "turnwire.agent"
"""The key in a context's `meta` of the words behind `--`."""


class Command(click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            check_text(args, ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


class WithAgent(Command):
    """A command behind which another one may stand, after `--`: the agent's. `agent_of` gives that.

    The agent's words may be any bytes: they are handed to a program as they are.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, agent = _split(args)
        if agent is not None and not agent and not ctx.resilient_parsing:
            raise click.UsageError("nothing stands after `--`; put the agent's command there", ctx)
        ctx.meta[AGENT] = tuple(agent or ())
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, own)
        if left:
            behind = shlex.join([*left, *(agent or ())])
            raise click.UsageError(f"the agent's command stands behind `--`: {ctx.command_path} -- {behind}", ctx)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- AGENT COMMAND...]"]


def agent_of(ctx: click.Context) -> tuple[str, ...]:
    """The command behind `--`; empty if there is none."""
    return ctx.meta.get(AGENT, ())


def _split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in args:
        return list(args), None
    at = args.index("--")
    return list(args[:at]), list(args[at + 1 :])


class Group(click.Group):
    """A group of commands with examples of its own."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"{' ' * formatter.current_indent}{line.strip()}\n")


def check_text(words: Sequence[str], ctx: click.Context | None = None) -> None:
    """Refuse words that cannot be sent. Raises `UsageError`."""
    for each in words:
        # Bytes that the locale cannot read arrive as surrogates, which no JSON and no address can hold.
        if any("\ud800" <= letter <= "\udfff" for letter in each):
            encoding = sys.getfilesystemencoding().upper()
            raise click.UsageError(f"{each!a} is not {encoding} text; write it so, or rename what it names", ctx)


def sendable_folder(path: str) -> str:
    """The whole path of a folder, as a daemon and its agent can be told it. Raises `UsageError`."""
    whole = os.path.abspath(path)
    # What leads there was not on the command line, and may be no text either.
    check_text([whole])
    return whole
