"""The entry point of the command line, and the commands `completion`, `version` and `dialects`, which need nothing
else.

`turnwire.cli.output` turns every error of a command into a message and an exit code.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import sqlite3
import sys
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from turnwire import __version__
from turnwire.cli.commands import Command, Lazy, write_examples
from turnwire.cli.output import fail, print_json, print_table

OBJECTS = 50_000
"""Objects before garbage is collected: a few megabytes."""

EXAMPLES = """
turnwire serve                                 run the daemon with the built-in agent
turnwire serve -- my-agent --flag              run it with an agent of yours
turnwire prompt "what does this project do?"   ask, in the newest session of this folder or a new one
turnwire chat                                  the same, for as long as you like
turnwire prompt "say hello" -- my-agent        ask without a daemon
turnwire explain last                          why does nothing happen?
turnwire doctor                                is everything in place?
"""


FIRST_STEPS = """
turnwire serve                       run one, with the built-in agent
turnwire serve -- my-agent --flag    run one, with an agent of yours
turnwire agents                      which agents can be started here
turnwire prompt hi -- my-agent       ask an agent once, without a daemon
"""
NEXT_STEPS = """
turnwire prompt "hello"     ask, in the newest session of this folder or a new one
turnwire chat               the same, for as long as you like
turnwire sessions           what sessions there are
turnwire attach last        look on at the newest
turnwire explain last       why does nothing happen?
"""


class _Overview(Lazy):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, EXAMPLES)
        super().format_options(ctx, formatter)


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Set the flag before a command is looked up, because the lookup may fail as well."""
    ctx.find_root().obj["debug"] = value
    if not value:
        # Log records of libraries are for operators; a daemon configures logging itself.
        logging.getLogger("turnwire").addHandler(logging.NullHandler())


@click.group(cls=_Overview, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, message="turnwire %(version)s")
@click.option(
    "--debug", is_flag=True, callback=_set_debug, expose_value=False, help="Show where an error came from."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """The runtime for agent turns: every accepted prompt has exactly one end."""
    if ctx.invoked_subcommand is None:
        _show_first_steps()


def _show_first_steps() -> None:
    """Show the first steps after `turnwire` without arguments: the running daemon, and commands to try."""
    from turnwire.hosting.local_daemon import running

    found = running(os.environ)
    click.echo(f"turnwire {__version__}: the runtime for agent turns\n")
    for each in found:
        click.echo(f"A daemon of yours runs at {each.url}.")
    if not found:
        click.echo("No daemon of yours runs.")
    steps = NEXT_STEPS if found else FIRST_STEPS
    click.echo("".join(f"\n  {line}" for line in steps.strip().splitlines()))
    click.echo("\n`turnwire --help` lists all commands, and `turnwire COMMAND --help` has the options of one.")


def main() -> NoReturn:
    """Run the command of this process's arguments."""
    # A command imports hundreds of modules, which produces no garbage: collection took an eighth of the start.
    gc.set_threshold(OBJECTS)
    open_closed_streams()
    switches, output = {"debug": False}, sys.stdout
    try:
        code = cli.main(prog_name="turnwire", standalone_mode=False, obj=switches)
        sys.stdout.flush()
    except SystemExit as ended:
        # If no process reads the output any more, click replaces it and ends with an uninformative exit code.
        code = ended.code if sys.stdout is output else fail(BrokenPipeError(), debug=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  The last one that can say what went wrong.
        code = fail(error, debug=switches["debug"])
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """Ensure that all three standard streams are open. Call it before anything else is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number is the stream's own, so no other file is mistaken for the stream.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8", errors="backslashreplace"))


# -- completion, version, dialects --------------------------------------------------------------------------------


COMPLETION_EXAMPLES = """
turnwire completion bash > ~/.local/share/bash-completion/completions/turnwire
turnwire completion zsh > ~/.zfunc/_turnwire        with ~/.zfunc in your fpath
turnwire completion fish > ~/.config/fish/completions/turnwire.fish
"""
VERSION_EXAMPLES = """
turnwire version
turnwire version --json
"""


@click.command(cls=Command, examples=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    assert found is not None, "click has a script for each of the choices"
    click.echo(found(ctx.find_root().command, {}, "turnwire", "_TURNWIRE_COMPLETE").source())


@click.command(cls=Command, examples=VERSION_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and SQLite.")
def version(as_json: bool) -> None:
    """Print the version."""
    if not as_json:
        click.echo(f"turnwire {__version__}")
        return
    print_json({"turnwire": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version})


DIALECTS_EXAMPLES = """
turnwire dialects                                   what is lost between v1 and v2, and what comes instead
turnwire dialects --json | jq -r 'select(.direction == "v2 to v1").code'
"""


@click.command(cls=Command, examples=DIALECTS_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def dialects(as_json: bool) -> None:
    """List what one version of ACP cannot express in the other."""
    from turnwire.projections.translate.losses import LOSSES

    if as_json:
        for loss in LOSSES:
            print_json(loss._asdict())
        return
    print_table(("direction", "code", "what", "instead"), [(loss[1], loss[0], *loss[2:]) for loss in LOSSES])
