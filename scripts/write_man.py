"""Write docs/turnwire.1, the manual page, from the commands themselves: `scripts/write_man.py [--check]`.

Takes the help of every command; gives roff in the macros of man(7). Says nothing that `--help` does not say, but
for where files are and what exit codes mean, which the help has no place for.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pages import keep
from turnwire import __version__
from turnwire.cli.main import EXAMPLES, cli

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "turnwire.1"

EXITS = [
    ("0", "It is done; the daemon was stopped by a signal, in good order."),
    ("2", "The command line makes no sense."),
    ("70", "Something went wrong that should not."),
    ("74", "The event log is damaged, or a file cannot be used."),
    ("75", "Another process owns the data folder, or the disk is full; try again."),
    ("78", "A setting makes no sense, or a newer turnwire wrote the log."),
    ("130, 143", "A second SIGINT or SIGTERM ended it at once."),
]
FILES = [
    ("~/.config/turnwire/turnwire.toml", "The settings; $XDG_CONFIG_HOME and TURNWIRE_CONFIG lead elsewhere."),
    ("~/.local/state/turnwire", "The log and the tokens; $XDG_STATE_HOME and TURNWIRE_DATA lead elsewhere."),
]


def escaped(text: str) -> str:
    """Text that roff prints as it is. A line that begins like a request gets something before it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    for number, each in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\b\n", ""))):
        if number:
            yield ".PP"
        yield escaped(" ".join(each.split()))


def listed(rows: list[tuple[str, str]]) -> Iterator[str]:
    for term, meaning in rows:
        yield from (".TP", f".B {escaped(term)}", escaped(" ".join(meaning.split())))


def options(command: click.Command, ctx: click.Context) -> list[tuple[str, str]]:
    records = [each.get_help_record(ctx) for each in command.get_params(ctx) if isinstance(each, click.Option)]
    return [record for record in records if record is not None and "--help" not in record[0]]


def commands(
    group: click.Group, ctx: click.Context, path: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below a group, in the order of the overview."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=ctx)
        yield f"{path} {name}", command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, f"{path} {name}")


def examples(text: str) -> Iterator[str]:
    yield from (".nf", ".RS")
    yield from (escaped(line.strip()) for line in text.strip().splitlines())
    yield from (".RE", ".fi")


def described(path: str, command: click.Command, ctx: click.Context) -> Iterator[str]:
    yield f'.SS "{escaped(path)}"'
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from (f".B {escaped(path)}", escaped(usage), ".PP")
    yield from paragraphs(command.help or "")
    yield from listed(options(command, ctx))
    if told := getattr(command, "examples", ""):
        yield from (".PP", *examples(told))


def manual() -> str:
    """The whole page."""
    ctx = click.Context(cli, info_name="turnwire")
    lines = [
        '.\\" Written by scripts/write_man.py from the help of the commands.',
        f'.TH TURNWIRE 1 "" "turnwire {__version__}" "User Commands"',
        *(".SH NAME", f"turnwire \\- {escaped('the runtime for agent turns')}"),
        *(".SH SYNOPSIS", ".B turnwire", "[OPTIONS] COMMAND [ARGS]..."),
        *(".SH DESCRIPTION", *paragraphs(cli.help or "")),
        *(".SH OPTIONS", *listed(options(cli, ctx))),
        ".SH COMMANDS",
        *(line for each in commands(cli, ctx, "turnwire") for line in described(*each)),
        *(".SH EXAMPLES", *examples(EXAMPLES)),
        *(".SH EXIT STATUS", *listed(EXITS)),
        *(".SH FILES", *listed(FILES)),
        ".SH ENVIRONMENT",
        "Every setting has a variable TURNWIRE_\\fINAME\\fR;",
        ".B turnwire config",
        "shows them all, and what is in force.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(keep(sys.argv[0], sys.argv[1:], PAGE, ROOT / "src/turnwire/cli", manual()))
