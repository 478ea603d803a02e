"""Commands that teach by example: each shows how it is used, and may have an agent's command behind `--`.

Takes what click takes; gives commands whose help ends with a block of examples, printed as it was written. Words
that are no text never get further: nothing behind a command can send them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

AGENT = "turnwire.agent"
"""The key in a context's `meta` of the words behind `--`."""


class Command(click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
        if agent is not None and not agent:
            raise click.UsageError("nothing stands after `--`; put the agent's command there", ctx)
        ctx.meta[AGENT] = tuple(agent or ())
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- AGENT COMMAND...]"]


class Group(click.Group):
    """A group of commands with examples of its own."""

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


def agent_of(ctx: click.Context) -> tuple[str, ...]:
    """The command behind `--`; empty if there is none."""
    return ctx.meta.get(AGENT, ())


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


def _split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in args:
        return list(args), None
    at = args.index("--")
    return list(args[:at]), list(args[at + 1 :])
