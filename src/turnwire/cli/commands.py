"""The table of commands and their common base classes.

A module is imported only when its command runs, so `turnwire --help` and completion stay fast. The help of each
command ends with a block of examples, printed as written. An agent's command may follow after `--`. Arguments that
are not valid text are rejected here, because no command could send them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


class Row(NamedTuple):
    """One command."""

    module: str
    """Module of `turnwire.cli`; empty for a command of a sibling distribution."""
    about: str
    """Its line in the overview."""
    extra: str = ""
    """The extra of `turnwire` that installs the sibling distribution."""


COMMANDS: dict[str, Row] = {
    "serve": Row("serve", "Run the daemon: host an agent and serve its sessions."),
    "restart": Row("restart", "Restart the daemon; its turns continue."),
    "stdio": Row("stdio", "Act as an ACP agent on stdio, for editors."),
    "agent": Row("agent", "Run the built-in agent on stdio."),
    "agents": Row("agents", "List the agents that this machine can start; log in at one."),
    "prompt": Row("prompt", "Send a prompt and show the turn as it happens."),
    "chat": Row("chat", "Talk to an agent at the terminal."),
    "attach": Row("sessions", "Show a session, then follow it."),
    "sessions": Row("sessions", "List the sessions of the daemon."),
    "archive": Row("sessions", "Archive a session (hide it from lists)."),
    "tail": Row("sessions", "Print the raw events of a session."),
    "answer": Row("permissions", "Answer a permission request of the agent."),
    "cancel": Row("turns", "Cancel the running turn, or a named prompt."),
    "queue": Row("turns", "List and change queued prompts."),
    "export": Row("export", "Write the whole log of a session to a file."),
    "verify": Row("export", "Check that an exported session is complete and unchanged."),
    "record": Row("", "Record the frames between an agent and its client.", "testing"),
    "replay": Row("", "Act as the agent of a recording on stdio.", "testing"),
    "explain": Row("turns", "Explain why a session is stuck, and what to do next."),
    "settle": Row("turns", "End a turn whose agent never reported its end."),
    "token": Row("tokens", "Create, list and revoke credentials."),
    "login": Row("tokens", "Print a link that signs a browser in, once."),
    "open": Row("tokens", "Open the page in the browser, signed in."),
    "share": Row("tokens", "Print a link to watch one session."),
    "doctor": Row("doctor", "Check this machine, the settings and the agent."),
    "check": Row("", "Test an agent or client for ACP conformance.", "check"),
    "copy": Row("copy", "Copy a log into another one: from a data folder to PostgreSQL."),
    "nodes": Row("nodes", "List the nodes that share a log, drain one, or move sessions."),
    "config": Row("config", "Show every setting and its source."),
    "dialects": Row("main", "List what one version of ACP cannot express in the other."),
    "completion": Row("main", "Print the completion script of a shell."),
    "version": Row("main", "Print the version."),
}
"""Every command, in the order of the overview."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Talk": ("prompt", "chat", "answer", "cancel", "queue"),
    "Look": ("sessions", "attach", "tail", "explain", "export", "verify", "archive", "settle"),
    "Run": ("serve", "restart", "stdio", "agents", "doctor", "config", "nodes", "copy"),
    "Share": ("open", "login", "share", "token"),
    "Develop": ("agent", "check", "record", "replay", "dialects", "completion", "version"),
}
"""The commands as the overview lists them."""
ENTRY_POINTS = "turnwire.commands"
"""The entry point group in which sibling distributions name their commands."""


def _added() -> EntryPoints:
    """Return the commands that installed siblings add."""
    # Reads the metadata of every installed distribution, so only commands that need it pay for it.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def installed_commands() -> dict[str, Row]:
    """Return the commands that can be run here, in the order of the overview."""
    added = _added().names
    return {name: row for name, row in COMMANDS.items() if not row.extra or name in added}


class Lazy(click.Group):
    """A group that finds its commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(installed_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        if row.extra:
            for each in _added().select(name=cmd_name):
                return cast("click.Command", each.load())
            ctx.fail(f"`turnwire {cmd_name}` is not installed. Install it: pip install 'turnwire[{row.extra}]'")
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
        installed = installed_commands()
        width = max(map(len, installed))
        for heading, names in GROUPS.items():
            rows = [(name.ljust(width), installed[name].about) for name in names if name in installed]
            with formatter.section(heading):
                formatter.write_dl(rows)


AGENT = "turnwire.agent"
"""The key in a context's `meta` of the words after `--`."""


class SettingOption(click.Option):
    """An option under a separate heading in the help."""

    def __init__(self, heading: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            check_text(args, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Examples first: some commands have screens of options.
        write_examples(formatter, self.examples)
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                heading = each.heading if isinstance(each, SettingOption) else "Options"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class WithAgent(Command):
    """A command that accepts an agent's command after `--`, which `agent_of` returns.

    The agent's words may be any bytes: they are passed to the program unchanged.
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
    """Return the command after `--`; empty if there is none."""
    return ctx.meta.get(AGENT, ())


def _split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in args:
        return list(args), None
    at = args.index("--")
    return list(args[:at]), list(args[at + 1 :])


class Group(click.Group):
    """A group of commands with its own examples."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Examples first: some commands have screens of options.
        write_examples(formatter, self.examples)
        super().format_options(ctx, formatter)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"{' ' * formatter.current_indent}{line.strip()}\n")


def check_text(words: Sequence[str], ctx: click.Context | None = None) -> None:
    """Reject words that cannot be sent. Raises `UsageError`."""
    for each in words:
        # Bytes that the locale cannot decode arrive as surrogates, which neither JSON nor an address can hold.
        if any("\ud800" <= letter <= "\udfff" for letter in each):
            encoding = sys.getfilesystemencoding().upper()
            raise click.UsageError(f"{each!a} is not {encoding} text; write it so, or rename what it names", ctx)


def sendable_folder(path: str) -> str:
    """Return the absolute path of a folder as text that a daemon and its agent can use. Raises `UsageError`."""
    whole = os.path.abspath(path)
    # The parent folders were not on the command line, and may not be valid text either.
    check_text([whole])
    return whole
