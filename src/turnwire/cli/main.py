"""The entry of the command line: one command, and the process ends with its exit code.

Whatever a command raises comes through `turnwire.cli.failure`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import NoReturn

import click

from turnwire import __version__
from turnwire.cli.commands import Lazy, write_examples
from turnwire.cli.failure import fail

OBJECTS = 50_000
"""So many come before garbage is looked for: a few megabytes."""

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
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, EXAMPLES)


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Before any command is looked for: finding it may fail, too."""
    ctx.find_root().obj["debug"] = value
    if not value:
        # What libraries log is for operators; a daemon sets it up for itself.
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
    """For who types the name alone: what runs, and what to type next."""
    from turnwire.link.local_daemon import running

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
    # A command imports hundreds of modules, which leaves no garbage: looking for it took an eighth of the start.
    gc.set_threshold(OBJECTS)
    open_closed_streams()
    switches, output = {"debug": False}, sys.stdout
    try:
        code = cli.main(prog_name="turnwire", standalone_mode=False, obj=switches)
        sys.stdout.flush()
    except SystemExit as ended:
        # When nobody reads our output any more, click replaces it and ends with a code that says nothing.
        code = ended.code if sys.stdout is output else fail(BrokenPipeError(), debug=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  The last one that can say what went wrong.
        code = fail(error, debug=switches["debug"])
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """See that all three streams are there. Call it before anything else is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free: it is the stream's own, so that no file of ours is taken for it.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8", errors="backslashreplace"))
